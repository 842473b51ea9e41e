"""`forerun connect`: settings of an agent for a running server, shown or written. Never overwrites a file without asking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.lines import AsJson, say
from forerun.config import home, load
from forerun.errors import ForerunError
from forerun.serve.agents import KEY_VARIABLE, Agent, AgentSetup, ServedModel, merged, setup
from forerun.serve.client import health, url_of


def connect(
    agent: Annotated[Agent, typer.Argument(help="opencode, codex, claude-code, pi or aider", show_default=False)],
    url: Annotated[str, typer.Option(help="address of the server; default: from the settings", show_default=False)] = "",
    write: Annotated[bool, typer.Option("--write", help="write the settings file; asks before it changes one that exists")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how to use a running server from an agent: settings, environment and command; with --write, write the settings."""
    made = setup(agent, served_at(url))
    file = home() / made.file
    content = combined(file, made)
    if write:
        put(file, content)
    if as_json:
        fields = {"file": str(file), "content": content, "environment": dict(made.environment), "start": made.start, "notes": made.notes}
        typer.echo(json.dumps(fields))
    else:
        show(file, content, made, is_written=write)


def served_at(url: str) -> ServedModel:
    """The server at this address, or if it is "", at that of the settings. Raises ForerunError."""
    config = load({})
    url = url_of(config, url)
    model = health(url, key=config.sent_key)["model"]
    return ServedModel(url, model["id"], model["context_tokens"], needs_key=bool(config.sent_key))


def combined(file: Path, made: AgentSetup) -> str:
    """The content for the file, merged with the present content if the file is shared. Raises ForerunError."""
    if not made.is_shared or not file.exists():
        return made.content
    try:
        return merged(file.read_text(encoding="utf-8"), made.content)
    except (OSError, ValueError) as error:
        raise ForerunError(f"cannot add to {file}: {error}", hint="repair it, or add the settings by hand") from error


def put(file: Path, content: str) -> None:
    """Write the file; asks first if a different one exists. Raises ForerunError."""
    if file.exists() and file.read_text(encoding="utf-8") != content and not typer.confirm(f"{file} exists. Change it?", err=True):
        raise ForerunError(f"{file} was not changed", hint="without --write, the settings are only shown")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ForerunError(f"cannot write {file}: {error.strerror}") from error


def show(file: Path, content: str, made: AgentSetup, *, is_written: bool) -> None:
    """Print the setup for people; text to copy is on lines of its own."""
    typer.echo(f"{file} {'now holds' if is_written else 'should hold'}:\n\n{content}")
    start = " ".join([*(f'{name}="{value}"' for name, value in made.environment.items()), made.start])
    typer.echo(f"Start it with:\n\n    {start}\n")
    if any(KEY_VARIABLE in text for text in (content, *made.environment.values())):
        say(f"It takes the API key from {KEY_VARIABLE}.")
    say(*made.notes)
