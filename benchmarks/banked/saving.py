"""What does saving a conversation add to a request that runs meanwhile? The bundled model's engine; pairs of an answer, interleaved.

Before each answer another prompt is prefilled: with saving, it is stored, all of it pending when the answer begins; without, it
bypasses the bank. The answer itself bypasses it, without drafts, so that a step is a token.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from banked.asking import events, running, submit, until_written
from evidence import ratio_interval
from forerun.engine.local import LocalEngine
from forerun.values import BankUse, Content, Reasoning, TokenPrompt

PAIRS, SAVED_TOKENS, PROMPT_TOKENS, ANSWER_TOKENS = 12, 3_000, 64, 120
CONFIG = {
    "pairs": PAIRS,
    "saved_tokens": SAVED_TOKENS,
    "prompt_tokens": PROMPT_TOKENS,
    "answer_tokens": ANSWER_TOKENS,
    "draft_depth": 0,
}
LIMIT = 1.10


def measure() -> dict[str, Any]:
    """Milliseconds a step of each answer, all steps, and what was pending as an answer began and ended."""
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(paired(Path(folder) / "bank"))
    found: dict[str, Any] = {name: summed_up(answers) for name, answers in samples.items()}
    found["saving_over_not"] = ratio_interval(found["saving"]["answer_ms_a_step"], found["not"]["answer_ms_a_step"])
    print(f"saving over not: {found['saving_over_not']}, p99 {found['saving']['p99_ms']:.1f} against {found['not']['p99_ms']:.1f} ms")
    return found


def checks(found: dict[str, Any]) -> dict[str, bool]:
    """What must hold."""
    pending = [first - last for first, last in found["saving"]["pending"]]
    return {
        "a conversation is saved while another answers": min(pending) > 0,
        "saving adds at most a tenth to an answer": found["saving_over_not"]["median"] <= LIMIT,
    }


async def paired(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The answers of both arms."""
    found: dict[str, list[dict[str, Any]]] = {"saving": [], "not": []}
    order = random.Random(0)
    async with running(folder, draft_depth=0) as engine:
        await answer(engine, tokens("warm", SAVED_TOKENS), "bypass")
        for number in range(PAIRS):
            for name in order.sample(list(found), 2):
                found[name].append(await answer(engine, tokens(number, SAVED_TOKENS), "use" if name == "saving" else "bypass"))
    return found


async def answer(engine: LocalEngine, before: TokenPrompt, bank: BankUse) -> dict[str, Any]:
    """The moments of an answer's pieces, and what was pending at its first and its last."""
    saved = await submit(engine, before, max_tokens=1, bank=bank)
    asked = await submit(engine, tokens("answer", PROMPT_TOKENS), max_tokens=ANSWER_TOKENS, bank="bypass")
    _ = [event async for event in saved]
    moments, pending = [], []
    async for moment, event in events(asked):
        if isinstance(event, Content | Reasoning):
            moments.append(moment)
            if len(moments) == 1:
                pending.append(engine.health().bank.pending_writes)
    pending.append(engine.health().bank.pending_writes)
    await until_written(engine)
    return {"moments": moments, "pending": pending}


def summed_up(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds: a step of each answer, and the longest and the 99th percentile of all pieces' distances."""
    distances = [1e3 * (b - a) for each in answers for a, b in zip(each["moments"], each["moments"][1:], strict=False)]
    a_step = [1e3 * (each["moments"][-1] - each["moments"][0]) / (ANSWER_TOKENS - 1) for each in answers]
    cuts = statistics.quantiles(distances, n=100)
    summary = {"median_ms": statistics.median(a_step), "p50_ms": cuts[49], "p99_ms": cuts[98], "longest_ms": max(distances)}
    return summary | {"answer_ms_a_step": a_step, "pending": [each["pending"] for each in answers]}


def tokens(seed: object, num: int) -> TokenPrompt:
    """A prompt of so many random tokens."""
    rng = random.Random(str(seed))
    return TokenPrompt(tuple(rng.randrange(300, 8000) for _ in range(num)))
