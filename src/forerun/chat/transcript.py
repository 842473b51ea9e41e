"""The messages of a conversation, and, if it has a name, the file that stores them. Knows nothing of who answers.

The server stores the model's state of a conversation, the client its messages. A named conversation is resumed by sending them again: the
server then reuses their state.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun import small_files
from forerun.errors import ConfigError, ForerunError

NAME = re.compile(r"[\w-][\w.-]{0,99}")


@dataclass
class Transcript:
    """messages: in the chat dialect. name "": nothing is saved. folder: of the files of named conversations."""

    folder: Path
    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, name: str) -> Transcript:
        """The conversation of that name, empty if new. Raises ConfigError (the name), ForerunError (the file)."""
        if name and not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be the name of a session", hint="letters, digits, '.', '-' and '_', 100 at most")
        transcript = cls(folder, name)
        if name and transcript.file.exists():
            transcript.messages = _read(transcript.file)
        return transcript

    @property
    def file(self) -> Path:
        """The file that stores it, if it has a name."""
        return self.folder / f"{self.name}.json"

    def add(self, *messages: dict[str, Any]) -> None:
        """Append messages, and save them if there is a name. Raises ForerunError (the file cannot be written)."""
        self.messages += messages
        if self.name:
            self._write()

    def _write(self) -> None:
        try:
            small_files.put(self.file, json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1))
        except OSError as error:
            raise ForerunError(f"cannot save the session to {self.file}: {error.strerror}", hint="leave --session out") from error


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForerunError(f"cannot read the session in {file}: {error}", hint="remove the file to start over") from error
    if not isinstance(messages, list):
        raise ForerunError(f"{file} holds no list of messages", hint="remove the file to start over")
    return messages
