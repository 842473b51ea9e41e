"""Incremental scan of a JSON object: where it ends, and its text as valid JSON. Knows nothing of what is around it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from forerun.text.calls.buffer import Pieces, TextBuffer
from forerun.values import CallArguments

BETWEEN = re.compile(r"[\s\w+\-.,:]*")  # outside strings, brackets apart
INSIDE = re.compile(r'[^"\\\x00-\x1f]*')


class JsonScanner:
    """Scans one object, bracket by bracket. is_done: it is closed. is_broken: what follows cannot be JSON."""

    def __init__(self) -> None:
        self.is_done, self.is_broken = False, False
        self._open: list[str] = []
        self._is_inside, self._is_escaped = False, False

    def push(self, text: str) -> tuple[int, str]:
        """Scan more text. Returns how many characters belong to the object, and these as JSON, control characters in strings escaped."""
        stop, out = 0, []
        while stop < len(text) and not self.is_done and not self.is_broken:
            run = (INSIDE if self._is_inside else BETWEEN).match(text, stop) if not self._is_escaped else None
            plain = run.group() if run else ""
            out.append(plain)
            stop += len(plain)
            if stop < len(text):
                char = self._string(text[stop]) if self._is_inside else self._bracket(text[stop])
                out.append(char)
                stop += bool(char)
        return stop, "".join(out)

    def _string(self, char: str) -> str:
        if self._is_escaped or char == "\\":
            self._is_escaped = not self._is_escaped
            return char
        self._is_inside = char != '"'
        return char if char >= " " else f"\\u{ord(char):04x}"

    def _bracket(self, char: str) -> str:
        """The character, or "" if it cannot stand here."""
        if char == '"':
            self._is_inside = True
        elif char in "{[":
            self._open.append("}" if char == "{" else "]")
        elif self._open and char == self._open[-1]:
            self._open.pop()
            self.is_done = not self._open
        else:
            self.is_broken = True
            return ""
        return char


def parse_object(buffer: TextBuffer, ends: Sequence[str]) -> Pieces[bool]:
    """The arguments: the object that the text starts with. Returns whether it is whole. A broken one is passed on up to one of `ends`."""
    scan, index = JsonScanner(), buffer.num_calls - 1
    while True:
        length, text = scan.push(buffer.text)
        buffer.take(length)
        if text:
            yield CallArguments(index, text)
        if scan.is_done or scan.is_broken or buffer.is_ended:
            break
        yield None
    if scan.is_broken:
        yield from parse_rest(buffer, ends)
    return scan.is_done


def parse_rest(buffer: TextBuffer, ends: Sequence[str]) -> Pieces[None]:
    """The rest of a malformed call up to one of `ends`, as arguments, so that nothing is lost."""
    while not (starts := [buffer.text.find(end) for end in ends if end in buffer.text]) and not buffer.is_ended:
        yield None
    rest = buffer.take(min(starts, default=len(buffer.text)))
    if rest.strip():
        yield CallArguments(buffer.num_calls - 1, rest)
