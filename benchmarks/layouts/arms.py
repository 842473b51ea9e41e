"""The servers that are compared, each with private banks, and one question to one of them. Knows processes and HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forerun.demo.conversation import Conversation, Message
from forerun.demo.server import Server
from forerun.demo.turns import TEMPLATE_ARGS
from forerun.serve.client import Delta, End, stream_chat

FAULT = Path(__file__).with_name("fault.py")
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "seed": 1}
GREEDY = {"temperature": 0}


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of serving. program: what runs `serve`; has_log: whether it knows --request-log."""

    name: str
    program: tuple[str, ...]
    model: str | None
    has_log: bool

    def command(self, folder: Path, *flags: str) -> list[str]:
        """The command line of a server that writes only to `folder`."""
        named = [self.model] if self.model else []
        log = ["--request-log", str(log_of(folder))] if self.has_log else []
        return [*self.program, "serve", *named, "--port", "0", "--bank-dir", str(folder / "bank"), "--json", *log, *flags]


def arms(names: list[str], model: str | None, baseline_python: str | None) -> list[Arm]:
    """The arms by name, and the other forerun that `baseline_python` has installed, if one is given."""
    programs = {"asked": (sys.executable, "-m", "forerun.cli"), "fault": (sys.executable, str(FAULT))}
    found = [Arm(name, programs[name], model, has_log=True) for name in names]
    if baseline_python:
        program = (baseline_python, "-I", "-m", "forerun.cli")
        help_text = subprocess.run([*program, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        found.append(Arm("baseline", program, model, "--request-log" in help_text))
    return found


def log_of(folder: Path) -> Path:
    """The request log of the servers in `folder`."""
    return folder / "requests.jsonl"


@contextmanager
def running(arm: Arm, folder: Path, *flags: str) -> Iterator[Server]:
    """A server that is stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server.start(arm.command(folder, *flags), folder / "server.log")
    try:
        yield server
        server.stop()
    finally:
        server.kill()


def ask(server: Server, talk: Conversation, messages: tuple[Message, ...], sampling: dict[str, Any], cap: int) -> dict[str, Any]:
    """The answer's text and the response's report."""
    body = {"model": "any", "messages": list(messages), "tools": list(talk.tools), "max_tokens": cap, **sampling, **TEMPLATE_ARGS}
    text, end = [], None
    for piece in stream_chat(server.url, body):
        text += [piece.text] if isinstance(piece, Delta) else []
        end = piece if isinstance(piece, End) else end
    assert end is not None
    return {"text": "".join(text), **asdict(end)}
