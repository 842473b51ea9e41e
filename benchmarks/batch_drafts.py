"""Do drafts pay when several requests decode at once? Rounds of a batch without drafts, with one each, and as `auto` chooses, in pairs.

    python benchmarks/batch_drafts.py [--sequences 1 2 4 8] [--context 700] [--answer 128] [--repeats 8] [--dry-run] [--out FILE]

All arms are interleaved round by round in one process, each with caches of its own, made in a changing order; greedy, and at temperature
1.0, top-p 0.95, top-k 20. Every answer has all its tokens, so that the batch stays full. The prompts are the user turns of the demo's
conversation. `auto` learns over the repeats, the first of which is not measured. Rounds: seconds (median) and tokens by number of drafts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forerun.bench.subject import BenchModel, load
from forerun.config import Config

ARMS: dict[str, Any] = {"plain": 0, "depth 1": 1, "auto": "auto"}


@dataclass
class Answered:
    """One batch of an arm: tokens after the first ones, seconds of its rounds, and those by number of drafts."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    emitted: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--context", type=int, default=700)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would decode {options.sequences} sequences after {options.context} tokens, {options.repeats} times in each of {list(ARMS)}")
        return
    measure(load(Config.model_validate({})), options)


def measure(subject: BenchModel, options: argparse.Namespace) -> None:
    from evidence import evidence, write
    from forerun.bench.decode import SAMPLINGS

    rows = [
        row
        for sampling in SAMPLINGS
        for num in options.sequences
        for row in table(num, sampling, list(repeats(subject, num, sampling, options)))
    ]
    config = {name: getattr(options, name) for name in ("sequences", "context", "answer", "repeats")}
    config |= {"samplings": {k: asdict(v) for k, v in SAMPLINGS.items()}}
    head = evidence(kernels=subject.kernels, model_digest=subject.digest, numerics=subject.family.numerics.name, config=config)
    write(options.out, head | {"rows": rows})


def table(num: int, sampling: str, found: Sequence[dict[str, Answered]]) -> list[dict[str, Any]]:
    """A row per arm; prints them."""
    from evidence import ratio_interval

    rates = {arm: [each[arm].tokens / each[arm].seconds for each in found] for arm in ARMS}
    rows = []
    for arm in ARMS:
        by_depth = {
            depth: {
                "rounds": sum(len(each[arm].rounds[depth]) for each in found),
                "median_s": statistics.median(s for each in found for s in each[arm].rounds[depth]),
                "tokens": sum(each[arm].emitted[depth] for each in found),
            }
            for depth in sorted({depth for each in found for depth in each[arm].emitted})
        }
        ratio = ratio_interval(rates[arm], rates["plain"])
        rows.append(
            {"sequences": num, "sampling": sampling, "arm": arm, "tok_per_s": rates[arm], "ratio_to_plain": ratio, "depths": by_depth}
        )
        span = "{median:.3f} ({low:.3f} to {high:.3f})".format(**ratio)
        times = "  ".join(
            f"{k}: {d['rounds']} of {1e3 * d['median_s']:.2f} ms, {d['tokens'] / d['rounds']:.2f}" for k, d in by_depth.items()
        )
        print(f"{num} {sampling:8s} {arm:8s} {statistics.median(rates[arm]):7.1f} tok/s  {span}  {times}", flush=True)
    return rows


def repeats(subject: BenchModel, num: int, sampling: str, options: argparse.Namespace) -> Iterator[dict[str, Answered]]:
    """Each repeat's batches by arm."""
    from forerun.bench.decode import prompts
    from forerun.decode.compiled import StepTable
    from forerun.decode.depth import policy_for
    from forerun.state.store import Arena

    steps, arena = StepTable(subject.family, eager_reason=""), Arena(subject.family.spec)
    stored = [prefilled(subject, arena, prompt) for prompt in prompts(subject.tokenizer, subject.prompter, options.context)]
    policies, names = {arm: policy_for(depth) for arm, depth in ARMS.items()}, list(ARMS)
    for repeat in range(-1, options.repeats):
        order = [names[(repeat + i) % len(names)] for i in range(len(names))][:: 1 if repeat // len(names) % 2 else -1]
        batches = {arm: batch(subject, arena, steps, policies[arm], stored, num, sampling, options.answer) for arm in order}
        answered = decoded(batches)
        if repeat >= 0:
            yield answered


def prefilled(subject: BenchModel, arena: Any, prompt: Any) -> tuple[Any, Any]:
    """The prompt, and its state as records."""
    from forerun.bench.decode import prefill_prompt, records_of
    from forerun.state.conversion import materialise
    from forerun.state.layout import Contiguous

    cache = materialise(arena, [], None, Contiguous(), len(prompt.tokens))
    prefill_prompt(subject.family, cache, prompt)
    return prompt, records_of(cache, prompt)


def batch(
    subject: BenchModel, arena: Any, steps: Any, policy: Any, stored: Sequence[tuple[Any, Any]], num: int, sampling: str, answer: int
) -> list[Any]:
    """So many generations with their first token; the prompts in turn."""
    from forerun.bench.decode import SAMPLINGS
    from forerun.decode.generate import Generation
    from forerun.state.conversion import materialise
    from forerun.state.layout import Contiguous
    from forerun.text.answer import Answer

    generations, longest = [], max(len(prompt.tokens) for prompt, _ in stored)
    for prompt, (segment, snapshot) in (stored[i % len(stored)] for i in range(num)):
        cache = materialise(arena, [segment], snapshot, Contiguous(), longest - len(prompt.tokens) + answer)
        text, endless = Answer(subject.tokenizer, (), ""), frozenset[int]()
        settings = {"max_tokens": answer, "stop_ids": endless, "policy": policy}
        generations.append(Generation(steps, cache, prompt.tokens, SAMPLINGS[sampling], text, **settings))
        generations[-1].begin()
    return generations


def decoded(batches: dict[str, list[Any]]) -> dict[str, Answered]:
    """Run rounds of all arms in turn until all answers are whole. By depth only rounds of the whole batch count."""
    from forerun.decode.generate import decode

    found = {arm: Answered() for arm in batches}
    while any(g.finish is None for generations in batches.values() for g in generations):
        for arm, generations in batches.items():
            running, answered = [g for g in generations if g.finish is None], found[arm]
            if not running:
                continue
            start_s = time.perf_counter()
            results = decode(running)
            seconds, tokens = time.perf_counter() - start_s, sum(len(result.tokens) for result in results)
            answered.seconds, answered.tokens = answered.seconds + seconds, answered.tokens + tokens
            if len(running) == len(generations):
                depth = max(result.drafted for result in results)
                answered.rounds[depth].append(seconds)
                answered.emitted[depth] += tokens
    return found


if __name__ == "__main__":
    main()
