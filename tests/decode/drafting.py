"""Answers with drafts, compared with plain decoding: one forward of one row per token, without rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from tests.decode.guessing import RecordingFamily
from tests.running import differing, read, step
from tests.talking import tokenizer

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.generate import Generation
from forerun.models.base import Family
from forerun.sampling.distribution import count_prompt, distribution
from forerun.sampling.draw import draw_coupled
from forerun.sampling.noise import gumbel
from forerun.state.cache import Cache, Snapshot
from forerun.state.layout import Contiguous
from forerun.text.answer import Answer
from forerun.values import Sampling

SEED = 7
# Coupled noise gives the tokens of plain decoding at any depth; penalties count what a round drafts.
SEEDED = Sampling(1.0, 0.95, 20, 0.0, SEED, 1.1, 0.2, 0.1, {5: 1.0})


@dataclass(frozen=True)
class TextPrompt:
    """A prompt and its plain decoding: tokens, the logits [tokens + 1, vocab] that they were drawn from, and all states."""

    prompt: list[int]
    sampling: Sampling
    tokens: list[int]
    logits: mx.array
    last: Cache[Contiguous]
    snapshots: list[Snapshot]

    def state(self, length: int) -> Cache[Contiguous]:
        """The state after `length` tokens; do not modify it."""
        return Cache(self.last.arena, self.last.layout, self.last.store, self.snapshots[length - len(self.prompt)])


@dataclass(frozen=True)
class DraftedAnswer:
    """The result of a run with drafts, and the tokens in its cache."""

    tokens: list[int]
    logits: mx.array
    drafted: int
    accepted: int
    stored: list[int]


def plainly(family: Family, prompt: list[int], sampling: Sampling, num: int) -> TextPrompt:
    """`num` tokens after the prompt, one forward each."""
    state = read(family, prompt)
    tokens, rows, snapshots = list[int](), [family.head(state.hidden[None])], [state.snapshot()]
    counts = count_prompt(mx.array(prompt, dtype=mx.int32), family.vocab)
    while len(tokens) < num:
        noise = gumbel([SEED], mx.array([state.length], dtype=mx.int32)[None], family.vocab)[0]
        tokens.append(int(draw_coupled(distribution(rows[-1], sampling, counts), noise).item()))
        counts = counts.extended(mx.array(tokens[-1:], dtype=mx.int32))
        rows.append(step(family, state, tokens[-1:]))
        snapshots.append(state.snapshot())
    return TextPrompt(prompt, sampling, tokens, mx.concatenate(rows), state, snapshots)


def eager(family: Family) -> StepTable:
    """Eager steps, so that the family sees each call."""
    return StepTable(family, eager_reason="test")


def generation(
    steps: StepTable, state: Cache[Any], prompt: Sequence[int], sampling: Sampling, policy: DepthPolicy, **ends: Any
) -> Generation:
    """An answer that `ends` end."""
    ends = {"stop_ids": frozenset()} | ends
    return Generation(steps, state, prompt, sampling, Answer(tokenizer(), (), ""), policy=policy, **ends)


def started(
    steps: StepTable, state: Cache[Contiguous], wanted: TextPrompt, policy: DepthPolicy, rng: random.Random
) -> tuple[Generation, int]:
    """An answer with drafts up to a random position, a limit or a stop token; and after how many tokens a client leaves."""
    num = len(wanted.tokens)
    position, how = rng.randrange(1, num), rng.choice(["limit", "stop", "leave"])
    stops = frozenset([wanted.tokens[position]] if how == "stop" else [])
    limit = position if how == "limit" else num
    answer = generation(steps, state, wanted.prompt, wanted.sampling, policy, max_tokens=limit, stop_ids=stops)
    return answer, position if how == "leave" else num


def run(family: RecordingFamily, state: Cache[Contiguous], wanted: TextPrompt, policy: DepthPolicy, rng: random.Random) -> DraftedAnswer:
    """Answer with drafts, recording all logits."""
    answer, leave_at = started(eager(family), state, wanted, policy, rng)
    family.generation, rows = answer, list[mx.array]()
    for _ in answer:
        rows.append(family.logits[-1][: answer.num_sampled - sum(len(taken) for taken in rows)])
        if answer.num_sampled > leave_at:
            break
    return drafted(answer, mx.concatenate(rows))


def run_compiled(steps: StepTable, state: Cache[Contiguous], wanted: TextPrompt, policy: DepthPolicy, rng: random.Random) -> DraftedAnswer:
    """Answer with drafts as a server does: only the last logits are visible."""
    answer, leave_at = started(steps, state, wanted, policy, rng)
    for _ in answer:
        if answer.num_sampled > leave_at:
            break
    return drafted(answer, wanted.logits[:0])


def drafted(answer: Generation, logits: mx.array) -> DraftedAnswer:
    draft_stats, stored = answer.draft_stats, answer.store()
    return DraftedAnswer(answer.tokens, logits, sum(draft_stats.drafted), sum(draft_stats.accepted), stored)


def check(found: DraftedAnswer, state: Cache[Contiguous], wanted: TextPrompt) -> None:
    """The run equals plain decoding, and its state continues like that of single steps."""
    assert found.tokens == wanted.tokens[: len(found.tokens)]
    assert mx.array_equal(found.logits, wanted.logits[: found.logits.shape[0]])
    assert found.stored == [*wanted.prompt, *found.tokens][: len(found.stored)]
    assert len(found.stored) >= len(wanted.prompt) + len(found.tokens) - 1
    assert differing(state, wanted.state(len(found.stored))) == []
