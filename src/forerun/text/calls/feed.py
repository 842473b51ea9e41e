"""Text that arrives in pieces, read by generators: `None` from one of them asks for more text, all else is given out.

What a generator decides depends on the text alone, never on where it was cut. Knows nothing of any way of writing calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from forerun.text.partial_match import partial_overlap
from forerun.values import CallEnd, CallStart, Content, Piece

T = TypeVar("T")
Steps = Generator[Piece | None, None, T]
Shape = Sequence[str | re.Pattern[str]]  # each of its parts after any white space; a pattern also matches its own beginnings

NAME = re.compile(r"[^<>{}\s\"]+")
STRING = re.compile(r'"(?:[^"\\\n]+"?)?')


@dataclass(slots=True)
class Feed:
    """The text that is here and not yet read. is_ended: no more will come. call_id: the id of the answer's i-th call."""

    call_id: Callable[[int], str]
    text: str = ""
    is_ended: bool = False
    num_calls: int = field(default=0, init=False)

    def take(self, length: int) -> str:
        """Read the first `length` characters."""
        taken, self.text = self.text[:length], self.text[length:]
        return taken

    def start_call(self, name: str) -> CallStart:
        """The next call's first piece."""
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self.call_id(self.num_calls - 1), name)

    def end_call(self, is_complete: bool) -> CallEnd:
        """The last piece of the call that was started last."""
        return CallEnd(self.num_calls - 1, is_complete)


@dataclass(frozen=True, slots=True)
class TagMatch:
    """A shape that the text begins with: which of several, its length, and what its patterns matched."""

    which: int
    length: int
    matched: tuple[str, ...]


def content(text: str) -> Steps[None]:
    """The text as content, if there is any."""
    if text:
        yield Content(text)


def content_until(feed: Feed, tags: Sequence[str]) -> Steps[str]:
    """Content up to the first of the marks, which is read too. Returns it with the white space before it; "" where the text ends."""
    while True:
        start, tag = min(((feed.text.find(tag), tag) for tag in tags if tag in feed.text), default=(-1, ""))
        if tag:
            length = len(feed.text[:start].rstrip())
            yield from content(feed.take(length))
            return feed.take(start - length + len(tag))
        if feed.is_ended:
            yield from content(feed.take(len(feed.text)) if feed.num_calls == 0 or feed.text.strip() else "")
            return ""
        yield from content(feed.take(len(feed.text) - _held(feed.text, tags)))
        yield None


def find(feed: Feed, shapes: Sequence[Shape]) -> Steps[TagMatch | None]:
    """The first of the shapes that the text begins with; None if it begins with none of them. Reads nothing."""
    for which, shape in enumerate(shapes):
        while (found := _match(feed.text, which, shape)) is None and not feed.is_ended:
            yield None
        if isinstance(found, TagMatch):
            return found
    return None


def _held(text: str, tags: Sequence[str]) -> int:
    """Characters at the end that may be of a mark, or white space before one."""
    length = partial_overlap(text, tags)
    before = text[: len(text) - length]
    return length + len(before) - len(before.rstrip())


def _match(text: str, which: int, shape: Shape) -> TagMatch | bool | None:
    """None: it may yet match; False: it cannot."""
    stop, matched = 0, []
    for part in shape:
        stop += len(text[stop:]) - len(text[stop:].lstrip())
        if isinstance(part, str):
            if not text.startswith(part, stop):
                return None if part.startswith(text[stop:]) else False
            stop += len(part)
            continue
        match = part.match(text, stop)
        if stop == len(text) or (match and match.end() == len(text)):
            return None
        if not match:
            return False
        matched.append(match.group())
        stop = match.end()
    return TagMatch(which, stop, tuple(matched))
