"""What do the five turns of the demonstration cost, with stored state and without? The README's table is made from the result.

python benchmarks/five_turns.py [--scale small|full] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from forerun.cli.demo import MODEL, demo

HEAD = ("turn", "path", "context", "reused", "first token s", "without stored state s", "prefill tok/s", "decode tok/s", "layout", "answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=["small", "full"], default="small")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would play the {options.scale} demonstration and write {options.out}")
        return
    measure(options)


def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = Path(folder) / "played.json"
        demo(played, options.scale)
        result = json.loads(played.read_text())
    from evidence import evidence, write
    from forerun.kernels import arithmetic
    from forerun.models.load import load

    server, here = result["server"], arithmetic.here()
    digest = load(MODEL, here.numerics, here.dtype, lambda doing, done_frac: None).digest
    config = {"scale": options.scale, "sampling": "temperature 0"}
    head = evidence(kernels=server["kernels"], model_digest=digest, numerics=server["numerics"], config=config)
    write(options.out, result | head)
    print(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """The turns of a result as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row(turn) for turn in result["turns"])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(turn: dict[str, Any]) -> tuple[str, ...]:
    report, usage = turn["answer"]["report"], turn["answer"]["usage"]
    counts = (f"{usage['prompt_tokens']:,}", f"{report['reused_tokens']:,}")
    seconds = (f"{variant['report']['ttft_s']:.2f}" for variant in (turn["answer"], turn["bypass"]))
    speeds = ("-" if speed is None else f"{speed:,.0f}" for speed in (report["prefill_tok_per_s"], report["decode_tok_per_s"]))
    return (turn["turn"], turn["path"], *counts, *seconds, *speeds, report["layout"], turn["same"]["text"])


if __name__ == "__main__":
    main()
