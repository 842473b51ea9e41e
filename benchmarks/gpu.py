"""What does a step, a prompt, a draft and a restore cost on a GPU, where does the time go, and what does mlx-lm take for the same?

    python benchmarks/gpu.py [--sections correct,bundled,...] [--limit-s 460] [--tiny] [--dry-run] [--out FILE]

Models of real shapes have random weights; caches have random rows. Each part runs separately, is printed, and written to the file at once:
a part that fails leaves its traceback there, and a run that is cut off leaves the parts before. See gpu.md for how to run it and read the
results.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from forerun.config import Config, prepare

prepare(Config.model_validate({}))

import mlx.core as mx  # noqa: E402

from evidence import evidence  # noqa: E402
from forerun.decode.compiled import StepTable  # noqa: E402
from forerun.kernels import cpu  # noqa: E402
from forerun.kernels.numerics import FAST  # noqa: E402
from forerun.models.load import DEMO_MODEL, load  # noqa: E402
from forerun.models.qwen3_5 import Qwen35  # noqa: E402
from forerun.state.layout import Contiguous, Paged  # noqa: E402
from forerun.text.tokenizer import Tokenizer  # noqa: E402
from on_gpu import batch, bundled, correct, experts, peer, quantised, steps  # noqa: E402
from on_gpu.attention import PAGE_TOKENS, attention  # noqa: E402
from on_gpu.delta import delta  # noqa: E402
from on_gpu.report import Report, seconds, short  # noqa: E402
from on_gpu.restore import Restores  # noqa: E402
from on_gpu.shapes import SHAPES, filled, random_family  # noqa: E402

SECTIONS = (
    "correct",
    "bundled",
    "batch",
    "quantised",
    "experts",
    "shape-0.8B",
    "shape-27B",
    "shape-27B-4bit",
    "shape-35B-A3B",
    "shape-35B-A3B-4bit",
)
HEADROOM_TOKENS = 1024
WIDTHS = (1, 2, 4, 8)
SHAPES_OF_27B = ((34_816, 5120), (5120, 17_408), (248_320, 5120))  # gate and up, down, head
SHAPES_OF_TINY = ((128, 512),)
EXPERTS_OF_35B = ((256, 8, 1024, 2048), (256, 8, 2048, 512))  # gate and up, down: how many, how many are chosen, out, in
BETWEEN = (32, 64, 128, 256)  # rows, where the fastest implementation of expert products changes
EXPERTS_OF_TINY = ((8, 2, 64, 64),)


class Scale(NamedTuple):
    """Sizes. prompts: of prefill; short, long: contexts in tokens; capacities: that rows are written into."""

    prompts: tuple[int, int]
    short: int
    long: int
    repeats: int
    capacities: tuple[int, int]
    num_prompts: int
    answer: int
    copy_bytes: int


FULL = Scale(
    prompts=(512, 4096), short=4096, long=65_536, repeats=9, capacities=(8192, 65_536), num_prompts=6, answer=64, copy_bytes=1 << 29
)
TINY = Scale(prompts=(20, 40), short=64, long=1100, repeats=1, capacities=(256, 512), num_prompts=1, answer=4, copy_bytes=1 << 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="which, in order")
    parser.add_argument("--limit-s", type=float, default=460.0, help="no part is begun after so many seconds")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, uncompiled, few repeats: runs every line, measures nothing")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sections = options.sections.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if options.dry_run:
        print(f"would run {', '.join(sections)} on {device()} for at most {options.limit_s:.0f} s")
        return
    if options.tiny:
        mx.disable_compile()
        cpu.extension = lambda: None  # the CPU kernels take float32, and these models are bfloat16
    run(sections, TINY if options.tiny else FULL, Report(options.out, {}, options.limit_s), is_tiny=options.tiny)


def run(sections: list[str], scale: Scale, report: Report, *, is_tiny: bool) -> None:
    report.part("machine", "evidence", lambda: head(scale, is_tiny=is_tiny))
    report.part("machine", "launch_us", steps.launch_us)
    if {"correct", "bundled", "batch"} & set(sections):
        demo: Any = load(DEMO_MODEL, FAST, "bfloat16", lambda doing, done_frac: None).family
        if "correct" in sections:
            correct.run(report, demo, capacities=scale.capacities)
        if "batch" in sections:
            run_batches(report, demo, scale, is_tiny=is_tiny)
        if "bundled" in sections:
            bundled.run(report, demo, num_prompts=scale.num_prompts, answer=scale.answer, repeats=2 * scale.repeats)
    products(report, sections, scale, is_tiny=is_tiny)
    for name in (s for s in sections if s.startswith("shape-")):
        shape = name.removeprefix("shape-")
        config = SHAPES[shape.replace("27B", "tiny").replace("35B-A3B", "tiny-moe") if is_tiny else shape]
        ours(report, name, config, scale)
        free()
        # mlx-lm's products of many rows with quantised weights take minutes to compile here.
        peer.run(report, name, config, prompts=() if "quantization" in config else scale.prompts, lengths=(scale.short, scale.long))
        free()
        report.part(name, "ratios", lambda name=name: ratios(report, name, scale))
    for name in sections:
        if name.startswith("shape-"):
            print(f"{name}: {short(report.result['sections'][name]['ratios'])}")


def run_batches(report: Report, demo: Any, scale: Scale, *, is_tiny: bool) -> None:
    """Several sequences at once: the bundled model's drafts, and the 27B shape in 4 bits without them."""
    prompts = [p["token_ids"] for p in json.loads((DEMO_MODEL / "reference.json").read_text())["prompts"][: scale.num_prompts]]
    tokenizer = Tokenizer.load(DEMO_MODEL)
    report.part("batch", "bundled_drafts", lambda: batch.drafts(demo, tokenizer, prompts, scale.answer, scale.repeats))
    family, context = random_family(SHAPES["tiny-4bit" if is_tiny else "27B-4bit"]), 64 if is_tiny else batch.CONTEXT
    for layout in (Contiguous(), Paged(PAGE_TOKENS)):
        report.part("batch", f"rounds_{layout}", lambda at=layout: batch.plain(family, at, context, 2 * scale.repeats))
        free()


