"""Rounds of several sequences: what a batch of random caches costs, and what the bundled model's drafts gain in one."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy, policy_for
from forerun.decode.generate import Generation, decode
from forerun.decode.round import Part, Rounds, run_round
from forerun.models.base import Family
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous, Layout
from forerun.state.store import Arena
from forerun.text.answer import Answer
from forerun.text.tokenizer import Tokenizer
from forerun.values import GREEDY
from on_gpu.bundled import prefilled
from on_gpu.shapes import filled

CONTEXT, HEADROOM, COUNTS = 2700, 256, (1, 2, 4, 8, 16)
WARM_ROUNDS = 12  # more than a new batch runs eager


def plain(family: Family, layout: Layout, context: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a round without drafts, and tokens a second, by the number of sequences; the gain over one sequence."""
    table, found = StepTable(family, eager_reason=""), dict[str, Any]()
    arena = Arena(family.spec)
    rounds = [_begun(table, arena, layout, context, i) for i in range(max(COUNTS))]
    for num in COUNTS:
        parts = [Part(r, 0, _taking(r)) for r in rounds[:num]]
        first = [_seconds(table, parts) for _ in range(WARM_ROUNDS)]
        median_s = statistics.median(_seconds(table, parts) for _ in range(repeats))
        found[str(num)] = {
            "ms": round(median_s * 1e3, 3),
            "tok_per_s": round(num / median_s, 1),
            "first_ms": [round(s * 1e3) for s in first],
        }
    return found | {"gain": {n: round(found[n]["tok_per_s"] / found["1"]["tok_per_s"], 2) for n in found}}


def _begun(table: StepTable, arena: Arena, layout: Layout, context: int, seed: int) -> Rounds:
    """Rounds over a cache of random rows; those in pages share a pool."""
    whole, store = filled(table.family, Contiguous(), context, 0), arena.store(layout, context + HEADROOM)
    store.put(0, whole.store.take(0, context))
    rounds = Rounds(table, Cache(arena, layout, store, whole.snapshot()), [seed], GREEDY)
    rounds.append([rounds.first()])
    return rounds


def _taking(rounds: Rounds) -> Any:
    def take(tokens: list[int]) -> int:
        rounds.append(tokens)
        return len(tokens)

    return take


def _seconds(table: StepTable, parts: Sequence[Part]) -> float:
    start_s = time.perf_counter()
    for result in run_round(table, parts):
        if isinstance(result, Exception):
            raise result
    return time.perf_counter() - start_s


def drafts(family: Family, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], answer: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of batches of 1, 2, 4 and 8 with `auto` drafts and without, interleaved; and their ratio."""
    table, found = StepTable(family, eager_reason=""), dict[str, Any]()
    policies = {"auto": policy_for("auto"), "plain": DepthPolicy((0,))}
    for num in COUNTS[:4]:
        speeds: dict[str, list[float]] = {name: [] for name in policies}
        for repeat in range(repeats + 1):
            for name in random.Random(repeat).sample(list(policies), 2):
                speed = _speed(family, table, tokenizer, [prompts[i % len(prompts)] for i in range(num)], policies[name], answer)
                speeds[name] += [speed] if repeat else []
        medians = {name: sorted(values)[len(values) // 2] for name, values in speeds.items()}
        found[str(num)] = medians | {"ratio": round(medians["auto"] / medians["plain"], 3)}
    return found


def _speed(
    family: Family, table: StepTable, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], policy: DepthPolicy, answer: int
) -> float:
    """Tokens a second after the first of each, until the first answer ends."""
    batch = []
    for prompt in prompts:
        cache, text = prefilled(family, prompt), Answer(tokenizer, (), "")
        generation = Generation(table, cache, prompt, GREEDY, text, max_tokens=answer, stop_ids=frozenset(), policy=policy)
        generation.begin()
        batch.append(generation)
    start_s, before = time.perf_counter(), sum(g.num_sampled for g in batch)
    while all(g.finish is None for g in batch):
        decode(batch)
    return round((sum(g.num_sampled for g in batch) - before) / (time.perf_counter() - start_s), 1)
