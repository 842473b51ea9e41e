"""The command line: assembles the commands, one file each, and turns forerun's errors into one message and an exit code.

Importing it loads neither MLX nor a model: `forerun --help` answers at once. Exit codes: 0 done, 1 failed, 2 usage, 3 unsupported.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from forerun import __version__
from forerun.cli import bank, bench, chat, config, connect, demo, doctor, models, report, serve
from forerun.cli.lines import say
from forerun.errors import ConfigError, ForerunError, UnsupportedError

app = typer.Typer(
    help="A local LLM server for coding agents that never computes a conversation twice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(is_requested: bool) -> None:
    """Print the version and exit, if requested."""
    if is_requested:
        typer.echo(f"forerun {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="print the version")]


@app.callback()
def before(version: Version = False) -> None:
    """Options before the command."""


app.command()(serve.serve)
app.command()(chat.chat)
app.command()(connect.connect)
app.command()(demo.demo)
app.command()(report.report)
app.command()(doctor.doctor)
app.add_typer(bank.app, name="bank")
app.add_typer(models.app, name="models")
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command in the process's arguments, and exit with its code. Characters that the output cannot show are replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="forerun")
    except ForerunError as error:
        say(f"forerun: {error}", *([f"hint: {error.hint}"] if error.hint else []), file=sys.stderr)
        raise SystemExit(exit_code(error)) from error


def exit_code(error: ForerunError) -> int:
    """2 for an invalid setting, 3 for what this machine or model does not support, 1 for the rest."""
    return 2 if isinstance(error, ConfigError) else 3 if isinstance(error, UnsupportedError) else 1
