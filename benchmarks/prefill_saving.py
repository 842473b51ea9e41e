"""What does it cost to save a prompt while it is prefilled, so that a crash after the first token does not lose it?

    PYTHONPATH=. python benchmarks/prefill_saving.py [--tokens 2420] [--repeats 9] [--dry-run] [--out FILE]

The bundled model's engine with a bank on disk, and cold prompts that share nothing. Arms: with
saving and without, interleaved. Each sample is the time to the first token.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

from banked.asking import events, running, submit, until_written  # noqa: E402
from evidence import evidence, interleaved, model_of, ratio_interval, write  # noqa: E402
from forerun.engine.local import LocalEngine  # noqa: E402
from forerun.engine.sequence import RunningSequence  # noqa: E402
from forerun.kernels import arithmetic  # noqa: E402
from forerun.models.load import DEMO_MODEL  # noqa: E402
from forerun.values import Done, TokenPrompt  # noqa: E402


async def ttft_s(engine: LocalEngine, tokens: Sequence[int], *, is_saving: bool) -> tuple[float, int]:
    """Seconds to the first token of a cold prompt, and how many of its tokens were durable by then."""
    saver = RunningSequence._prefill_saver if is_saving else lambda turn, restored: None
    with patch.object(RunningSequence, "_prefill_saver", saver):
        *_, (_, done) = [event async for event in events(await submit(engine, TokenPrompt(tuple(tokens)), max_tokens=1, bank="use"))]
    await until_written(engine)
    assert isinstance(done, Done)
    return done.report.ttft_s, done.report.durable_tokens


async def measure(num_tokens: int, repeats: int) -> dict[str, object]:
    draw, durable = random.Random(0), dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as engine:
            loop = asyncio.get_running_loop()

            def arm(name: str) -> float:
                tokens = [draw.randrange(8000) for _ in range(num_tokens)]
                asked = ttft_s(engine, tokens, is_saving=name == "saving")
                seconds, durable[name] = asyncio.run_coroutine_threadsafe(asked, loop).result()
                return seconds

            arms: dict[str, Callable[[], float]] = {name: partial(arm, name) for name in ("saving", "plain")}
            await asyncio.to_thread(interleaved, arms, 1)  # compiles
            samples = await asyncio.to_thread(interleaved, arms, repeats)
    ratio = statistics.median(samples["saving"]) / statistics.median(samples["plain"])
    return {"ratio": ratio, "interval": ratio_interval(samples["saving"], samples["plain"]), "durable_tokens": durable, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2420)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dry-run", action="store_true", help="print what would be measured")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = {"tokens": options.tokens, "repeats": options.repeats}
    if options.dry_run:
        print(f"would time the first token of {2 * options.repeats} cold prompts of {options.tokens} tokens, with saving and without")
        return
    result = asyncio.run(measure(options.tokens, options.repeats))
    print(f"first token with saving / without: {result['ratio']:.3f} {result['interval']}, durable {result['durable_tokens']}")
    here, digest = arithmetic.here(), model_of(DEMO_MODEL)["digest"]
    write(options.out, evidence(kernels=here.kernels, model_digest=digest, numerics=here.numerics.name, config=config) | result)


if __name__ == "__main__":
    main()
