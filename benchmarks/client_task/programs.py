"""The clients: their packages, how they are installed, and the command lines of a first and of a later turn. Knows no server.

Sources: the clients' own `--help` (opencode 1.18, Codex 0.171, Claude Code 2.1, pi 0.73, aider 0.86).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from client_task.task import FILE, TEST_COMMAND

INSTALL_LIMIT_S = 1800.0
SDK_LOOP = Path(__file__).with_name("sdk.py")


@dataclass(frozen=True, slots=True)
class Program:
    """A client of `forerun connect`. package, version: as they are installed. first, later: arguments after the command that `connect`
    gives, with "{prompt}" in the place of the prompt; later ones resume the conversation.
    """

    name: str
    package: str
    version: str
    first: Sequence[str]
    later: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_python(self) -> bool:
        return self.package == "aider-chat"

    def binaries(self, clients: Path) -> Path:
        """Where its command lies below the folder of the clients."""
        return clients / "aider" / "bin" if self.is_python else clients / "node_modules" / ".bin"

    def installed(self, clients: Path) -> str | None:
        """The version that is installed there, None if there is none."""
        if self.is_python:
            found = sorted(clients.glob("aider/lib/python3*/site-packages/aider_chat-*.dist-info"))
            return found[-1].name.removesuffix(".dist-info").partition("-")[2] if found else None
        manifest = clients / "node_modules" / self.package / "package.json"
        return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else None

    def command(self, connection: Mapping[str, Any], clients: Path, home: Path, prompt: str, *, is_first: bool) -> list[str]:
        """The command line of a turn. connection: what `forerun connect --json` gave."""
        program, *options = shlex.split(connection["start"])
        arguments = [each.replace("{prompt}", prompt) for each in (self.first if is_first else self.later)]
        return [str(self.binaries(clients) / program), *(each.replace("~", str(home)) for each in options), *arguments]


@dataclass(frozen=True, slots=True)
class Sdk:
    """A vendor's Python library with a plain loop of tools around it (sdk.py), in the interpreter of the benchmark."""

    name: str
    package: str

    def installed(self, clients: Path) -> str | None:
        return version(self.package)

    def command(self, connection: Mapping[str, Any], clients: Path, home: Path, prompt: str, *, is_first: bool) -> list[str]:
        return [sys.executable, str(SDK_LOOP), self.name, connection["url"], prompt]


CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{prompt}")
CLAUDE = ("--allowedTools=Bash,Edit,Read",)
UNATTENDED = ("--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable")
AIDER = ("--message", "{prompt}", *UNATTENDED, "--auto-test", "--test-cmd", TEST_COMMAND, FILE)
PROGRAMS = (
    Program(
        "opencode",
        "opencode-ai",
        "1.18.33",
        ("run", "{prompt}"),
        ("run", "--continue", "{prompt}"),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Program("codex", "@openai/codex", "0.171.0", ("exec", *CODEX), ("exec", "resume", "--last", *CODEX)),
    Program(
        "claude-code",
        "@anthropic-ai/claude-code",
        "2.1.197",
        ("-p", "{prompt}", *CLAUDE),
        ("--continue", "-p", "{prompt}", *CLAUDE),
        {"DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"},
    ),
    Program("pi", "@mariozechner/pi-coding-agent", "0.73.1", ("-p", "{prompt}"), ("--continue", "-p", "{prompt}"), {"PI_OFFLINE": "1"}),
    Program("aider", "aider-chat", "0.86.2", AIDER, ("--restore-chat-history", *AIDER)),
)
SDKS = (Sdk("openai-chat", "openai"), Sdk("openai-responses", "openai"), Sdk("anthropic", "anthropic"))
Client = Program | Sdk
CLIENTS: Mapping[str, Client] = {each.name: each for each in (*PROGRAMS, *SDKS)}


def environment(home: Path, binaries: Path | None) -> dict[str, str]:
    """What a client sees of this machine: a home of its own, where commands are, and proxies that lead nowhere but for loopback."""
    paths = [*([str(binaries)] if binaries else []), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    nowhere = {name: "http://127.0.0.1:9" for each in ("http_proxy", "https_proxy", "all_proxy") for name in (each, each.upper())}
    local = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
    return {"HOME": str(home), "PATH": os.pathsep.join(paths), "TERM": "dumb", "LANG": "C.UTF-8", "NO_COLOR": "1", **nowhere, **local}


def install(clients: Path) -> None:
    """Install the programs' pinned versions below the folder, from the registries that npm and pip are set up for."""
    clients.mkdir(parents=True, exist_ok=True)
    packages = [f"{each.package}@{each.version}" for each in PROGRAMS if not each.is_python]
    (aider,) = (f"{each.package}=={each.version}" for each in PROGRAMS if each.is_python)
    _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(clients), *packages)
    _run(sys.executable, "-m", "venv", str(clients / "aider"))
    _run(str(clients / "aider" / "bin" / "python"), "-m", "pip", "install", "--quiet", aider)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
