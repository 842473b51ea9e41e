"""The state of an answer: reasoning, then a body that a grammar holds, or free text with calls that one holds. The one owner of all three.

What ends the reasoning is what text/reasoning.py takes for its end: the closing tag's text, whatever tokens spell it. A grammar starts at
the byte behind it. Stop tokens never reach llguidance, which does not count them when it rolls back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.grammar.plan import Plan, ReasoningRule, Trigger
from forerun.grammar.program import GrammarState, Program
from forerun.grammar.vocabulary import Occurrence

Mask = NDArray[np.bool_]
BETWEEN = b" \n\t;"  # calls
Phase = Literal["start", "reasoning", "forced", "body", "free", "call", "ended"]


class State(NamedTuple):
    """After some tokens. tail: the last bytes, as many as a tag may have before its end. num_reasoning: its tokens. queue: tokens that come
    next, if any must. is_start: the tail is all of the free text so far. held: the grammar's state in the phases "body" and "call", and in
    "start" where a body may begin.
    """

    phase: Phase
    tail: bytes = b""
    num_reasoning: int = 0
    queue: tuple[int, ...] = ()
    held: GrammarState | None = None
    num_calls: int = 0
    is_start: bool = True


class Step(NamedTuple):
    """A token's step. before: the state that it was accepted in; fed: what consumed it."""

    before: State
    fed: GrammarState | None


