"""Whether the device computes correctly: kernels, compiled steps, writes in place, and state that is stored and restored."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.decode.compiled import StepTable
from forerun.kernels import attention, delta_inputs, delta_rule, gated_delta, paged_attention, quantised
from forerun.kernels.numerics import FAST
from forerun.kernels.write_rows import put_rows, write_rows
from forerun.models.base import Family
from forerun.state.cache import Cache, lend
from forerun.state.host import host, is_shared
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.record import Identity
from forerun.values import Source
from on_gpu.report import Report, seconds, times
from on_gpu.shapes import filled, noise, tokens_of

FLUSH_S = 60.0
LAYOUTS: tuple[Layout, ...] = (Contiguous(), Paged(64))


def run(report: Report, family: Any, *, capacities: tuple[int, int]) -> None:
    """All parts of section `correct`, with a model that is ready."""
    report.part("correct", "kernel_error", lambda: worst(paged_attention))
    report.part("correct", "kernel_error_of_one_page", one_page_error)
    for name, kernel in (("attention", attention), ("delta_rule", delta_rule), ("delta_inputs", delta_inputs), ("quantised", quantised)):
        report.part("correct", f"{name}_error", lambda kernel=kernel: worst(kernel))
    for layout in LAYOUTS:
        report.part("correct", f"compiled_against_eager_{layout}", lambda layout=layout: compiled_against_eager(family, layout))
    report.part("correct", "contiguous_against_paged", lambda: layouts_differ(family))
    report.part("correct", "write_in_place", lambda: {str(c): write_ms(c) for c in capacities})
    report.part("correct", "host", lambda: host_view(capacities[1]))
    for layout in LAYOUTS:
        report.part("correct", f"out_and_back_{layout}", lambda layout=layout: out_and_back(family, layout, "ssd"))
        report.part("correct", f"fork_{layout}", lambda layout=layout: out_and_back(family, layout, "ram"))
    report.part("correct", "chunked_delta_rule", chunked_error)


def worst(kernel: Any) -> float | None:
    """The largest error of a kernel's module, None where it does not run."""
    return max(kernel.errors(mx.default_device()), default=None)


def one_page_error() -> float | None:
    """Of the kernel over one buffer against MLX's attention in float32, as `paged_attention.error`."""
    q, keys, values = (noise(mx.zeros(s, mx.bfloat16), i) for i, s in enumerate(((24, 4, 256), (4, 3000, 256), (4, 3000, 256))))
    if not paged_attention.has_cuda_kernel(q, keys, q.shape[1]):
        return None
    positions = mx.arange(2500, 2504, dtype=mx.int32)
    found = paged_attention.on_cuda(q, paged_attention.one_page(keys, values), positions, 1, [4]).astype(mx.float32)
    exact_q, exact_keys, exact_values = (x.astype(mx.float32) for x in (q, keys, values))
    expected = FAST.attention(exact_q, exact_keys, exact_values, positions, 1)
    return float(mx.abs(found - expected).max() / mx.abs(expected).max())


def compiled_against_eager(family: Family, layout: Layout) -> dict[str, float]:
    """Largest difference of logits, for steps of several widths one after another, and the largest logit."""
    difference, largest = 0.0, 0.0
    tables = [StepTable(family, eager_reason=reason) for reason in ("requested", "")]
    caches = [filled(family, layout, 300, 64) for _ in tables]
    for rows in (1, 2, 4, 1, 8):
        eager, compiled = (logits(table, cache, rows) for table, cache in zip(tables, caches, strict=True))
        difference = max(difference, float(mx.abs(eager - compiled).max()))
        largest = max(largest, float(mx.abs(eager).max()))
    return {"difference": difference, "largest_logit": largest}


def layouts_differ(family: Family) -> dict[str, float]:
    """Largest difference of logits between pages and one buffer that hold the same rows, eager."""
    table, whole, paged = StepTable(family, eager_reason="requested"), *(filled(family, layout, 300, 64) for layout in LAYOUTS)
    paged.store.fill(0, whole.store.rows(0, 300))
    one, other = (logits(table, cache, 4) for cache in (whole, paged))
    return {"difference": float(mx.abs(one - other).max()), "largest_logit": float(mx.abs(one).max())}


def logits(table: StepTable, cache: Cache[Any], rows: int) -> mx.array:
    """The logits of a step whose rows are kept."""
    with lend([cache], table.family.numerics) as view:
        hidden = table.forward(mx.arange(3, 3 + rows, dtype=mx.int32), [cache], [rows], view)
        view.keep([rows], hidden)
    found = table.family.head(hidden)
    mx.eval(found, cache.arrays())
    return found


