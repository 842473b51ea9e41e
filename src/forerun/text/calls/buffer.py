"""Text that arrives in pieces, parsed by generators: each yields the answer's pieces, and `None` to ask for more text.

What a generator decides depends on the text alone, never on where it was cut. Knows no call format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from forerun.text.partial_match import partial_overlap
from forerun.values import CallEnd, CallStart, Content, Piece

T = TypeVar("T")
Pieces = Generator[Piece | None, None, T]
TagPattern = Sequence[str | re.Pattern[str]]  # parts, white space allowed before each; a regex also matches prefixes of its matches

NAME = re.compile(r"[^<>{}\s\"]+")
STRING = re.compile(r'"(?:[^"\\\n]+"?)?')


@dataclass(slots=True)
class TextBuffer:
    """text: what has arrived and is not yet parsed. is_ended: no more will come; is_cut: though the model had not ended the answer.
    call_id: the id of the answer's i-th call.
    """

    call_id: Callable[[int], str]
    text: str = ""
    is_ended: bool = False
    is_cut: bool = False
    num_calls: int = field(default=0, init=False)

    def take(self, length: int) -> str:
        """Remove the first `length` characters and return them."""
        taken, self.text = self.text[:length], self.text[length:]
        return taken

    def start_call(self, name: str) -> CallStart:
        """The first piece of the next call."""
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self.call_id(self.num_calls - 1), name)

    def end_call(self, is_complete: bool) -> CallEnd:
        """The last piece of the current call."""
        return CallEnd(self.num_calls - 1, is_complete)


@dataclass(frozen=True, slots=True)
class TagMatch:
    """A pattern that the text starts with. index: which of those tried. length: of the match. groups: what its regexes matched."""

    index: int
    length: int
    groups: tuple[str, ...]


def content(text: str) -> Pieces[None]:
    """The text as content, if there is any."""
    if text:
        yield Content(text)


def content_until(buffer: TextBuffer, tags: Sequence[str]) -> Pieces[str]:
    """Content up to the first tag, which is removed too. Returns the tag with the white space before it; "" at the end of the answer."""
    while True:
        start, tag = min(((buffer.text.find(tag), tag) for tag in tags if tag in buffer.text), default=(-1, ""))
        if tag:
            length = len(buffer.text[:start].rstrip())
            yield from content(buffer.take(length))
            return buffer.take(start - length + len(tag))
        if buffer.is_ended:
            yield from content(buffer.take(len(buffer.text)) if buffer.num_calls == 0 or buffer.text.strip() else "")
            return ""
        yield from content(buffer.take(len(buffer.text) - _num_held(buffer.text, tags)))
        yield None


def match_tag(buffer: TextBuffer, patterns: Sequence[TagPattern]) -> Pieces[TagMatch | None]:
    """The first pattern that the text starts with; None if there is none. Removes nothing."""
    while (match := match_now(buffer.text, patterns, buffer.is_ended)) is None:
        yield None
    return match or None


def match_now(text: str, patterns: Sequence[TagPattern], is_ended: bool) -> TagMatch | Literal[False] | None:
    """The first pattern that the text starts with. None: more text decides. False: there is none."""
    for index, pattern in enumerate(patterns):
        match = _match(text, index, pattern)
        if match is None and not is_ended:
            return None
        if isinstance(match, TagMatch):
            return match
    return False


def _num_held(text: str, tags: Sequence[str]) -> int:
    """Characters at the end that may belong to a tag or to the white space before one."""
    length = partial_overlap(text, tags)
    before = text[: len(text) - length]
    return length + len(before) - len(before.rstrip())


def _match(text: str, index: int, pattern: TagPattern) -> TagMatch | Literal[False] | None:
    """None: more text may make it match. False: it cannot match."""
    stop, groups = 0, []
    for part in pattern:
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
        groups.append(match.group())
        stop = match.end()
    return TagMatch(index, stop, tuple(groups))