def products(report: Report, sections: list[str], scale: Scale, *, is_tiny: bool) -> None:
    """Products alone: with quantised weights, with the experts of a mixture."""
    widths = (*WIDTHS, scale.prompts[0])
    if "quantised" in sections:
        for (out, inner), rows in product(SHAPES_OF_TINY if is_tiny else SHAPES_OF_27B, widths):
            part = f"{out} x {inner}, {rows} rows"
            report.part("quantised", part, lambda o=out, i=inner, r=rows: quantised.products(o, i, r, scale.copy_bytes))
    if "experts" in sections:
        for shape, rows in product(EXPERTS_OF_TINY if is_tiny else EXPERTS_OF_35B, (*widths, *BETWEEN)):
            part = "{1} of {0}, {2} x {3}, ".format(*shape) + f"{rows} rows"
            report.part("experts", part, lambda s=shape, r=rows: experts.products(*s, r))  # type: ignore[call-arg]
    free()


def head(scale: Scale, *, is_tiny: bool) -> dict[str, Any]:
    """Evidence of the run. Weights are random but those of the bundled model."""
    config = scale._asdict() | {"is_tiny": is_tiny}
    found = evidence(kernels="on the device", model_digest="see tests/gates", numerics="fast", config=config)
    return found | {"device": device(), "model": {"name": "bundled, and shapes of random weights", "quantisation": "none (bfloat16)"}}


def device() -> str:
    """The kind of device."""
    info = mx.device_info(mx.default_device())
    return ", ".join(f"{name} {value}" for name, value in info.items() if name not in ("uuid", "pci_bus_id", "free_memory"))


def free() -> None:
    gc.collect()
    mx.clear_cache()


