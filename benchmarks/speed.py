"""How fast are prefill and plain decoding on the bundled model, MTP rows and snapshots included?

python benchmarks/speed.py [--tokens 2048] [--answer 128] [--repeats 5] [--dry-run] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from forerun.config import Config, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would prefill {options.tokens} tokens and generate {options.answer}, {options.repeats} times")
        return
    prepare(Config.model_validate({}))
    measure(options)


def measure(options: argparse.Namespace) -> None:
    import mlx.core as mx

    from evidence import evidence, write
    from forerun.decode.compiled import StepTable
    from forerun.decode.depth import DepthPolicy
    from forerun.decode.generate import Generation
    from forerun.decode.prefill import prefill
    from forerun.kernels import arithmetic
    from forerun.models.load import DEMO_MODEL, load
    from forerun.state.conversion import materialise
    from forerun.state.layout import Contiguous
    from forerun.state.store import Arena
    from forerun.text.answer import Answer
    from forerun.text.tokenizer import Tokenizer
    from forerun.values import GREEDY

    here, tokenizer = arithmetic.here(), Tokenizer.load(DEMO_MODEL)
    loaded = load(DEMO_MODEL, here.numerics, here.dtype, lambda doing, done_frac: None)
    tokens = [int(t) for t in mx.random.randint(0, 8000, (options.tokens,), key=mx.random.key(1)).tolist()]  # type: ignore[union-attr, arg-type]
    plain = DepthPolicy((0,))
    samples: dict[str, list[float]] = {"prefill_tok_per_s": [], "decode_tok_per_s": []}
    steps = StepTable(loaded.family, eager_reason="")
    for repeat in range(options.repeats + 1):
        cache = materialise(Arena(loaded.family.spec), [], None, Contiguous(), options.tokens + options.answer)
        start = time.perf_counter()
        for _ in prefill(loaded.family, cache, tokens, (options.tokens - 5, options.tokens)):
            pass
        read = time.perf_counter()
        answer = Answer(tokenizer, (), "")
        rounds = Generation(steps, cache, tokens, GREEDY, answer, max_tokens=options.answer, stop_ids=frozenset(), policy=plain)
        for _ in rounds:
            pass
        rounds.store()
        mx.eval(cache.arrays())
        done = time.perf_counter()
        if repeat:  # the first one warms up
            samples["prefill_tok_per_s"].append(options.tokens / (read - start))
            samples["decode_tok_per_s"].append(options.answer / (done - read))
    config = {"tokens": options.tokens, "answer": options.answer, "repeats": options.repeats, "sampling": "temperature 0"}
    medians = {key: statistics.median(values) for key, values in samples.items()}
    head = evidence(kernels=here.kernels, model_digest=loaded.digest, numerics=here.numerics.name, config=config)
    write(options.out, head | {"samples": samples, "median": medians})
    print(f"{here.numerics.name} ({here.kernels}): " + ", ".join(f"{key} {value:.0f}" for key, value in medians.items()))


if __name__ == "__main__":
    main()
