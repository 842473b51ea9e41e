"""The bundled model on the device: agreement with its reference outputs, costs of steps, acceptance, and what drafting gains."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from forerun.decode.compiled import StepTable
from forerun.decode.prefill import prefill
from forerun.decode.round import Rounds
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL
from forerun.state.cache import Cache, lend
from forerun.state.conversion import materialise
from forerun.state.layout import Contiguous
from forerun.state.store import Arena
from forerun.values import GREEDY, Sampling
from on_gpu.report import Report
from on_gpu.shapes import filled
from on_gpu.steps import EAGER, draft, step

HEADROOM_TOKENS = 1024
WIDTHS = (1, 2, 4, 8)
DEPTHS = (0, 1, 2, 3)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=1.0, top_p=0.95, top_k=20),
}


def run(report: Report, family: Family, *, num_prompts: int, answer: int, repeats: int) -> None:
    """All parts of section `bundled`."""
    prompts = json.loads((DEMO_MODEL / "reference.json").read_text())["prompts"][:num_prompts]
    report.part("bundled", "reference_outputs", lambda: agreement(family, prompts))
    tables = {"compiled": StepTable(family, eager_reason=""), "eager": StepTable(family, eager_reason=EAGER)}
    cache = filled(family, Contiguous(), 1000, 1024)
    for kind, table in tables.items():
        for rows in WIDTHS:
            report.part("bundled", f"step_{rows}_{kind}", lambda table=table, rows=rows: step(table, cache, rows, repeats=repeats))
        report.part("bundled", f"draft_{kind}", lambda table=table: draft(table, cache, repeats=repeats))
    ids = [p["token_ids"] for p in prompts]
    for kind, table in tables.items():
        for name, sampling in SAMPLINGS.items():
            report.part("bundled", f"drafting_{name}_{kind}", lambda t=table, s=sampling: drafting(t, ids, s, answer))


def prefilled(family: Family, tokens: Sequence[int]) -> Cache[Any]:
    """The prompt in a cache; all caches have the same capacity, so that no step is traced again."""
    cache = materialise(Arena(family.spec), [], None, Contiguous(), HEADROOM_TOKENS)
    for _ in prefill(family, cache, tokens, ()):
        pass
    return cache


def agreement(family: Family, prompts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Against the outputs in float32: largest error of the five largest logits, and how many prompts have all greedy tokens the same."""
    error, same, total, drafts = 0.0, 0, 0, 0
    for prompt in prompts:
        cache = prefilled(family, prompt["token_ids"])
        logits = family.head(cache.hidden[None])[0]
        error = max(error, float(mx.abs(logits[mx.array(prompt["top5_ids"])] - mx.array(prompt["top5_logits"])).max()))
        drafts += greedy_drafts(family, cache, prompt["mtp_first_token"]) == prompt["mtp_greedy_drafts"]
        expected = prompt["greedy_32"]
        found = decode_stats(StepTable(family, eager_reason=EAGER), cache, prompt["token_ids"], SAMPLINGS["greedy"], 0, len(expected))[
            "tokens"
        ]
        same += next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(expected))
        total += len(expected)
    return {"logit_error": error, "greedy_tokens_until_a_difference": same, "of": total, "drafts_equal": drafts, "prompts": len(prompts)}


def greedy_drafts(family: Family, cache: Cache[Any], token: int) -> list[int]:
    """Three; the cache is as before."""
    found, hidden = [token], cache.hidden[None]
    with lend([cache], family.numerics) as view:
        for _ in range(3):
            hidden = family.draft(hidden, mx.array(found[-1:], dtype=mx.int32), [1], view)
            found.append(int(mx.argmax(family.head(hidden)[0])))
        view.keep_draft([0])
    return found[1:]


def drafting(table: StepTable, prompts: Sequence[Sequence[int]], sampling: Sampling, answer: int) -> dict[str, Any]:
    """Tokens a second by depth, and of the deepest the chance that a draft is accepted if those before it were."""
    speed: dict[str, float] = {}
    rounds: list[tuple[int, int]] = []
    for depth in DEPTHS:
        decode_stats(table, prefilled(table.family, prompts[0]), prompts[0], sampling, depth, answer)
        seconds = tokens = 0.0
        for prompt in prompts:
            done = decode_stats(table, prefilled(table.family, prompt), prompt, sampling, depth, answer)
            seconds, tokens = seconds + done["seconds"], tokens + len(done["tokens"]) - 1
            rounds += done["rounds"] if depth == DEPTHS[-1] else []
        speed[f"depth_{depth}"] = round(tokens / seconds, 1)
    reached = [[accepted > i for drafted, accepted in rounds if drafted > i and accepted >= i] for i in range(DEPTHS[-1])]
    acceptance = [round(sum(r) / len(r), 3) if r else None for r in reached]
    return {"tok_per_s": speed, "acceptance": acceptance, "speed_up": {k: round(v / speed["depth_0"], 3) for k, v in speed.items()}}


def decode_stats(table: StepTable, cache: Cache[Any], prompt: Sequence[int], sampling: Sampling, depth: int, count: int) -> dict[str, Any]:
    """At least `count` tokens after the prompt, the seconds of all but the first, and of each round what was drafted and accepted."""
    rounds, done = Rounds(table, cache, prompt, sampling), list[tuple[int, int]]()
    tokens = [rounds.first()]
    rounds.append(tokens)
    start = time.perf_counter()
    while len(tokens) < count:
        given = rounds.run(depth, len)
        rounds.append(given.tokens)
        tokens += given.tokens
        done.append((given.drafted, given.accepted))
    return {"tokens": tokens, "seconds": time.perf_counter() - start, "rounds": done}