def ours(report: Report, name: str, config: Mapping[str, Any], scale: Scale) -> None:
    """Our model of a shape: short contexts, long ones, pieces, restores."""
    made: list[Qwen35] = []
    report.part(name, "build_s", lambda: seconds(lambda: made.append(random_family(config)) or []))
    if not made:
        return
    family = made[0]
    compiled, eager = StepTable(family, eager_reason=""), StepTable(family, eager_reason=steps.EAGER)
    for num_tokens in scale.prompts:
        report.part(name, f"prefill_{num_tokens}", lambda n=num_tokens: steps.prefill_speed(family, n, 3))
    short_context(report, name, family, {"compiled": compiled, "eager": eager}, scale)
    long_context(report, name, compiled, scale)
    for rows in (1, 4, 8):
        for length in (scale.short, scale.long):
            capacity = -(-(length + HEADROOM_TOKENS) // 256) * 256
            report.part(
                name,
                f"attention_{rows}_at_{length}",
                lambda r=rows, n=length, c=capacity: attention(family.config, n, c, r, scale.copy_bytes),
            )
    for rows in (1, 4, 8, 512):
        report.part(name, f"delta_rule_{rows}", lambda r=rows: delta(family.config, r))
    free()
    with tempfile.TemporaryDirectory() as folder:
        Restores(report, name, compiled, Path(folder), scale.long).run(3)


def short_context(report: Report, name: str, family: Qwen35, tables: Mapping[str, StepTable], scale: Scale) -> None:
    cache = filled(family, Contiguous(), scale.short, HEADROOM_TOKENS)
    report.part(name, "floor", lambda: steps.floor(family, cache, scale.copy_bytes))
    for kind, table in tables.items():
        for rows in WIDTHS:
            report.part(name, f"step_{rows}_{kind}", lambda t=table, r=rows: steps.step(t, cache, r, repeats=scale.repeats))
        report.part(name, f"draft_{kind}", lambda t=table: steps.draft(t, cache, repeats=scale.repeats))
    report.part(name, "operations", lambda: steps.operations(family, cache))
    for rows in (1, 4):
        for is_compiled in (True, False):
            kind = "compiled" if is_compiled else "eager"
            report.part(name, f"pieces_{rows}_{kind}", lambda r=rows, c=is_compiled: steps.profile(family, cache, r, compiled=c))


def long_context(report: Report, name: str, table: StepTable, scale: Scale) -> None:
    for layout in (Contiguous(), Paged(PAGE_TOKENS)):
        for length in (scale.short, scale.long):
            cache = filled(table.family, layout, length, HEADROOM_TOKENS)
            for rows in (1, 4):
                part = f"step_{rows}_{layout}_at_{length}"
                report.part(name, part, lambda c=cache, r=rows: steps.step(table, c, r, repeats=scale.repeats))
            del cache
            free()


def ratios(report: Report, name: str, scale: Scale) -> dict[str, float]:
    """Ours over mlx-lm's (speeds) or mlx-lm's over ours (times): above 1 forerun is faster. And ratios of our own variants."""

    def of(top: tuple[str, ...], bottom: tuple[str, ...]) -> float | None:
        a, b = report.find(name, *top), report.find(name, *bottom)
        return round(a / b, 3) if a and b else None

    found: dict[str, float | None] = {}
    for n in scale.prompts:
        found[f"prefill_{n}"] = of((f"prefill_{n}", "tok_per_s"), (f"mlx_lm_prefill_{n}", "tok_per_s"))
    for n in (scale.short, scale.long):
        for rows in (1, 4):
            found[f"step_{rows}_at_{n}"] = of((f"mlx_lm_step_{rows}_at_{n}", "ms"), (f"step_{rows}_contiguous_at_{n}", "ms"))
    long_step, paged_step = f"step_1_contiguous_at_{scale.long}", f"step_1_paged({PAGE_TOKENS})_at_{scale.long}"
    found["long_over_short_step"] = of((long_step, "ms"), (f"step_1_contiguous_at_{scale.short}", "ms"))
    found["paged_over_contiguous_at_long"] = of((paged_step, "ms"), (long_step, "ms"))
    for rows in WIDTHS[1:]:
        found[f"step_{rows}_over_1"] = of((f"step_{rows}_compiled", "ms"), ("step_1_compiled", "ms"))
    found["draft_over_step"] = of(("draft_compiled", "ms"), ("step_1_compiled", "ms"))
    found["eager_over_compiled"] = of(("step_1_eager", "ms"), ("step_1_compiled", "ms"))
    found["step_over_floor"] = of(("step_1_compiled", "ms"), ("floor", "step_ms"))
    found["ssd_over_plain_read"] = of(("restore_ssd", "s"), ("plain_read", "s"))
    return {key: value for key, value in found.items() if value is not None}


if __name__ == "__main__":
    main()
