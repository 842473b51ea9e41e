"""An answer that arrives in pieces, taken apart into reasoning, content and calls of tools, as the model's chat template writes them.

Pure. The result is a function of the text, however it is cut. Knows nothing of tokens or of how any of it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from forerun.text.calls.feed import Feed, Steps
from forerun.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4
from forerun.text.calls.json_calls import Hermes, Llama
from forerun.text.calls.tagged import GLM, QWEN
from forerun.text.calls.tools import Tools
from forerun.text.reasoning import CHANNEL, THINK, ReasoningSplitter, ReasoningTags
from forerun.values import CallArguments, CallEnd, CallStart, Content, Piece, Reasoning, TokenLogprob


class Calls(Protocol):
    """A way of writing calls."""

    def read(self, feed: Feed, tools: Tools) -> Steps[None]:
        """The pieces of an answer's content and calls."""


# What a template that writes calls in a certain way has in its source; the first that is there decides.
CALLS: tuple[tuple[str, Calls], ...] = (
    ("<|tool_call>", GEMMA_4),
    ("<start_function_call>", FUNCTION_GEMMA),
    ("<function=", QWEN),
    ("<arg_key>", GLM),
    ("<tool_call>", Hermes()),
    ('"parameters": ', Llama()),
)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes. reasoning: None for text that is not taken apart; calls: None for a model that was not taught to call tools."""

    reasoning: ReasoningTags | None
    calls: Calls | None


PLAIN = AnswerFormat(None, None)
# What is told besides of the answer's characters from start to stop, which are content.
Tell = Callable[[int, int], tuple[TokenLogprob, ...]]


def answer_format_of(template: str) -> AnswerFormat:
    """The form that a chat template with this source writes answers in."""
    return AnswerFormat(CHANNEL if CHANNEL.close in template else THINK, next((calls for tag, calls in CALLS if tag in template), None))


class AnswerParser:
    """Takes one answer apart. tools: those of the request, none for no calls. opens_reasoning: the prompt ends inside the reasoning.
    tell: asked of every piece of content, in order.
    """

    def __init__(
        self, answer_format: AnswerFormat, tools: Tools, call_id: Callable[[int], str], *, opens_reasoning: bool, tell: Tell
    ) -> None:
        self._splitter = ReasoningSplitter(answer_format.reasoning, opens_reasoning=opens_reasoning) if answer_format.reasoning else None
        self._feed = Feed(call_id)
        self._steps = answer_format.calls.read(self._feed, tools) if answer_format.calls and tools else _content(self._feed)
        self._tell, self._num_pushed = tell, 0
        self.has_calls, self._arguments = False, ""

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain after more text."""
        self._num_pushed += len(text)
        split = self._splitter.push(text) if self._splitter else [("content", text)]
        return [piece for part, more in split for piece in self._take(part, more)]

    def flush(self) -> list[Piece]:
        """The rest of an answer that has ended. Nothing may be pushed afterwards."""
        split = self._splitter.flush() if self._splitter else []
        pieces = [piece for part, more in split for piece in self._take(part, more)]
        self._feed.is_ended = True
        return pieces + list(self._run())

    @property
    def reasoning_chars(self) -> int:
        """Characters of the answer's reasoning, tags included; 0 if it has none."""
        return self._splitter.reasoning_chars if self._splitter else 0

    def _take(self, part: str, text: str) -> Iterator[Piece]:
        if part == "reasoning":
            yield Reasoning(text)
        else:
            self._feed.text += text
            yield from self._run()

    def _run(self) -> Iterator[Piece]:
        """Let the reader go on until it asks for more text."""
        for piece in self._steps:
            if piece is None:
                return
            yield self._checked(piece)

    def _checked(self, piece: Piece) -> Piece:
        match piece:
            case Content():
                return self._told(piece)
            case CallStart():
                self.has_calls, self._arguments = True, ""
            case CallArguments(_, text):
                self._arguments += text
            case CallEnd(is_complete=True):
                return replace(piece, is_complete=_is_json(self._arguments))
        return piece

    def _told(self, content: Content) -> Content:
        """The content that was just read, which is the last part of what was pushed and is not in the feed any more."""
        stop = self._num_pushed - len(self._feed.text)
        return replace(content, logprobs=self._tell(stop - len(content.text), stop))


def _is_json(text: str) -> bool:
    """Brackets may match where what is between them is of no JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _content(feed: Feed) -> Steps[None]:
    while feed.text or not feed.is_ended:
        yield Content(feed.take(len(feed.text))) if feed.text else None
