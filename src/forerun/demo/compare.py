"""Checks played turns: the source of the state, the token counts, and the answer against the one without stored state.

Pure but for the `Judge` passed in: under `fast` numerics two answers may diverge where two tokens are nearly tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.demo.turns import Turn

# The template's generation prompt after the last message is not part of the conversation and may be computed again.
SUFFIX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class NearTies:
    """Deviations of two answers from the model's choice under teacher forcing: number, largest logit gap, and the bound on it."""

    count: int
    largest_gap: float
    bound: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two answers count as the same, in a word (short) and in a phrase."""

    is_same: bool
    short: str
    text: str


Judge = Callable[[Turn], NearTies]


def same_answer(turn: Turn, near_ties: Judge) -> Verdict:
    """Same: equal text and token count, or, under `fast` numerics only, near-ties within their bound."""
    if (turn.answer.text, turn.answer.usage["completion_tokens"]) == (turn.bypass.text, turn.bypass.usage["completion_tokens"]):
        return Verdict(True, "equal", "equal")
    if turn.answer.report["numerics"] != "fast":
        return Verdict(False, "OTHER", "different")
    ties = near_ties(turn)
    is_same = ties.largest_gap <= ties.bound
    sign = "<=" if is_same else ">"
    return Verdict(
        is_same,
        "ties" if is_same else "OTHER",
        f"{ties.count} near-ties, largest gap {ties.largest_gap:.1e} {sign} bound {ties.bound:.1e}",
    )


def faults(turns: Sequence[Turn], verdicts: Sequence[Verdict]) -> list[str]:
    """Messages about what is not as promised; empty if all is."""
    before = [0, *(turn.answer.usage["prompt_tokens"] for turn in turns)]
    return [
        f"{turn.step.name}: {fault}"
        for turn, verdict, cached_tokens in zip(turns, verdicts, before, strict=False)
        for fault in _faults(turn, verdict, cached_tokens)
    ]


def _faults(turn: Turn, verdict: Verdict, cached_tokens: int) -> Iterator[str]:
    report, bypass = turn.answer.report, turn.bypass.report
    if report["source"] != turn.step.source:
        yield f"restored from {report['source']}, not {turn.step.source} ({report['reason'] or 'no reason given'})"
    elif report["reused_tokens"] < cached_tokens - SUFFIX_TOKENS:
        yield f"reused {report['reused_tokens']} of {cached_tokens} cached tokens ({report['reason'] or 'no reason given'})"
    if (bypass["source"], bypass["reused_tokens"]) != ("cold", 0):
        yield f"the bypass request reused {bypass['reused_tokens']} tokens ({bypass['source']})"
    for answer in (turn.answer, turn.bypass):
        yield from _miscounts(answer.usage, answer.report)
    if not verdict.is_same:
        yield f"the answer differs from the one without stored state ({verdict.text})"


def _miscounts(usage: dict[str, Any], report: dict[str, Any]) -> Iterator[str]:
    parts = report["reused_tokens"], report["computed_tokens"]
    if sum(parts) != usage["prompt_tokens"]:
        yield f"{parts[0]} reused + {parts[1]} computed tokens != {usage['prompt_tokens']} prompt tokens"
