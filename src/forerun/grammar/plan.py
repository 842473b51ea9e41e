"""What an answer's grammar is made of: its reasoning, what must follow it, the calls that it may open. Values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forerun.grammar.program import Program
from forerun.grammar.vocabulary import Vocabulary


class Trigger(NamedTuple):
    """A text that opens a call. program: of the rest of the call, of which `given` stands already when the text does. is_first: only
    where the text, or what follows another call, begins.
    """

    text: bytes
    program: Program
    given: bytes = b""
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningRule:
    """How an answer reasons. open, close: the tags. is_open: the prompt opened it. may_open: the answer may, by open_ids.
    budget_tokens: after so many it is closed by `closing`, within a line or at its start; None for no limit.
    """

    open: bytes
    close: bytes
    is_open: bool
    may_open: bool
    open_ids: tuple[int, ...]
    budget_tokens: int | None
    closing: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules for one answer. reasoning None: there is none. body: what the answer is after it, None for free text. triggers: calls that
    free text may open, held to their programs. opens: texts that open calls. num_calls: of calls at most, None for no limit.
    """

    vocabulary: Vocabulary
    reasoning: ReasoningRule | None
    body: Program | None
    triggers: tuple[Trigger, ...]
    opens: tuple[bytes, ...]
    num_calls: int | None
