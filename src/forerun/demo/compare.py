"""Judges played turns: was the path as promised, do the counts add up, is the answer the one that would have come without stored state?

Pure but for `near_ties`, which is passed in: under `served` numerics two answers may part where two tokens were as good as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.demo.turns import Answer, Turn

# What a template puts after the last message to ask for an answer is not part of the conversation and may be read again.
SUFFIX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class NearTies:
    """Where two answers part under teacher forcing: how often, the largest top-2 gap at such a place, and the bound for it."""

    count: int
    largest_gap: float
    bound: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two answers count as the same, in a word and in a phrase."""

    is_same: bool
    short: str
    text: str


Judge = Callable[[Turn], NearTies]


def same_answer(turn: Turn, near_ties: Judge) -> Verdict:
    """Equal text and token count; else, under `served` only, near-ties within their bound."""
    if (turn.answer.text, _num_tokens(turn.answer)) == (turn.bypass.text, _num_tokens(turn.bypass)):
        return Verdict(True, "equal", "equal")
    if turn.answer.report["numerics"] == "exact":
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
    """What is not as promised, in words; empty if all is."""
    before = [0, *(turn.answer.usage["prompt_tokens"] for turn in turns)]
    return [
        f"{turn.step.name}: {fault}"
        for turn, verdict, cached_tokens in zip(turns, verdicts, before, strict=False)
        for fault in _faults(turn, verdict, cached_tokens)
    ]


def _faults(turn: Turn, verdict: Verdict, cached_tokens: int) -> Iterator[str]:
    report, bypass = turn.answer.report, turn.bypass.report
    if report["source"] != turn.step.source:
        yield f"took the path {report['source']}, not {turn.step.source} ({report['reason'] or 'no reason given'})"
    elif report["reused_tokens"] < cached_tokens - SUFFIX_TOKENS:
        yield f"reused {report['reused_tokens']} tokens of {cached_tokens} known ones ({report['reason'] or 'no reason given'})"
    if (bypass["source"], bypass["reused_tokens"]) != ("cold", 0):
        yield f"the request to compare with reused {bypass['reused_tokens']} tokens ({bypass['source']})"
    for answer in (turn.answer, turn.bypass):
        yield from _miscounts(answer.usage, answer.report)
    if not verdict.is_same:
        yield f"the answer is not the one without stored state ({verdict.text})"


def _miscounts(usage: dict[str, Any], report: dict[str, Any]) -> Iterator[str]:
    parts = report["reused_tokens"], report["computed_tokens"]
    if sum(parts) != usage["prompt_tokens"]:
        yield f"{parts[0]} reused + {parts[1]} computed tokens are not the prompt's {usage['prompt_tokens']}"


def _num_tokens(answer: Answer) -> int:
    num_tokens: int = answer.usage["completion_tokens"]
    return num_tokens
