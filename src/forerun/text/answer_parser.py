"""Incremental parser of an answer into reasoning, content and tool calls, in the format of the model's chat template.

Pure: the result depends on the text alone, not on how it is cut. Knows nothing of tokens or of how any of it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from forerun.text.calls.buffer import Pieces, TextBuffer
from forerun.text.calls.call_format import CallFormat, parse_calls
from forerun.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4
from forerun.text.calls.json_calls import Hermes, Llama
from forerun.text.calls.tagged import GLM, QWEN
from forerun.text.calls.tools import Tools
from forerun.text.reasoning import CHANNEL, THINK, ReasoningSplitter, ReasoningTags
from forerun.values import CallStart, Content, Piece, Reasoning, TokenLogprob

# A string that a template's source has if it writes calls in this format; the first that it has decides.
CALL_FORMATS: tuple[tuple[str, CallFormat], ...] = (
    ("<|tool_call>", GEMMA_4),
    ("<start_function_call>", FUNCTION_GEMMA),
    ("<function=", QWEN),
    ("<arg_key>", GLM),
    ("<tool_call>", Hermes()),
    ('"parameters": ', Llama()),
)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes answers. reasoning None: no reasoning is split off. calls None: the template has no tool calls."""

    reasoning: ReasoningTags | None
    calls: CallFormat | None


PLAIN = AnswerFormat(None, None)
# The logprobs of the tokens in characters [start, stop) of the answer, which are content.
LogprobsOf = Callable[[int, int], tuple[TokenLogprob, ...]]


def detect_answer_format(source: str) -> AnswerFormat:
    """The answer format of a chat template with this source."""
    calls = next((calls for tag, calls in CALL_FORMATS if tag in source), None)
    return AnswerFormat(CHANNEL if CHANNEL.close in source else THINK, calls)


class AnswerParser:
    """Parses one answer. tools: those of the request; without any nothing is parsed as a call. call_id: the id of the i-th call.
    opens_reasoning: the prompt ends inside the reasoning. logprobs_of: called for every piece of content, in order.
    """

    def __init__(
        self, answer_format: AnswerFormat, tools: Tools, call_id: Callable[[int], str], *, opens_reasoning: bool, logprobs_of: LogprobsOf
    ) -> None:
        reasoning, calls = answer_format.reasoning, answer_format.calls if tools else None
        self._splitter = ReasoningSplitter(reasoning, opens_reasoning=opens_reasoning, calls=calls, tools=tools) if reasoning else None
        self._buffer = TextBuffer(call_id)
        self._pieces = parse_calls(calls, self._buffer, tools) if calls else _content(self._buffer)
        self._logprobs_of, self._num_pushed = logprobs_of, 0
        self.has_calls = False

    def push(self, text: str) -> list[Piece]:
        """The pieces that more text makes certain."""
        self._num_pushed += len(text)
        split = self._splitter.push(text) if self._splitter else [("content", text)]
        return [piece for part, more in split for piece in self._take(part, more)]

    def flush(self, *, is_cut: bool = False) -> list[Piece]:
        """The rest of an answer that has ended. is_cut: not by the model, so a missing tag may be one that it had yet to write. Nothing may
        be pushed afterwards.
        """
        self._buffer.is_cut = is_cut
        split = self._splitter.flush(is_cut=is_cut) if self._splitter else []
        pieces = [piece for part, more in split for piece in self._take(part, more)]
        self._buffer.is_ended = True
        return pieces + list(self._run())

    @property
    def reasoning_chars(self) -> int:
        """Characters of the answer's reasoning, tags included; 0 if it has none."""
        return self._splitter.reasoning_chars if self._splitter else 0

    def _take(self, part: str, text: str) -> Iterator[Piece]:
        if part == "reasoning":
            yield Reasoning(text)
        else:
            self._buffer.text += text
            yield from self._run()

    def _run(self) -> Iterator[Piece]:
        """Resume the parser until it needs more text."""
        for piece in self._pieces:
            if piece is None:
                return
            self.has_calls |= isinstance(piece, CallStart)
            yield self._with_logprobs(piece) if isinstance(piece, Content) else piece

    def _with_logprobs(self, content: Content) -> Content:
        """The content that was just parsed: it ends where the buffer now starts."""
        stop = self._num_pushed - len(self._buffer.text)
        return replace(content, logprobs=self._logprobs_of(stop - len(content.text), stop))


def _content(buffer: TextBuffer) -> Pieces[None]:
    while buffer.text or not buffer.is_ended:
        yield Content(buffer.take(len(buffer.text))) if buffer.text else None
