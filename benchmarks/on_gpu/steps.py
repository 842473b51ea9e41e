"""Prefill and steps of our own model, timed on caches that are ready. Knows families, caches and tables of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import mlx.core as mx

from forerun.decode.compiled import StepTable
from forerun.decode.prefill import prefill
from forerun.models.qwen3_5 import Attention, DeltaNetMixer, Layer, Qwen35
from forerun.state.cache import Cache, View, lend
from forerun.state.conversion import materialise
from forerun.state.layout import Contiguous
from forerun.state.store import Arena
from forerun.state.trace import CompiledPass
from on_gpu.report import Times, operation_us, seconds, times
from on_gpu.shapes import noise, tokens_of, weight_bytes

EAGER = "requested"


def prefill_speed(family: Qwen35, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Prefill into an empty cache, draft rows included, after one of two chunks as warm-up."""
    tokens = tokens_of(family, num_tokens)
    _prefill(family, tokens[:1024])
    samples = [_prefill(family, tokens) for _ in range(repeats)]
    return {"tok_per_s": round(num_tokens / sorted(samples)[len(samples) // 2], 1), "samples_s": samples}


def _prefill(family: Qwen35, tokens: Sequence[int]) -> float:
    cache = materialise(Arena(family.spec), [], None, Contiguous(), len(tokens))
    mx.eval(cache.arrays())

    def run() -> list[mx.array]:
        for _ in prefill(family, cache, tokens, ()):
            pass
        return [family.head(cache.hidden[None])]

    return seconds(run)


def step(table: StepTable, cache: Cache[Any], rows: int, *, repeats: int, warm: int = 3) -> Times:
    """A verification of `rows` rows with logits of all; the rows are kept, as if all drafts were accepted."""
    family = table.family
    tokens = mx.array([t % family.vocab for t in range(7, 7 + rows)], dtype=mx.int32)
    snapshot = cache.snapshot()

    def run() -> list[Any]:
        with lend([cache], family.numerics) as view:
            hidden = table.forward(tokens, [cache], [tokens.shape[0]], view)
            view.keep([rows], hidden)
        return [family.head(hidden), cache.arrays()]

    measured = times(run, repeats=repeats, warm=warm)
    cache.truncate(snapshot)
    return measured


def draft(table: StepTable, cache: Cache[Any], *, repeats: int) -> Times:
    """One draft: the draft layer over one row, and its logits."""
    family, token = table.family, mx.array([5], dtype=mx.int32)

    def run() -> list[Any]:
        with lend([cache], family.numerics) as view:
            hidden = table.draft(cache.hidden[None], token, [cache], [1], view)
            view.keep_draft([0])
        return [family.head(hidden), cache.store.buffers]

    return times(run, repeats=repeats, warm=3)


def operations(family: Qwen35, cache: Cache[Any]) -> dict[str, int]:
    """The number of operations in an eager step of one row, the most frequent ones by name."""
    text, names = StringIO(), dict[str, int]()
    with lend([cache], family.numerics) as view:
        hidden = family.forward(mx.array([3], dtype=mx.int32), [1], view)
        view.keep([0], hidden)
        mx.export_to_dot(text, family.head(hidden))
        mx.eval(hidden, cache.store.buffers)
    for line in text.getvalue().splitlines():
        if "shape=rectangle" in line:
            name = line.split('"')[1]
            names[name] = names.get(name, 0) + 1
    frequent = sorted(names.items(), key=lambda item: -item[1])[:12]
    return {"all": sum(names.values())} | dict(frequent)


def launch_us() -> float:
    """Microseconds of one small operation that waits for the one before."""
    x = mx.random.normal((1024,), key=mx.random.key(0))

    def run() -> mx.array:
        y = x
        for _ in range(500):
            y = mx.sin(y)
        return y

    return times(run, repeats=7, warm=2)["ms"] * 2


def floor(family: Qwen35, cache: Cache[Any], copy_bytes: int) -> dict[str, float]:
    """The bytes that a step of one row must read, and how long that takes at the speed of a device copy here."""
    source = mx.random.uniform(shape=(copy_bytes // 2,), dtype=mx.bfloat16, key=mx.random.key(0))
    mx.eval(source)
    copied = times(lambda: source + 1, repeats=5, warm=2)["ms"]
    rows = cache.length * family.spec.bytes_per_token + 2 * family.spec.bytes_per_snapshot
    terabytes_per_s = 2 * source.nbytes / copied / 1e9
    return {
        "weight_gb": weight_bytes(family) / 1e9,
        "state_gb": rows / 1e9,
        "copy_tb_per_s": terabytes_per_s,
        "step_ms": (weight_bytes(family) + rows) / terabytes_per_s / 1e9,
    }


Part = Callable[[mx.array, View], mx.array]


def profile(family: Qwen35, cache: Cache[Any], rows: int, *, compiled: bool) -> dict[str, Any]:
    """Milliseconds of a step's pieces, each run through all layers of its kind alone; and the same for each layer, in microseconds."""
    layers: list[Layer] = vars(family)["_layers"]
    pieces: dict[str, tuple[Part, int]] = {
        "delta": (_mixers(layers, DeltaNetMixer), sum(isinstance(x.mixer, DeltaNetMixer) for x in layers)),
        "attention": (_mixers(layers, Attention), sum(isinstance(x.mixer, Attention) for x in layers)),
        "mlp": (_mlps(layers), len(layers)),
    }
    found: dict[str, Any] = {}
    x = noise(mx.zeros((rows, family.config.hidden), mx.bfloat16), 3)
    for name, (part, count) in pieces.items():
        ms = _piece(family, cache, part, x, compiled=compiled)["ms"]
        found[name] = {"ms": ms, "us_a_layer": round(ms * 1e3 / count, 1)}
    found["head"] = {"ms": operation_us(lambda i: family.head(x + i), 8) / 1e3}
    return found


def _piece(family: Qwen35, cache: Cache[Any], part: Part, x: mx.array, *, compiled: bool) -> Times:
    rows = x.shape[0]

    def whole(x: mx.array, view: View) -> mx.array:
        view.begin([rows])
        return part(x, view)

    one = CompiledPass(whole, family.spec, cache.layout, family.numerics)

    def run() -> list[Any]:
        with lend([cache], family.numerics) as view:
            y = view.run(one, [rows], x, is_draft=False) if compiled else whole(x, view)
            after = view.recurrence()[0]
        return [y, after, cache.store.buffers]

    return times(run, repeats=7, warm=2)


def _mixers(layers: Sequence[Layer], kind: type[Attention] | type[DeltaNetMixer]) -> Part:
    def part(x: mx.array, view: View) -> mx.array:
        positions = mx.arange(x.shape[0], dtype=mx.int32)
        for i, layer in enumerate(layers):
            h = layer.mixer_norm(x)
            if isinstance(layer.mixer, kind):
                x = x + (layer.mixer(h, i, positions, view) if isinstance(layer.mixer, Attention) else layer.mixer(h, i, view))
        return x

    return part


def _mlps(layers: Sequence[Layer]) -> Part:
    def part(x: mx.array, view: View) -> mx.array:
        for layer in layers:
            x = x + layer.mlp(layer.mlp_norm(x))
        return x

    return part
