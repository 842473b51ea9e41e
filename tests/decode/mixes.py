"""Answers that share rounds, driven by a script: who joins, sits out, is computed again or leaves in which round, and how deep each drafts.

Its own depths are part of a sequence's script, so that also tokens whose drafts have other noise are the same alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

from tests import tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import empty, read
from tests.talking import SEEDED, tokenizer

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.draft_stats import Round
from forerun.decode.generate import Generation, decode
from forerun.decode.prefill import prefill
from forerun.decode.scores import Score
from forerun.models.base import Family
from forerun.state.cache import Cache
from forerun.state.conversion import extract, extract_snapshot, fork, materialise, relayout_as_chosen
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.store import Arena
from forerun.text.answer import Answer
from forerun.values import GREEDY, Sampling

FAMILIES: dict[str, Any] = {"tiny": tiny.family(), "fake": FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB, wrong_every=3)}
FEW = dict.fromkeys((17, 40, 77), 60.0)  # so that drafts of random weights are accepted now and then
FRESH = replace(SEEDED, seed=None)  # without a seed: drafts have their own noise
SAMPLINGS: dict[str, Sampling] = {
    "greedy": GREEDY,
    "greedy, few": replace(GREEDY, logit_bias=FEW),
    "seeded": SEEDED,
    "seeded, few": replace(SEEDED, temperature=0.9, logit_bias=FEW),
    "seeded, usual": replace(SEEDED, temperature=0.8, top_p=0.95, top_k=20, min_p=0.02),
    "fresh": FRESH,
    "fresh, few": replace(FRESH, temperature=1.4, top_k=9, logit_bias=FEW),
    "greedy, penalised": replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4),
    "fresh, penalised": replace(FRESH, repetition_penalty=1.2, presence_penalty=0.5, logit_bias=FEW),
}
LAYOUTS: tuple[Layout, ...] = (Contiguous(), Paged(16), Paged(64))
STOPS = frozenset({5, 41})
DEPTHS = (0, 1, 2, 3, 7)


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. prompt: (seed, tokens); seed: of its noise, and of its depths unless they are given, to be repeated; leave_after: own
    rounds after which its client goes away.
    """

    prompt: tuple[int, int] = (0, 30)
    sampling: str = "greedy"
    seed: int = 7
    max_tokens: int = 12
    stop: tuple[str, ...] = ()
    num_top: int | None = None
    layout: Layout = LAYOUTS[0]
    leave_after: int | None = None
    depths: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        return tiny.words(("mix", self.prompt[0]), self.prompt[1])

    def depth(self, round_number: int) -> int:
        if self.depths:
            return self.depths[round_number % len(self.depths)]
        return random.Random(f"{self.seed} {round_number}").choice(DEPTHS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a client sees of an answer, and what is stored of it. state: digest of the bytes of its records."""

    tokens: tuple[int, ...]
    scores: tuple[Score, ...]
    text: str
    finish: str | None
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    stored: tuple[int, ...]
    state: str


class ScriptedDepths(DepthPolicy):
    """Depths that the test sets before a round. observed: how often a round was observed."""

    def __init__(self) -> None:
        super().__init__((0,))
        self.next: list[int] = []
        self.observed = 0

    def choose_all(self, kinds: Sequence[str], context_tokens: Sequence[int], limits: Sequence[int]) -> list[int]:
        return [min(depth, limit) for depth, limit in zip(self.next, limits, strict=True)]

    def observe_all(self, kinds: Sequence[str], context_tokens: Sequence[int], done: Sequence[Round]) -> None:
        self.observed += 1


class Running:
    """A script's answer in the middle of it. at_prompt: the state that others fork."""

    def __init__(self, script: Script, cache: Cache[Any], steps: StepTable, policy: ScriptedDepths) -> None:
        self.script, self.text, self.num_rounds = script, "", 0
        sampling, cache = SAMPLINGS[script.sampling], relayout_as_chosen(cache, script.layout)
        self.at_prompt = cache.snapshot()
        self.generation = Generation(
            steps,
            cache,
            script.tokens,
            replace(sampling, seed=sampling.seed and script.seed),
            Answer(tokenizer(), script.stop, ""),
            max_tokens=script.max_tokens,
            stop_ids=STOPS,
            policy=policy,
            num_top=script.num_top,
        )
        rounds = self.generation.rounds
        rounds.draw = rounds.draw._replace(seed=script.seed)  # where none is given it would be another each time
        self.generation.begin()
        self.text += self.generation.piece()

    @property
    def is_running(self) -> bool:
        return self.generation.finish is None and self.num_rounds != self.script.leave_after

    @property
    def depth(self) -> int:
        return self.script.depth(self.num_rounds)

    def took_part(self) -> None:
        self.num_rounds += 1
        self.text += self.generation.piece()

    def compute_again(self, family: Family) -> None:
        """As after a failed pass: its state is lost, and made anew of its tokens."""
        tokens = [*self.script.tokens, *self.generation.sampled[:-1]]
        cache = empty(family, len(tokens))
        for new in prefill(family, cache, tokens, self.generation.resumable_at):
            self.generation.found(new)
        self.generation.resume(relayout_as_chosen(cache, self.script.layout))

    def outcome(self) -> Outcome:
        generation = self.generation
        stored, stats, cache = generation.store(), generation.draft_stats, generation.cache
        state = sha256(extract(cache, 0, cache.length))
        state.update(extract_snapshot(cache.snapshot()))
        counts = tuple(stats.drafted), tuple(stats.accepted)
        sampled = tuple(generation.sampled), tuple(generation.scores)
        return Outcome(*sampled, self.text, generation.finish, *counts, tuple(stored), state.hexdigest())


@cache
def alone(name: str, script: Script, *, eager_reason: str = "test") -> Outcome:
    """The answer without any other."""
    policy, family = ScriptedDepths(), FAMILIES[name]
    one = Running(script, read(family, script.tokens), StepTable(family, eager_reason=eager_reason), policy)
    while one.is_running:
        run_round(policy, [one])
    return one.outcome()


def run_round(policy: ScriptedDepths, members: Sequence[Running]) -> None:
    """One round of these. Raises what ends one of them."""
    policy.next = [one.depth for one in members]
    for one, result in zip(members, decode([one.generation for one in members]), strict=True):
        if isinstance(result, Exception):
            raise result
        one.took_part()


@dataclass(frozen=True, slots=True)
class Part:
    """A script's part in a mix. joins: in which round; forks: whether a running answer to the same prompt, if there is one; sits_out: the
    rounds in which it is not scheduled; again: after how many own rounds its state is lost.
    """

    script: Script
    joins: int = 0
    forks: bool = False
    again: int | None = None
    sits_out: frozenset[int] = frozenset()


def together(
    name: str, parts: Sequence[Part], steps: StepTable | None = None, before_round: Callable[[Sequence[Running]], object] = len
) -> list[Outcome]:
    """The answers of all, which share rounds and a pool. before_round: called with its members. steps: by default those of a server."""
    policy, family = ScriptedDepths(), FAMILIES[name]
    arena = Arena(family.spec)
    steps = steps or StepTable(family, eager_reason="")
    running, outcomes, number = dict[int, Running](), dict[int, Outcome](), 0
    while len(outcomes) < len(parts):
        for i, part in enumerate(parts):
            if part.joins == number:
                running[i] = Running(part.script, _begun(family, arena, part, running), steps, policy)
        for i in [i for i, one in running.items() if not one.is_running]:
            outcomes[i] = running.pop(i).outcome()
        members = {i: one for i, one in running.items() if number not in parts[i].sits_out}
        for i, one in members.items():
            if parts[i].again == one.num_rounds:
                one.compute_again(family)
        if members:
            before_round(list(members.values()))
            run_round(policy, list(members.values()))
        number += 1
    return [outcomes[i] for i in range(len(parts))]


def _begun(family: Family, arena: Arena, part: Part, running: dict[int, Running]) -> Cache[Any]:
    """The state after the part's prompt."""
    origins = [one for one in running.values() if one.script.prompt == part.script.prompt]
    if part.forks and origins:
        return fork(origins[-1].generation.cache, origins[-1].at_prompt, Contiguous(), 4)
    return read(family, part.script.tokens, materialise(arena, [], None, Contiguous(), part.script.prompt[1]))
