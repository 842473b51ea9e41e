"""Splitting an answer that arrives in pieces into its reasoning and its content. Knows nothing of tokens or of how either is sent.

An answer is reasoning up to the first </think> if the prompt left it inside <think>, or if it begins with <think> itself. The tags and
the line breaks that follow them belong to neither part: a chat template writes them anew when the client sends the answer back.
"""

from __future__ import annotations

from typing import Literal

Part = Literal["reasoning", "content"]
Piece = tuple[Part, str]

OPEN, CLOSE = "<think>", "</think>"


class Splitter:
    """Splits one answer. opens_reasoning: the prompt ends inside <think>."""

    def __init__(self, opens_reasoning: bool) -> None:
        self._part: Part | None = "reasoning" if opens_reasoning else None
        self._is_after_tag = opens_reasoning
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain after more text; none of them is empty."""
        self._held += text
        pieces: list[Piece] = []
        if self._part is None:
            self._begin()
        if self._part == "reasoning":
            pieces += self._reason()
        if self._part == "content":
            pieces += self._take("content", len(self._held))
        return pieces

    def flush(self) -> list[Piece]:
        """The rest of an answer that has ended."""
        return self._take(self._part or "content", len(self._held))

    def _begin(self) -> None:
        """Decide what the answer begins with, once enough of it is here."""
        if self._held.startswith(OPEN):
            self._enter("reasoning", self._held[len(OPEN) :])
        elif not OPEN.startswith(self._held):
            self._part = "content"

    def _reason(self) -> list[Piece]:
        stop = self._held.find(CLOSE)
        if stop < 0:
            return self._take("reasoning", len(self._held) - _begun(self._held))
        rest = self._held[stop + len(CLOSE) :]
        pieces = self._take("reasoning", stop)
        self._enter("content", rest)
        return pieces

    def _enter(self, part: Part, rest: str) -> None:
        self._part, self._held, self._is_after_tag = part, rest, True

    def _take(self, part: Part, length: int) -> list[Piece]:
        """The first `length` held characters, without the line breaks after a tag."""
        text, self._held = self._held[:length], self._held[length:]
        if self._is_after_tag:
            text = text.lstrip("\n")
            self._is_after_tag = not text
        return [(part, text)] if text else []


def _begun(text: str) -> int:
    """Length of the longest proper beginning of </think> that the text ends with."""
    return next(n for n in reversed(range(len(CLOSE))) if text.endswith(CLOSE[:n]))
