"""Measures decoding with drafts against plain decoding, on the user turns of the demo's conversation, all variants interleaved.

Knows no terminal and no result file. Imports MLX: the caller must call `config.prepare` before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, get_args

import mlx.core as mx

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy, policy_for
from forerun.decode.draft_stats import DraftStats
from forerun.decode.generate import Generation
from forerun.decode.prefill import prefill
from forerun.demo.conversation import SMALL, Message, package_sources, record
from forerun.demo.turns import TEMPLATE_ARGS
from forerun.models.base import Family
from forerun.state.cache import Cache, Snapshot
from forerun.state.conversion import extract, extract_snapshot, materialise
from forerun.state.layout import Contiguous
from forerun.state.record import Kind, Record, RecordInfo
from forerun.state.store import Arena
from forerun.text.answer import Answer
from forerun.text.prompt import Prompt, Prompter
from forerun.text.tokenizer import Tokenizer
from forerun.values import GREEDY, Chat

PLAIN = "plain"
SAMPLINGS = {"greedy": GREEDY, "sampled": replace(GREEDY, temperature=1.0, top_p=0.95, top_k=20)}
_AROUND_TOKENS = 500  # of the conversation's tools, system prompt and other messages
WARM_ROUNDS = 3
Records = tuple[Record, Record]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of decoding, named by its sampling and its arm. The policy learns from sample to sample, as a server's does."""

    sampling: str
    arm: str
    steps: StepTable
    policy: DepthPolicy


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: its tokens after the first, their wall-clock seconds and CPU seconds. On a busy machine the latter mean more."""

    turn: int
    repeat: int
    sampling: str
    arm: str
    tokens: int
    seconds: float
    cpu_seconds: float
    draft_stats: DraftStats


def prompts(tokenizer: Tokenizer, prompter: Prompter, context_tokens: int) -> list[Prompt]:
    """The user turns of the demo's conversation, the first at about `context_tokens`. Every answer between them is "Done."."""
    scale = replace(SMALL, first_prompt_tokens=max(SMALL.first_prompt_tokens, context_tokens - _AROUND_TOKENS))
    talk = record(package_sources(), scale, lambda text: len(tokenizer.encode(text, tenant="")))
    messages: list[Message] = list(talk.opening)
    turns = [tuple(messages)]
    for continuation in talk.continuations:
        messages += [{"role": "assistant", "content": "Done."}, *continuation]
        turns.append(tuple(messages))
    return [prompter.encode(Chat(turn, talk.tools, TEMPLATE_ARGS), tenant="") for turn in turns]


