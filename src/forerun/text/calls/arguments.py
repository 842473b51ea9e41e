"""A JSON object in text that arrives in pieces: where it ends, and its text as a client can read it. Knows nothing of what is around it."""

from __future__ import annotations

import re

from forerun.text.calls.feed import Feed, Steps
from forerun.values import CallArguments

BETWEEN = re.compile(r"[\s\w+\-.,:]*")  # outside strings, brackets apart
INSIDE = re.compile(r'[^"\\\x00-\x1f]*')


class Scan:
    """Reads one object, bracket by bracket. is_done: it is closed. is_broken: what follows cannot be of any JSON."""

    def __init__(self) -> None:
        self.is_done, self.is_broken = False, False
        self._open: list[str] = []
        self._is_inside, self._is_escaped = False, False

    def push(self, text: str) -> tuple[int, str]:
        """Read on. Returns how many characters are the object's, and them as JSON: line breaks in strings are written as JSON has them."""
        stop, out = 0, []
        while stop < len(text) and not self.is_done and not self.is_broken:
            run = (INSIDE if self._is_inside else BETWEEN).match(text, stop) if not self._is_escaped else None
            plain = run.group() if run else ""
            out.append(plain)
            stop += len(plain)
            if stop < len(text):
                written = self._string(text[stop]) if self._is_inside else self._bracket(text[stop])
                out.append(written)
                stop += bool(written)
        return stop, "".join(out)

    def _string(self, char: str) -> str:
        if self._is_escaped or char == "\\":
            self._is_escaped = not self._is_escaped
            return char
        self._is_inside = char != '"'
        return char if char >= " " else f"\\u{ord(char):04x}"

    def _bracket(self, char: str) -> str:
        """The character, or nothing if it cannot stand here."""
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


def read_object(feed: Feed, end: str) -> Steps[bool]:
    """The object that the text begins with, as the call's arguments; whether it is whole. What cannot be JSON is given up to `end`."""
    scan, index = Scan(), feed.num_calls - 1
    while True:
        length, text = scan.push(feed.text)
        feed.take(length)
        if text:
            yield CallArguments(index, text)
        if scan.is_done or scan.is_broken or feed.is_ended:
            break
        yield None
    if not scan.is_broken:
        return scan.is_done
    return (yield from read_rest(feed, end))


def read_rest(feed: Feed, end: str) -> Steps[bool]:
    """What a malformed call still has, so that nothing is lost."""
    while end not in feed.text and not feed.is_ended:
        yield None
    start = feed.text.find(end)
    if rest := feed.take(start if start >= 0 else len(feed.text)):
        yield CallArguments(feed.num_calls - 1, rest)
    return False
