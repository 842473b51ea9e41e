"""The cost of first uses in a new process: proofs, steps, a first long prompt, and short turns of varying lengths.

    python benchmarks/on_gpu/first_use.py [--tiny]

Prints JSON, seconds. gpu_server.py runs it in separate processes, with and without cuDNN's attention, and each twice: the second
time MLX finds its compiled kernels on disk.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

import mlx.core as mx  # noqa: E402

from forerun.decode.compiled import StepTable  # noqa: E402
from forerun.decode.prefill import prefill  # noqa: E402
from forerun.decode.warm_up import warm_up  # noqa: E402
from forerun.kernels import proof  # noqa: E402
from forerun.kernels.numerics import FAST  # noqa: E402
from forerun.models.load import DEMO_MODEL, load  # noqa: E402
from forerun.state.conversion import materialise  # noqa: E402
from forerun.state.layout import Contiguous  # noqa: E402
from forerun.state.store import Arena  # noqa: E402

TURNS = 6


def seconds(run: Callable[[], Any]) -> float:
    begun_s = time.perf_counter()
    run()
    return round(time.perf_counter() - begun_s, 3)


def main() -> None:
    long, is_gpu = 200 if "--tiny" in sys.argv else 20_000, mx.default_device() == mx.gpu
    device = mx.default_device()
    found: dict[str, Any] = {f"proof: {k.name}": seconds(lambda k=k: k.errors(device)) for k in proof.KERNELS}
    family = load(DEMO_MODEL, FAST, "bfloat16" if is_gpu else "float32", lambda doing, done_frac: None).family
    found["warm_up"] = seconds(lambda: warm_up(StepTable(family, eager_reason=""), Contiguous(), 3, lambda doing, done_frac: None))
    tokens = [7 * i % family.vocab for i in range(2 * long)]

    def read(cache: Any, count: int) -> None:
        for _ in prefill(family, cache, tokens[:count], ()):
            pass

    for name in ("long_prompt", "long_prompt_again"):
        cache = materialise(Arena(family.spec), [], None, Contiguous(), long)
        found[name] = seconds(lambda cache=cache: read(cache, long))
    lengths = [long + sum(300 + 37 * i for i in range(turn + 1)) * long // 20_000 for turn in range(TURNS)]
    for length in lengths:
        cache.store.reserve(length)
    found["turns"] = [seconds(lambda length=length: read(cache, length)) for length in lengths]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