@dataclass(frozen=True, slots=True)
class Bench:
    """Answers each turn with each variant, `repeats` times, up to `answer_tokens`.

    Variants alternate round by round, each with a cache of its own, so that other load on the machine slows all of them alike.
    is_endless: stop tokens end no answer.
    """

    tokenizer: Tokenizer
    turns: Sequence[Prompt]
    variants: Sequence[Variant]
    repeats: int
    answer_tokens: int
    is_endless: bool = False

    @property
    def num_samples(self) -> int:
        return len(self.turns) * self.repeats * len(self.variants)

    def samples(self) -> Iterator[Sample]:
        """Yields each answer once it is complete. Prefill is not measured."""
        family = self.variants[0].steps.family
        arena = Arena(family.spec)
        cache = materialise(arena, [], None, Contiguous(), len(self.turns[-1].tokens))
        for turn, prompt in enumerate(self.turns):
            message_end = _prefill(family, cache, prompt)
            records = _records(cache, prompt)
            if turn == 0:
                self._warm_up(arena, records, prompt)
            for repeat in range(self.repeats):
                runs = self._runs(arena, records, prompt, turn * self.repeats + repeat)
                _interleave(runs, random.Random(repeat))
                for variant, run in zip(self.variants, runs, strict=True):
                    answer = run.answer
                    yield Sample(
                        turn,
                        repeat,
                        variant.sampling,
                        variant.arm,
                        answer.num_sampled - 1,
                        run.seconds,
                        run.cpu_seconds,
                        answer.draft_stats,
                    )
            cache.truncate(message_end)

    def _warm_up(self, arena: Arena, records: Records, prompt: Prompt) -> None:
        """A few rounds at each depth, so that no compilation and no first run is measured."""
        for variant in self.variants:
            for depth in range(variant.policy.deepest + 1):
                run = self._run(arena, records, prompt, replace(variant, policy=policy_for(depth)))
                while run.answer.draft_stats.rounds < WARM_ROUNDS and run.step():
                    pass

    def _runs(self, arena: Arena, records: Records, prompt: Prompt, number: int) -> list[Run]:
        """A run of each variant. Each is the first one, the second, ... equally often, in both directions: a cache is up to a tenth faster
        than another by where its memory lies, and the later ones lie better.
        """
        count = len(self.variants)
        order = [(number + i) % count for i in range(count)][:: 1 if number // count % 2 else -1]
        runs = {index: self._run(arena, records, prompt, self.variants[index]) for index in order}
        return [runs[index] for index in range(count)]

    def _run(self, arena: Arena, records: Records, prompt: Prompt, variant: Variant) -> Run:
        # Capacity for the longest prompt: steps are traced once per capacity, so only once.
        headroom_tokens = len(self.turns[-1].tokens) - len(prompt.tokens) + self.answer_tokens
        cache = materialise(arena, records[:1], records[1], Contiguous(), headroom_tokens)
        answer = Generation(
            variant.steps,
            cache,
            prompt.tokens,
            SAMPLINGS[variant.sampling],
            Answer(self.tokenizer, (), ""),
            max_tokens=self.answer_tokens,
            stop_ids=frozenset() if self.is_endless else self.tokenizer.stop_ids,
            policy=variant.policy,
        )
        return Run(answer, cache)


class Run:
    """An answer being generated. Its seconds cover the tokens after the first, and `Generation.store`."""

    def __init__(self, answer: Generation, cache: Cache[Contiguous]) -> None:
        self.answer, self.seconds, self.cpu_seconds = answer, 0.0, 0.0
        self._cache, self._pieces = cache, iter(answer)
        next(self._pieces)

    def step(self) -> bool:
        """Run one round, or finish. Returns whether there may be more."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        is_finished = next(self._pieces, None) is None
        if is_finished:
            self.answer.store()
            mx.eval(self._cache.arrays())
        self.seconds += time.perf_counter() - start_s
        self.cpu_seconds += time.process_time() - start_cpu_s
        return not is_finished


def _interleave(runs: Sequence[Run], order: random.Random) -> None:
    """Run rounds of all in a changing order until each is finished."""
    active = list(runs)
    while active:
        order.shuffle(active)
        active = [run for run in active if run.step()]


def summary(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row per sampling and arm, plain first: tokens/s (median over repeats, all turns pooled), the ratio to plain, draft counts."""
    rows, pairs = [], {(sample.sampling, sample.arm) for sample in samples}
    for sampling, arm in sorted(pairs, key=lambda pair: (pair[0], pair[1] != PLAIN, pair[1])):
        own = [sample for sample in samples if (sample.sampling, sample.arm) == (sampling, arm)]
        speeds = rates(samples, sampling, arm)
        ratios = [a / b for a, b in zip(speeds, rates(samples, sampling, PLAIN), strict=True)]
        row = {"sampling": sampling, "arm": arm, "tok_per_s": median(speeds), "ratio_to_plain": median(ratios)}
        rows.append(row | {"tokens_per_round": sum(s.tokens for s in own) / sum(s.draft_stats.rounds for s in own)} | _drafts(own))
    return rows


def rates(samples: Sequence[Sample], sampling: str, arm: str, by: Literal["seconds", "cpu_seconds"] = "seconds") -> list[float]:
    """Tokens per second of each repeat, all turns pooled."""
    own = [sample for sample in samples if (sample.sampling, sample.arm) == (sampling, arm)]
    repeats = sorted({sample.repeat for sample in own})
    return [sum(s.tokens for s in own if s.repeat == r) / sum(getattr(s, by) for s in own if s.repeat == r) for r in repeats]


def _drafts(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Sums by depth, up to the deepest draft."""
    deepest = max(sample.draft_stats.deepest for sample in samples)
    sizes = {"drafted": deepest, "accepted": deepest, "depths": deepest + 1}
    return {name: [sum(getattr(s.draft_stats, name)[i] for s in samples) for i in range(size)] for name, size in sizes.items()}


def _prefill(family: Family, cache: Cache[Contiguous], prompt: Prompt) -> Snapshot:
    """Prefill what the cache lacks of the prompt. Returns the snapshot at its message_end, where the next turn continues."""
    snapshots = [snapshot for new in prefill(family, cache, prompt.tokens, {prompt.message_end}) for snapshot in new]
    return snapshots[0]


def _records(cache: Cache[Contiguous], prompt: Prompt) -> Records:
    """The state as a segment and a snapshot record, from which any number of caches can be made."""
    segment, snapshot = (RecordInfo(kind, "", "", "", 0, prompt.tokens) for kind in get_args(Kind))
    return Record.of(segment, extract(cache, 0, cache.length)), Record.of(snapshot, extract_snapshot(cache.snapshot()))