def write_ms(capacity: int) -> dict[str, Any]:
    """Writing 4 rows into 32 buffers: with an int start, an array start, and row indices; compiled as in a step."""
    rows, start = noise(mx.zeros((4, 4, 256), mx.bfloat16), 1), mx.array(100, dtype=mx.int32)
    at = mx.array([100, 7, 200, 15], dtype=mx.int32)
    variants: dict[str, Any] = {
        "number": lambda buffers: [write_rows(b, rows, 100) for b in buffers],
        "array": mx.compile(lambda buffers: [write_rows(b, rows, start) for b in buffers]),
        "places": mx.compile(lambda buffers: [put_rows(b, rows, at) for b in buffers]),
    }
    return {name: _write_ms(variant, capacity) for name, variant in variants.items()}


def _write_ms(variant: Any, capacity: int) -> dict[str, float]:
    buffers = [noise(mx.zeros((4, capacity, 256), mx.bfloat16), i) for i in range(32)]
    mx.eval(buffers)

    def write() -> list[mx.array]:
        buffers[:] = variant(given_away(buffers))
        return buffers

    before = mx.get_active_memory()
    mx.reset_peak_memory()
    return {"ms": times(write, repeats=7, warm=2)["ms"], "extra_mb": max(0, mx.get_peak_memory() - before) / 1e6}


def given_away(buffers: list[mx.array]) -> list[mx.array]:
    """The buffers, removed from the list that held them."""
    taken, buffers[:] = list(buffers), []
    return taken


def host_view(rows: int) -> dict[str, Any]:
    """Whether the host writes through its view, and the cost on the device after the host has read an array."""
    array = noise(mx.zeros((4, rows, 256), mx.bfloat16), 1)
    mx.eval(array)
    read_ms = times(lambda: array.sum(axis=1), repeats=5, warm=2)["ms"]
    looked_ms = seconds(lambda: [mx.array(int(host(array)[0, 0, 0]))]) * 1e3
    first_ms = seconds(lambda: array.sum(axis=1)) * 1e3
    later_ms = times(lambda: array.sum(axis=1), repeats=5, warm=1)["ms"]
    sizes = {"mb": array.nbytes / 1e6, "is_shared": is_shared()}
    return sizes | {"sum_ms": read_ms, "look_ms": looked_ms, "sum_after_first_ms": first_ms, "sum_after_later_ms": later_ms}


def out_and_back(family: Family, layout: Layout, source: Source) -> dict[str, bool]:
    """Whether all arrays of a cache have the same bits after a round trip through records on disk (ssd), or in a fork (ram), in either
    layout.
    """
    cache, tokens = filled(family, layout, 1500, 64), tokens_of(family, 1500)  # type: ignore[arg-type]
    rows = [part.copy() for part in cache.store.rows(0, 1500)]
    fixed = [host(a).copy() for a in cache.snapshot().arrays()]
    found: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder, closing(_bank(family, Path(folder), source)) as bank:
        bank.remember(cache, tokens, [cache.snapshot()], FinishedTurn("one", "", 1, 0, 1))
        assert bank.flush(FLUSH_S)
        for requested in LAYOUTS:
            restored: Any = bank.restore(tokens, tenant="", session=f"for {requested}", layout=requested, headroom_tokens=64)
            back = restored.cache
            assert (restored.reused_tokens, restored.source, back.layout) == (1500, source, requested)
            same = [np.array_equal(a, b) for a, b in zip(rows, back.store.rows(0, 1500), strict=True)]
            same += [np.array_equal(a, host(b)) for a, b in zip(fixed, back.snapshot().arrays(), strict=True)]
            found[str(requested)] = all(same)
    return found


def _bank(family: Family, folder: Path, source: Source) -> Bank:
    """A bank from which conversations are restored from this source alone."""
    disk = DiskTier(folder, limit_bytes=1 << 34, daily_limit_bytes=1 << 62, index=hold(folder)) if source == "ssd" else None
    ram_limit_bytes, identity = 0 if disk else 1 << 34, Identity("w", "m", "t", "t", "bfloat16", "fast")
    return Bank(family.spec, identity, disk=disk, secret=secret(folder) if disk else b"benchmark", ram_limit_bytes=ram_limit_bytes)


def chunked_error() -> dict[str, float]:
    """Of the chunked rule against steps in float32, 300 rows of 16 key heads and 48 value heads of 128: relative norms."""
    shapes = ((300, 16, 128), (300, 16, 128), (300, 48, 128), (300, 48), (300, 48), (48, 128, 128))
    q, k, v, g, beta, state = (noise(mx.zeros(s), i) for i, s in enumerate(shapes))
    q, k = (x / mx.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    g, beta, state = mx.exp(-0.1 * mx.abs(g)), mx.sigmoid(beta), 0.1 * state
    expected = gated_delta.steps(q, k, v, g, beta, state)
    found: dict[str, float] = {}
    for dtype in (mx.float32, mx.bfloat16):
        y, new = gated_delta.chunks(*(x.astype(dtype) for x in (q, k, v)), g, beta.astype(dtype), state)  # type: ignore[call-arg]
        for name, a, b in (("y", y, expected[0]), ("state", new, expected[1])):
            found[f"{name}_{str(dtype).split('.')[-1]}"] = float(mx.linalg.norm(a.astype(mx.float32) - b) / mx.linalg.norm(b))
    return found
