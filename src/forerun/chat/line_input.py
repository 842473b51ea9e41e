"""Typed input: messages of one line or several, and commands. Knows nothing of where they go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HISTORY_LINES = 1000
FENCE = '"""'


def read_message(read_line: Callable[[str], str]) -> str:
    """The next message that is not blank. `read_line` is called with a prompt and raises EOFError at the end of the input, as this does.

    A line that ends with a backslash continues in the next one. A line that starts with three double quotes opens a message that runs up to
    the line that ends with three.
    """
    while not (line := read_line("> ")).strip():
        pass
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE), read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(read_line(". "))
    return "\n".join(lines)


def _fenced(first: str, read_line: Callable[[str], str]) -> str:
    lines = [first] if first else []
    while not (lines and lines[-1].rstrip().endswith(FENCE)):
        lines.append(read_line(". "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")


def keep_history(file: Path) -> None:
    """Enable line editing and a history file where stdin is a terminal and Python has readline."""
    if not sys.stdin.isatty():
        return
    try:
        import readline
    except ImportError:  # Python was built without it: plain lines
        return
    import atexit

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch(mode=0o600)
    readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    atexit.register(readline.write_history_file, file)
