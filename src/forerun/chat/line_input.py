"""Typed input: messages of one line or several, and commands. Knows nothing of where they go."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

HISTORY_LINES = 10_000
FENCE = '"""'
ReadLine = Callable[[str], str]


def read_message(read_line: ReadLine) -> str:
    """The next message that is not blank. `read_line` is called with a prompt and raises EOFError at the end of the input, as this does.

    A line that ends with a backslash continues in the next one. A line that starts with three double quotes opens a message that runs up to
    the line that ends with three. A paste of several lines is a message as it is.
    """
    while not (line := read_line("> ")).strip():
        pass
    if "\n" in line.strip("\n"):
        return line.strip("\n")
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE), read_line)
    lines = [line.strip("\n")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(read_line(". "))
    return "\n".join(lines)


def _fenced(first: str, read_line: ReadLine) -> str:
    lines = [first] if first else []
    while not (lines and lines[-1].rstrip().endswith(FENCE)):
        lines.append(read_line(". "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")


def message_reader(history: Path, on_empty_interrupt: Callable[[], object]) -> Callable[[], str]:
    """A function that returns the next message, "" at the end of the input.

    On a terminal, lines can be edited and come back from the file `history`, and Ctrl-C starts the message over; `on_empty_interrupt` is
    called if there was none. Elsewhere lines are read as they are, and Ctrl-C ends the input.
    """
    if sys.stdin.isatty() and sys.stdout.isatty():
        return _terminal_reader(history, on_empty_interrupt)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return _plain_reader


def _plain_reader() -> str:
    try:
        return read_message(input)
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")
        return ""


def _terminal_reader(history: Path, on_empty_interrupt: Callable[[], object]) -> Callable[[], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import HTML
    from prompt_toolkit.history import FileHistory

    class PrintableHistory(FileHistory):
        def store_string(self, string: str) -> None:
            super().store_string(printable(string))

    _shorten(history)
    session = PromptSession[str](history=PrintableHistory(history))

    def read_line(prompt: str) -> str:
        return printable(session.prompt(HTML(f"<b>{prompt.replace('>', '&gt;')}</b>")))

    def read() -> str:
        while True:
            try:
                return read_message(read_line)
            except KeyboardInterrupt:
                if not session.default_buffer.text:
                    on_empty_interrupt()
            except EOFError:
                return ""

    return read


def printable(text: str) -> str:
    """The text with U+FFFD for what the terminal sent that is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _shorten(history: Path) -> None:
    """Create the history file, or leave its last lines. It is the user's alone."""
    history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    history.touch(mode=0o600)
    lines = history.read_bytes().splitlines(keepends=True)
    if len(lines) > HISTORY_LINES:
        history.write_bytes(b"".join(lines[-HISTORY_LINES:]))
