"""Incremental split of an answer into reasoning and content. Knows nothing of tokens or of how either is sent.

An answer is reasoning up to the first closing tag if the prompt ends inside the reasoning, or if the answer starts with the opening tag.
The tags and the line breaks after them belong to neither part: the chat template adds them when the client sends the answer back.

A model may call a tool and leave its reasoning open. So calls of declared tools that end the answer are content, though no closing tag is
before them; one may be after them, with blank text around it, or inside an argument. Calls with anything else after them, text, reasoning
or other calls, are reasoning: what the model thought of, or an example in a fence. From a call's opening tag on, all is held back until
this is decided.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from forerun.text.calls.call_format import CallFormat
from forerun.text.calls.tools import Tools
from forerun.text.calls.trial import CallTrial
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
    """Splits one answer. opens_reasoning: the prompt ends inside the reasoning. calls: the format of calls, None if there can be none.
    reasoning_chars: characters of the reasoning so far, tags included.
    """

    def __init__(self, tags: ReasoningTags, *, opens_reasoning: bool, calls: CallFormat | None, tools: Tools) -> None:
        self._open, self._close = tags
        self._part: Part | None = "reasoning" if opens_reasoning else None
        self._is_after_tag = opens_reasoning
        self._held = ""
        self._calls, self._tools = calls, tools
        self._trial: CallTrial | None = None  # of all that is held
        self.reasoning_chars = 0

    def push(self, text: str) -> list[Split]:
        """The parts that more text makes certain; none is empty."""
        self._held += text
        self.reasoning_chars += len(text) if self._part != "content" else 0
        splits: list[Split] = []
        if self._part is None:
            self._detect()
        if self._trial:
            self._trial.push(text)
        if self._part == "reasoning":
            splits += self._reason()
        if self._part == "content":
            splits += self._take("content", len(self._held))
        return splits

    def flush(self, *, is_cut: bool) -> list[Split]:
        """The rest of an answer that has ended. is_cut: not by the model."""
        if self._part is None:
            self.reasoning_chars = 0
        splits: list[Split] = []
        while self._trial:
            self._trial.end(is_cut=is_cut)
            if self._trial.rejected_at is None:
                self.reasoning_chars -= len(self._held)
                return [*splits, ("content", self._trial.calls)]
            splits += self._reason()
        return splits + self._take(self._part or "content", len(self._held))

    def _detect(self) -> None:
        """Decide which part the answer starts with, once enough of it has arrived."""
        if self._held.startswith(self._open):
            self._enter("reasoning", self._held[len(self._open) :])
        elif not self._open.startswith(self._held):
            self._part, self.reasoning_chars = "content", 0

    def _reason(self) -> list[Split]:
        """What is certain of the reasoning, up to its closing tag or to what may be a call."""
        splits: list[Split] = []
        while self._trial is None or self._trial.rejected_at is not None:
            tried, self._trial = (self._trial.rejected_at or 0) if self._trial else 0, None
            stop, opens = self._held.find(self._close), self._calls.opens if self._calls else ()
            start = min((each for tag in opens if (each := self._held.find(tag, tried)) >= 0), default=-1)
            if stop >= 0 and not 0 <= start < stop:
                return splits + self._finish(stop)
            if start < 0:
                return splits + self._take("reasoning", len(self._held) - partial_overlap(self._held, (self._close, *opens)))
            splits += self._take("reasoning", start)
            assert self._calls  # its tag was found
            self._trial = CallTrial(self._calls, self._tools, self._close)
            self._trial.push(self._held)
        return splits

    def _finish(self, stop: int) -> list[Split]:
        """The rest of the reasoning, before the closing tag at `stop`."""
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