class AnswerMatcher:
    """Implements `Matcher`."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._vocabulary = plan, plan.vocabulary
        reasoning, texts = plan.reasoning, [*plan.opens, *(trigger.text for trigger in plan.triggers)]
        tags = (reasoning.open, reasoning.close) if reasoning else ()
        self._num_tail = max(map(len, (*texts, *tags)), default=1) - 1
        self._log: list[Step] = []
        self._state = self._initial()
        self._mask: Mask | None = None
        self._is_mask_known = False

    def allowed(self) -> Mask | None:
        """The tokens that may come next, [vocab]; None if all may."""
        if not self._is_mask_known:
            self._mask, self._is_mask_known = self._compute_mask(), True
        return self._mask

    def accept(self, token: int) -> None:
        """Advance by a token. Raises ValueError for one that is not allowed; the state is then unchanged."""
        mask = self.allowed()
        if not 0 <= token < self._vocabulary.size or (mask is not None and not mask[token]):
            raise ValueError(f"token {token} is not allowed in {self._state.phase}")
        before, fed = self._state, None
        if token in self._vocabulary.stop_ids:
            state = State("ended")
        elif before.held and not before.queue and not self._opens_reasoning(token):
            state, fed = self._feed(before, token), before.held
        else:
            state = self._advance(before, token)
        self._log.append(Step(before, fed))
        self._state, self._is_mask_known = state, False

    def rollback(self, num: int) -> None:
        """Take back the last `num` accepted tokens."""
        if not 0 <= num <= len(self._log):
            raise ValueError(f"{num} of {len(self._log)} tokens cannot be taken back")
        for _ in range(num):
            self._state, fed = self._log.pop()
            if fed:
                fed.rollback(1)
        self._is_mask_known = self._is_mask_known and num == 0

    def forced(self) -> list[int]:
        """Tokens that come next if the answer's text, as far as it is determined, is split as the tokenizer would; [] if none."""
        if self._state.queue:
            return list(self._state.queue)
        if self._state.held and self._state.phase != "start":
            return [token for token in self._state.held.forced() if token not in self._vocabulary.stop_ids]
        return []

    # States.

    def _initial(self) -> State:
        reasoning = self._plan.reasoning
        if reasoning and reasoning.is_open:
            return self._reason(State("reasoning"), b"")
        if reasoning and reasoning.may_open:
            return State("start", held=self._plan.body.start() if self._plan.body else None)
        return self._enter_text(State("start"), b"")

    def _enter_text(self, state: State, text: bytes) -> State:
        """What is behind the reasoning, beginning with this text."""
        if self._plan.body:
            return State("body", held=self._plan.body.start(text))
        return self._read_free(State("free", num_calls=state.num_calls), text)

    def _opens_reasoning(self, token: int) -> bool:
        reasoning = self._plan.reasoning
        return self._state.phase == "start" and reasoning is not None and reasoning.open_ids[:1] == (token,)

    def _feed(self, state: State, token: int) -> State:
        """The grammar consumes a token."""
        assert state.held
        state.held.accept(token)
        if state.phase == "call" and state.held.is_accepting:
            return State("free", num_calls=state.num_calls + 1)
        return state._replace(phase="body") if state.phase == "start" else state

    def _advance(self, state: State, token: int) -> State:
        """A token outside grammars."""
        text = self._vocabulary.token_bytes(token)
        state = state._replace(queue=state.queue[1:])
        if state.phase == "start":
            return self._detect(state, token, text)
        if state.phase in ("reasoning", "forced"):
            return self._reason(state._replace(num_reasoning=state.num_reasoning + 1), text)
        return self._read_free(state, text)

    def _detect(self, state: State, token: int, text: bytes) -> State:
        """At the start of an answer: does it open its reasoning?"""
        reasoning, whole = self._plan.reasoning, state.tail + text
        assert reasoning
        if whole.startswith(reasoning.open):
            return self._reason(State("reasoning"), whole[len(reasoning.open) :])
        if self._plan.body:
            return state._replace(tail=whole, queue=state.queue or reasoning.open_ids[1:])
        return state._replace(tail=whole) if reasoning.open.startswith(whole) else self._enter_text(state, whole)

    def _reason(self, state: State, text: bytes) -> State:
        """Reasoning, up to its closing tag."""
        reasoning = self._plan.reasoning
        assert reasoning
        whole = state.tail + text
        stop = whole.find(reasoning.close)
        if stop >= 0:
            return self._enter_text(state, whole[stop + len(reasoning.close) :])
        state = state._replace(tail=self._tail(whole))
        if not state.queue and reasoning.budget_tokens is not None and state.num_reasoning >= reasoning.budget_tokens:
            return state._replace(phase="forced", queue=reasoning.closing[whole.endswith(b"\n")])
        return state

    def _read_free(self, state: State, text: bytes) -> State:
        """Free text, up to what opens a call."""
        whole = state.tail + text
        found = [
            (whole.find(each.text), each) for each in self._plan.triggers if each.text in whole and self._may_stand(each, state, whole)
        ]
        if not found:
            tail = self._tail(whole)
            return state._replace(tail=tail, is_start=state.is_start and len(tail) == len(whole))
        start, trigger = min(found, key=lambda each: each[0])
        given = trigger.given + whole[start + len(trigger.text) :]
        return state._replace(phase="call", tail=b"", held=trigger.program.start(given))

    def _may_stand(self, trigger: Trigger, state: State, text: bytes) -> bool:
        """Whether the text may end in this trigger: anywhere, or only where it begins."""
        begun = text.lstrip(BETWEEN)
        return not trigger.is_first or (state.is_start and (begun.startswith(trigger.text) or trigger.text.startswith(begun)))

    def _tail(self, text: bytes) -> bytes:
        return text[-self._num_tail :] if self._num_tail else b""

    # Masks.

    def _compute_mask(self) -> Mask | None:
        state = self._state
        if state.queue:
            return self._only([state.queue[0]])
        match state.phase:
            case "ended":
                return self._only(self._vocabulary.stops)
            case "body" | "call":
                return self._held_mask(state)
            case "reasoning":
                return self._without(self._banned_in_reasoning(state)) if self._plan.body else None
            case "free" if self._are_calls_spent(state) and any(trigger.is_first for trigger in self._plan.triggers):
                return self._only(self._vocabulary.stops)
            case "start" if self._plan.body:
                mask = self._held_mask(state)
                mask[self._rule.open_ids[0]] = True
                return mask
        return self._without(self._banned_in_text(state))

    @property
    def _rule(self) -> ReasoningRule:
        assert self._plan.reasoning
        return self._plan.reasoning

    def _held_mask(self, state: State) -> Mask:
        assert state.held
        return state.held.mask()

    def _banned_in_reasoning(self, state: State) -> Iterator[int]:
        """Where a body must follow: stop tokens, calls, and a closing tag that goes on as the body cannot."""
        assert self._plan.body
        yield from self._vocabulary.stops
        yield from self._openings(state.tail)
        for each in self._vocabulary.occurrences(self._rule.close, state.tail):
            yield from _unfit(each, self._plan.body)

    def _banned_in_text(self, state: State) -> Iterator[int]:
        """Calls beyond their number, and one that goes on as none can."""
        if self._are_calls_spent(state):
            yield from self._openings(state.tail)
            return
        for trigger in (each for each in self._plan.triggers if self._may_stand(each, state, state.tail)):
            for each in self._vocabulary.occurrences(trigger.text, state.tail):
                yield from _unfit(each, trigger.program, trigger.given)

    def _are_calls_spent(self, state: State) -> bool:
        return self._plan.num_calls is not None and state.num_calls >= self._plan.num_calls

    def _openings(self, tail: bytes) -> Iterator[int]:
        for text in self._plan.opens:
            for each in self._vocabulary.occurrences(text, tail):
                yield from (*each.ending, *each.crossing)

    def _only(self, tokens: Sequence[int] | NDArray[np.intp]) -> Mask:
        mask = np.zeros(self._vocabulary.size, dtype=np.bool_)
        mask[tokens] = True
        return mask

    def _without(self, banned: Iterator[int]) -> Mask | None:
        tokens = list(banned)
        if not tokens:
            return None
        mask = self._vocabulary.real.copy()
        mask[tokens] = False
        return mask


def _unfit(occurrence: Occurrence, program: Program, given: bytes = b"") -> Iterator[int]:
    """Of the tokens that cross the text's end, those whose rest the program does not allow."""
    return (token for token, rest in occurrence.crossing.items() if not program.follows(given + rest))
