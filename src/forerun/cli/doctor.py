"""`forerun doctor`: checks machine, settings, bank and numerics, one line each. MLX is imported last, as in a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from forerun.cli.lines import AsJson, aligned
from forerun.config import Config, config_file, load, prepare
from forerun.doctor import machine
from forerun.doctor.finding import Finding, checks, ok

STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Check whether everything works on this machine, and show what to do if not; exit code 1 if something does not work."""
    console, shown = Console(highlight=False), list[Finding]()
    for finding in findings():
        shown.append(finding)
        if not as_json:
            console.print(line(finding, console.width), soft_wrap=True)
    worst = max((finding.status for finding in shown), key=list(STYLES).index)
    if as_json:
        typer.echo(json.dumps({"status": worst, "findings": [asdict(finding) for finding in shown]}))
    raise typer.Exit(1 if worst == "failure" else 0)


def findings() -> Iterator[Finding]:
    """All findings, one after the other. Later checks use the settings, or the defaults if the settings are invalid."""
    yield from checks("versions", machine.versions)
    settings = checks("settings", _settings)
    yield from settings
    config = load({}) if settings[0].status == "ok" else Config.model_validate({})
    yield from checks("port", lambda: machine.port(config))
    yield from checks("bank", lambda: machine.bank(config))
    yield from _on_device(config)


def _settings() -> Iterator[Finding]:
    load({})
    file = config_file()
    yield ok("settings", f"{file} and the environment" if file.exists() else f"the environment; {file} does not exist")


def _on_device(config: Config) -> Iterator[Finding]:
    prepare(config)
    from forerun.doctor import numbers
    from forerun.engine.loading import memory_bytes
    from forerun.kernels import arithmetic

    yield from checks("compiler", lambda: machine.compiler(arithmetic.is_cpu()))
    yield from checks("memory", lambda: machine.memory(config, memory_bytes()))
    yield from checks("disk", lambda: machine.disk(config))
    yield from checks("mlx", numbers.device)
    yield from checks("cpu", numbers.cpu_kernels)
    yield from checks("model", lambda: numbers.model(arithmetic.here()))


def line(finding: Finding, columns: int) -> Text:
    """A finding for people, in three columns; the remedy is on a line of its own."""
    rows = [(f"{finding.status:<7}", f"{finding.name:<9}", finding.text), (" " * 7, "", f"to do: {finding.remedy}")]
    text = Text("\n".join(aligned(rows[: 1 + bool(finding.remedy)], columns)))
    text.stylize(STYLES[finding.status], 0, len(finding.status))
    return text
