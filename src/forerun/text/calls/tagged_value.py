"""Where the value of an argument between tags ends. Knows a format's tags and the tools; nothing of pieces.

A value may hold the format's own tags, for example a file about it, and a model may leave out a closing tag. So, for the whole answer:

1. A value ends at the first closing tag that belongs to it: another argument, the end of the call or another call follows it, and it does
   not close an argument of a call that is written inside the value.
2. Only if the answer ends by itself without one, the closing tag is missing. Then the value ends where its call does, or another argument
   of its tool begins; else where another call of a tool begins; else at the first closing tag of a call inside it. This is decided at once
   where a call of a tool starts directly behind the end of the value's call, and where calls do not stop: so many are not in a value.

Until then, the text from the first possible end on is held back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from forerun.text.calls.buffer import NAME, TagPattern, TextBuffer, match_now
from forerun.text.calls.tools import Tools
from forerun.text.partial_match import partial_overlap

MAX_INNER_CALLS = 8  # open ones inside a value, or any behind its call's end


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """Tags of a format.

    heads: the tag that opens a call (after any but the first the name must be a tool's), and patterns of what follows up to the name.
    is_followed: the last tag of a head is not part of it. opening: opens an argument. naming: between its name and value. closing: after a
    value. ends: tags that end a call. is_padded: a line break stands on either side of a value.
    """

    heads: tuple[tuple[str, tuple[TagPattern, ...]], ...]
    is_followed: bool
    opening: str
    naming: tuple[str, ...]
    closing: str
    ends: tuple[tuple[str, ...], ...]
    is_padded: bool

    @property
    def opens(self) -> tuple[str, ...]:
        """The tags that open a call."""
        return tuple(tag for tag, _ in self.heads)

    @property
    def after_value(self) -> tuple[str, ...]:
        """The tags that may follow a value's closing tag."""
        return (self.opening, *(end[0] for end in self.ends), *self.opens)


class Guess(IntEnum):
    """Where a value without a closing tag may end, the surest first."""

    CALL_END = 0
    NEXT_CALL = 1
    INNER_VALUE_END = 2


class TaggedValue:
    """Finds the end of the value that the buffer's text starts with. is_argument: whether a name is another argument's of the same call.

    is_closed: the end is found; what follows the value starts the buffer's text.
    """

    def __init__(self, tags: TaggedFormat, tools: Tools, is_argument: Callable[[str], bool]) -> None:
        self._tags, self._tools, self._is_argument = tags, tools, is_argument
        self._literals = (tags.closing, *tags.after_value)
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._literals, key=len, reverse=True))))
        self._scanned, self._is_at_start = 0, True
        self._guesses: dict[Guess, tuple[int, int]] = {}
        self._end: tuple[int, int] | None = None
        self._num_calls = self._num_arguments = 0  # open ones, inside the value
        self._num_behind = 0  # calls behind the end of the value's call, if that is it
        self._is_behind_tag = False  # of an inner call: an argument may begin
        self._is_behind_end = False  # of the value's call

    @property
    def is_closed(self) -> bool:
        return self._end is not None

    def take(self, buffer: TextBuffer) -> str:
        """Remove and return what certainly belongs to the value."""
        self._scan(buffer.text, buffer.is_ended)
        if buffer.is_ended and not buffer.is_cut and self._end is None and self._guesses:
            self._end = self._guesses[min(self._guesses)]
        taken = buffer.take(self._num_certain(buffer))
        self._is_at_start &= not taken
        self._scanned -= len(taken)
        self._guesses = {guess: (start - len(taken), stop - len(taken)) for guess, (start, stop) in self._guesses.items()}
        if self._end:
            buffer.take(self._end[1] - len(taken))
        return taken

    def _num_certain(self, buffer: TextBuffer) -> int:
        if buffer.is_ended and self._end is None:
            return len(buffer.text)
        start, stop = self._end or (
            min(self._scanned, *(start for start, _ in self._guesses.values())) if self._guesses else self._scanned,
            -1,
        )
        is_padded = self._tags.is_padded or start == stop or self._end is None
        return start - (is_padded and buffer.text[:start].endswith("\n"))

    def _scan(self, text: str, is_ended: bool) -> None:
        """Scan tag by tag, up to one that more text decides."""
        while self._end is None:
            tag = self._pattern.search(text, self._scanned)
            stop = tag.start() if tag else len(text) - partial_overlap(text, self._literals)
            if text[self._scanned : stop].strip():
                self._is_behind_tag = self._is_behind_end = False
            self._scanned = max(stop, self._scanned)
            length = self._tag(text, stop, tag.group(), is_ended) if tag else None
            if length is None:
                return
            self._scanned += length

    def _tag(self, text: str, start: int, tag: str, is_ended: bool) -> int | None:
        """Note the tag that stands at `start`. Returns how many characters it has; None if more text decides what it is."""
        if tag == self._tags.closing:
            return self._close(text, start, is_ended)
        if tag == self._tags.opening:
            return self._open(text, start, is_ended)
        if tag in self._tags.opens:
            return self._call(text, start, tag, is_ended)
        return self._call_end(text, start, is_ended)

    def _close(self, text: str, start: int, is_ended: bool) -> int | None:
        stop = start + len(self._tags.closing)
        rest = text[stop:].lstrip()
        if not rest.startswith(self._tags.after_value):
            if not any(tag.startswith(rest) for tag in self._tags.after_value):
                return stop - start
            if not is_ended:
                return None
        if self._num_arguments == 0:
            self._end = start, stop
        else:
            self._guesses.setdefault(Guess.INNER_VALUE_END, (start, stop))
            self._num_arguments -= 1
        self._is_behind_tag = True
        return stop - start

    def _open(self, text: str, start: int, is_ended: bool) -> int | None:
        match = match_now(text[start:], [(self._tags.opening, NAME, *self._tags.naming)], is_ended)
        if not match:
            return None if match is None else len(self._tags.opening)
        if not self._num_calls and not self._is_behind_tag and self._is_line_start(text, start) and self._is_argument(match.groups[0]):
            self._guesses.setdefault(Guess.CALL_END, (start, start))
            self._is_behind_tag = True
        if self._is_behind_tag:
            self._num_arguments = min(self._num_arguments, self._num_calls) + 1
        self._is_behind_tag = False
        return match.length

    def _call(self, text: str, start: int, tag: str, is_ended: bool) -> int | None:
        patterns = dict(self._tags.heads)[tag]
        match = match_now(text[start + len(tag) :], patterns, is_ended)
        if not match:
            return None if match is None else len(tag)
        if match.groups[0] in self._tools and self._is_line_start(text, start):
            self._tool_call(start)
        self._num_calls += 1
        self._is_behind_tag = True
        return len(tag) + match.length - len(str(patterns[match.index][-1])) * self._tags.is_followed

    def _tool_call(self, start: int) -> None:
        """Note a call that may be one, at the start of a line."""
        end, next_call = (self._guesses.get(guess) for guess in (Guess.CALL_END, Guess.NEXT_CALL))
        self._num_behind += end is not None
        if end and (self._is_behind_end or self._num_behind > MAX_INNER_CALLS):
            self._end = end
        elif next_call and self._num_calls > MAX_INNER_CALLS:
            self._end = next_call
        elif not self._num_calls:
            self._guesses.setdefault(Guess.NEXT_CALL, (start, start))

    def _call_end(self, text: str, start: int, is_ended: bool) -> int | None:
        match = match_now(text[start:], self._tags.ends, is_ended)
        if not match:
            return None
        is_whole = self._tags.ends[match.index][-1] == self._tags.ends[0][-1]
        if not self._num_calls and (is_whole or self._is_line_start(text, start)):
            self._guesses.setdefault(Guess.CALL_END, (start, start))
        self._is_behind_tag, self._is_behind_end = False, not self._num_calls
        self._num_calls = max(0, self._num_calls - 1)
        self._num_arguments = min(self._num_arguments, self._num_calls)
        return match.length

    def _is_line_start(self, text: str, start: int) -> bool:
        """Whether a tag may stand here in this format, if it is none of the value's text."""
        return not self._tags.is_padded or (text[start - 1] == "\n" if start else self._is_at_start)
