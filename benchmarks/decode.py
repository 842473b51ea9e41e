"""How much faster is decoding with drafts than plain decoding, at which depth, and what does a head cost that is always wrong?

    python benchmarks/decode.py [--model FOLDER] [--context 1000 4000] [--repeats 5] [--answer 64] [--arms plain auto] [--endless]
                                [--dry-run] [--out FILE]

The measurement of `forerun bench decode` with more arms: depths 0 (plain) to 3, auto, and auto with a head whose drafts are the tokens
that it finds least likely ("wrong"). All arms are interleaved in one process; greedy, and at temperature 1.0, top-p 0.95, top-k 20. The
prompts are the user turns of the demo's conversation; the first has about --context tokens. --endless: every answer has all its tokens, so
that what `auto` spends at the beginning of an answer is apart from what it costs later. Ratios are of wall time and of CPU time, which
other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forerun.bench.subject import BenchModel, load
from forerun.config import Config

ARMS: dict[str, Any] = {"plain": 0, "depth 1": 1, "depth 2": 2, "depth 3": 3, "auto": "auto", "wrong": "auto"}


class Contrary:
    """A family whose draft head returns negated hidden vectors."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def draft(self, *arguments: Any) -> Any:
        return -self._family.draft(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder; the bundled model if not given")
    parser.add_argument("--context", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="plain among them")
    parser.add_argument("--endless", action="store_true", help="stop tokens end no answer")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would answer five turns at {options.context} tokens, {options.repeats} times greedy and sampled, in each of {options.arms}")
        return
    measure(load(Config.model_validate({"model": options.model})), options)


def measure(subject: BenchModel, options: argparse.Namespace) -> None:
    from evidence import evidence, ratio_interval, write
    from forerun.bench.decode import PLAIN, SAMPLINGS, Bench, Variant, prompts, rates, summary
    from forerun.decode.compiled import StepTable
    from forerun.decode.depth import policy_for

    results = []
    tables = {wrong: StepTable(Contrary(subject.family) if wrong else subject.family, eager_reason="") for wrong in (False, True)}
    for context_tokens in options.context:
        variants = [Variant(sampling, arm, tables[arm == "wrong"], policy_for(ARMS[arm])) for sampling in SAMPLINGS for arm in options.arms]
        turns = prompts(subject.tokenizer, subject.prompter, context_tokens)
        samples = list(Bench(subject.tokenizer, turns, variants, options.repeats, options.answer, options.endless).samples())
        rows = summary(samples)
        for row in rows:
            sampling, arm = row["sampling"], row["arm"]
            row["ratio_to_plain"] = ratio_interval(rates(samples, sampling, arm), rates(samples, sampling, PLAIN))
            row["cpu_ratio_to_plain"] = ratio_interval(
                rates(samples, sampling, arm, "cpu_seconds"), rates(samples, sampling, PLAIN, "cpu_seconds")
            )
        results.append({"context_tokens": len(turns[0].tokens), "rows": rows, "samples": [asdict(sample) for sample in samples]})
        show(len(turns[0].tokens), rows)
    config = {name: getattr(options, name) for name in ("context", "repeats", "answer", "arms", "endless")} | {
        "samplings": {k: asdict(v) for k, v in SAMPLINGS.items()}
    }
    head = evidence(kernels=subject.kernels, model_digest=subject.digest, numerics=subject.family.numerics.name, config=config)
    write(options.out, head | {"results": results})


def show(context_tokens: int, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        ratios = (row[name] for name in ("ratio_to_plain", "cpu_ratio_to_plain"))
        spans = ", CPU ".join(f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" for ratio in ratios)
        speed, depths = f"{row['tok_per_s']:.1f} tok/s", " ".join(map(str, row["depths"]))
        print(f"{context_tokens:6d} {row['sampling']:8s} {row['arm']:8s} {speed:>11s}  {spans}  rounds by depth {depths}", flush=True)


if __name__ == "__main__":
    main()
