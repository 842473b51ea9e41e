"""Decides whether text inside reasoning is calls. Knows call formats and tools; nothing of what happens with the text."""

from __future__ import annotations

from forerun.text.calls.buffer import TextBuffer
from forerun.text.calls.call_format import CallFormat, parse_calls
from forerun.text.calls.tools import Tools
from forerun.values import CallEnd, CallStart, Content, Piece


class CallTrial:
    """Text from a call's opening tag on: is all of it whole calls of declared tools, and behind them nothing but `close`, once at most?

    rejected_at: the position at which it certainly is not, at least 1; None so far. What is before it need not be tried again.
    """

    def __init__(self, call_format: CallFormat, tools: Tools, close: str) -> None:
        self.rejected_at: int | None = None
        self._buffer = TextBuffer(lambda _: "")
        self._pieces = parse_calls(call_format, self._buffer, tools)
        self._opens, self._tools, self._close = call_format.opens, tools, close
        self._text = ""
        self._behind: int | None = None  # where what is behind the calls starts

    @property
    def calls(self) -> str:
        """The text of the calls, if they are that: call at the end, unless it is rejected."""
        return self._text[: self._behind]

    def push(self, text: str) -> None:
        """Add text."""
        self._text += text
        self._buffer.text += text
        self._run()

    def end(self, *, is_cut: bool) -> None:
        """The answer has ended; is_cut: not by the model."""
        self._buffer.is_ended, self._buffer.is_cut = True, is_cut
        self._run()

    def _run(self) -> None:
        while self.rejected_at is None and self._behind is None and (piece := next(self._pieces, None)):
            self._note(piece)
        if self.rejected_at is None and self._behind is not None and not self._is_closing(self._text[self._behind :].strip()):
            self.rejected_at = max(1, self._behind)

    def _note(self, piece: Piece) -> None:
        position = len(self._text) - len(self._buffer.text)
        match piece:
            case CallStart(_, _, name) if name not in self._tools:
                self.rejected_at = 1
            case CallEnd(_, is_complete) if not is_complete or self._is_draft(self._text[:position]):
                self.rejected_at = position
            case Content(text):
                self._behind = position - len(text)

    def _is_draft(self, text: str) -> bool:
        """Whether a call that was begun before the closing tag was swallowed together with another behind it."""
        _, _, behind = text.partition(self._close)
        return any(tag in behind for tag in self._opens)

    def _is_closing(self, text: str) -> bool:
        """Whether the text behind the calls is the closing tag, or may become it."""
        return text == self._close or (self._close.startswith(text) and not self._buffer.is_ended)
