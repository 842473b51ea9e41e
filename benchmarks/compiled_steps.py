"""What does compiling a step gain on this machine? Steps of the bundled model, compiled and eager, in both layouts, interleaved.

    python benchmarks/compiled_steps.py [--context 2000] [--repeats 60] [--dry-run] [--out FILE]

A step is a pass over some rows and its logits; its rows are not kept, so that every sample does the same. Also counts the operations of a
compiled pass, embedding and last norm included, over the model's layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

import mlx.core as mx  # noqa: E402

from evidence import evidence, interleaved, ratio_interval, write  # noqa: E402
from forerun.decode.compiled import StepTable  # noqa: E402
from forerun.decode.prefill import prefill  # noqa: E402
from forerun.kernels import arithmetic  # noqa: E402
from forerun.models.load import DEMO_MODEL, LoadedModel, load  # noqa: E402
from forerun.state.cache import Cache, lend  # noqa: E402
from forerun.state.conversion import materialise, relayout_as_chosen  # noqa: E402
from forerun.state.layout import PAGE_TOKENS, Contiguous, Layout, Paged  # noqa: E402
from forerun.state.store import Arena  # noqa: E402

HERE = arithmetic.here()
WIDTHS = (1, 2, 4)
LAYOUTS: tuple[Layout, ...] = (Contiguous(), Paged(PAGE_TOKENS))


def step(steps: StepTable, cache: Cache[Any], rows: int) -> float:
    """Seconds of one step."""
    start_s = time.perf_counter()
    with lend([cache], steps.family.numerics) as view:
        hidden = steps.forward(mx.arange(rows, dtype=mx.int32) + 100, [cache], [rows], view)
        mx.eval(steps.family.head(hidden))
        view.keep([0], hidden)
    return time.perf_counter() - start_s


def operations(steps: StepTable, cache: Cache[Any], rows: int) -> dict[str, int]:
    """How many operations of each name a pass has, as MLX runs it."""
    text = StringIO()
    with lend([cache], steps.family.numerics) as view:
        hidden = steps.forward(mx.arange(rows, dtype=mx.int32) + 100, [cache], [rows], view)
        mx.export_to_dot(text, hidden)
        view.keep([0], hidden)
    return dict(Counter(line.split('"')[1] for line in text.getvalue().splitlines() if "shape=rectangle" in line))


def measure(loaded: LoadedModel, context_tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each layout and width: samples of both ways, their medians, eager over compiled; seconds of the first compiled step."""
    compiled, eager = StepTable(loaded.family, eager_reason=""), StepTable(loaded.family, eager_reason="compared")
    tokens = [int(t) for t in mx.random.randint(0, 8000, (context_tokens,), key=mx.random.key(1)).tolist()]  # type: ignore[union-attr, arg-type]
    rows, num_layers = list[dict[str, Any]](), len(loaded.family.spec.layers)
    for layout in LAYOUTS:
        cache = materialise(Arena(loaded.family.spec), [], None, Contiguous(), context_tokens)
        for _ in prefill(loaded.family, cache, tokens, ()):
            pass
        arranged = relayout_as_chosen(cache, layout)
        for width in WIDTHS:
            variants: dict[str, Callable[[], float]] = {
                "compiled": lambda c=arranged, w=width: step(compiled, c, w),  # type: ignore[misc]
                "eager": lambda c=arranged, w=width: step(eager, c, w),  # type: ignore[misc]
            }
            first_s = variants["compiled"]()
            interleaved(variants, 5)
            counts = operations(compiled, arranged, width)
            per_layer = sum(counts.values()) / num_layers
            row = {
                "layout": str(layout),
                "rows": width,
                "first_compiled_s": first_s,
                "operations": counts,
                "operations_per_layer": per_layer,
            }
            rows.append(row | compared(interleaved(variants, repeats)))
    return rows


def compared(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Medians in milliseconds, and how much longer the eager step takes."""
    medians = {f"{name}_ms": 1e3 * statistics.median(values) for name, values in samples.items()}
    return medians | {"eager_over_compiled": ratio_interval(samples["eager"], samples["compiled"]), "samples_s": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        print(f"would time steps of {WIDTHS} rows after {options.context} tokens, {options.repeats} times each way ({HERE.kernels})")
        return
    loaded = load(DEMO_MODEL, HERE.numerics, HERE.dtype, lambda doing, done_frac: None)
    rows = measure(loaded, options.context, options.repeats)
    config = {"context": options.context, "repeats": options.repeats}
    write(
        options.out, evidence(kernels=HERE.kernels, model_digest=loaded.digest, numerics=HERE.numerics.name, config=config) | {"rows": rows}
    )
    for row in rows:
        gain = row["eager_over_compiled"]
        spread = f"{gain['median']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})"
        times = f"compiled {row['compiled_ms']:.2f} ms, eager {row['eager_ms']:.2f} ms: {spread}"
        print(f"{row['layout']:11} {row['rows']} rows: {times}; {row['operations_per_layer']:.1f} operations a layer")


if __name__ == "__main__":
    main()
