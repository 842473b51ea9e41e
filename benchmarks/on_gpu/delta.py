"""The cost of the gated delta rule of a layer, by implementation. Knows kernels and arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from forerun.kernels import delta_rule, gated_delta
from forerun.models.qwen3_5 import Config
from on_gpu.report import operation_us
from on_gpu.shapes import noise

COPIES = 8
STEPS_UP_TO_ROWS = 16


def delta(config: Config, rows: int) -> dict[str, Any]:
    """Microseconds of one layer: our kernel; MLX's rule row by row for few rows, else chunks of array operations. Calls are independent."""
    keys, values = (rows, config.key_heads, config.key_dim), (rows, config.value_heads, config.value_dim)
    q, k, v = (noise(mx.zeros(shape, mx.bfloat16), i) * config.key_dim**-0.5 for i, shape in enumerate((keys, keys, values)))
    g, beta = (mx.sigmoid(noise(mx.zeros(values[:2]), i)) for i in (3, 4))
    states = [noise(mx.zeros((config.value_heads, config.value_dim, config.key_dim)), 5 + i) for i in range(COPIES)]
    mx.eval(q, k, v, g, beta, states)
    name, rule = ("steps", gated_delta.steps) if rows <= STEPS_UP_TO_ROWS else ("chunks", gated_delta.chunks)
    variants: dict[str, Callable[[int], Any]] = {name: lambda i: rule(q, k, v, g, beta, states[i])}
    if delta_rule.has_cuda_kernel(v.dtype, config.key_dim, config.value_dim):
        variants["kernel"] = lambda i: delta_rule.on_cuda(q, k, v, g, beta, states[i][None], [rows])
    return {"state_mb": states[0].nbytes / 1e6} | {name: {"us": operation_us(variant, COPIES)} for name, variant in variants.items()}
