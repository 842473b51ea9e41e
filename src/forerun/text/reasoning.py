"""Splitting an answer that arrives in pieces into its reasoning and its content. Knows nothing of tokens or of how either is sent.

An answer is reasoning up to the first closing tag if the prompt left it inside, or if it begins with the opening tag itself. The tags and
the line breaks that follow them belong to neither part: a chat template writes them anew when the client sends the answer back.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from forerun.text.partial_match import partial_overlap

Part = Literal["reasoning", "content"]
Piece = tuple[Part, str]


class ReasoningTags(NamedTuple):
    """What stands before and behind reasoning."""

    open: str
    close: str


THINK = ReasoningTags("<think>", "</think>")
CHANNEL = ReasoningTags("<|channel>thought\n", "<channel|>")  # of Gemma 4


class ReasoningSplitter:
    """Splits one answer. opens_reasoning: the prompt ends inside the reasoning. reasoning_chars: characters of it so far, tags included."""

    def __init__(self, tags: ReasoningTags, *, opens_reasoning: bool) -> None:
        self._open, self._close = tags
        self._part: Part | None = "reasoning" if opens_reasoning else None
        self._is_after_tag = opens_reasoning
        self._held = ""
        self.reasoning_chars = 0

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain after more text; none of them is empty."""
        self._held += text
        self.reasoning_chars += len(text) if self._part != "content" else 0
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
        if self._part is None:
            self.reasoning_chars = 0
        return self._take(self._part or "content", len(self._held))

    def _begin(self) -> None:
        """Decide what the answer begins with, once enough of it is here."""
        if self._held.startswith(self._open):
            self._enter("reasoning", self._held[len(self._open) :])
        elif not self._open.startswith(self._held):
            self._part, self.reasoning_chars = "content", 0

    def _reason(self) -> list[Piece]:
        stop = self._held.find(self._close)
        if stop < 0:
            return self._take("reasoning", len(self._held) - partial_overlap(self._held, (self._close,)))
        rest = self._held[stop + len(self._close) :]
        self.reasoning_chars -= len(rest)
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
