"""Incremental split of an answer into reasoning and content. Knows nothing of tokens or of how either is sent.

An answer is reasoning up to the first closing tag if the prompt ends inside the reasoning, or if the answer starts with the opening tag.
The tags and the line breaks after them belong to neither part: the chat template adds them when the client sends the answer back.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from forerun.text.partial_match import partial_overlap

Part = Literal["reasoning", "content"]
Split = tuple[Part, str]


class ReasoningTags(NamedTuple):
    """The tags around reasoning."""

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

    def push(self, text: str) -> list[Split]:
        """The parts that more text makes certain; none is empty."""
        self._held += text
        self.reasoning_chars += len(text) if self._part != "content" else 0
        splits: list[Split] = []
        if self._part is None:
            self._detect()
        if self._part == "reasoning":
            splits += self._reason()
        if self._part == "content":
            splits += self._take("content", len(self._held))
        return splits

    def flush(self) -> list[Split]:
        """The rest of an answer that has ended."""
        if self._part is None:
            self.reasoning_chars = 0
        return self._take(self._part or "content", len(self._held))

    def _detect(self) -> None:
        """Decide which part the answer starts with, once enough of it has arrived."""
        if self._held.startswith(self._open):
            self._enter("reasoning", self._held[len(self._open) :])
        elif not self._open.startswith(self._held):
            self._part, self.reasoning_chars = "content", 0

    def _reason(self) -> list[Split]:
        stop = self._held.find(self._close)
        if stop < 0:
            return self._take("reasoning", len(self._held) - partial_overlap(self._held, (self._close,)))
        rest = self._held[stop + len(self._close) :]
        self.reasoning_chars -= len(rest)
        splits = self._take("reasoning", stop)
        self._enter("content", rest)
        return splits

    def _enter(self, part: Part, rest: str) -> None:
        self._part, self._held, self._is_after_tag = part, rest, True

    def _take(self, part: Part, length: int) -> list[Split]:
        """The first `length` held characters, without line breaks after a tag."""
        text, self._held = self._held[:length], self._held[length:]
        if self._is_after_tag:
            text = text.lstrip("\n")
            self._is_after_tag = not text
        return [(part, text)] if text else []
