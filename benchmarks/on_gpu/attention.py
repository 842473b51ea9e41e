"""The cost of attention of a few rows at a length, by implementation. Knows kernels and arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from forerun.kernels.numerics import FAST
from forerun.kernels.paged_attention import Pages, has_cuda_kernel, on_cuda, one_page, portable
from forerun.models.qwen3_5 import Config
from on_gpu.report import operation_us
from on_gpu.shapes import noise

PAGE_TOKENS = 64


def attention(config: Config, length: int, capacity: int, rows: int, enough_bytes: int) -> dict[str, Any]:
    """Microseconds of one layer: the kernel over pages and over one buffer, gathered pages, and MLX's own over the length or a capacity.

    Keys and values of `enough_bytes` are used in turn: several times what a cache of the device holds.
    """
    shape = (config.kv_heads, capacity, config.head_dim)
    layer_bytes = 2 * config.kv_heads * length * config.head_dim * 2
    copies = max(2, min(32, enough_bytes // layer_bytes))
    kv = [(noise(mx.zeros(shape, mx.bfloat16), i), noise(mx.zeros(shape, mx.bfloat16), 100 + i)) for i in range(copies)]
    q = noise(mx.zeros((config.heads, rows, config.head_dim), mx.bfloat16), 7)
    positions = mx.arange(length - rows, length, dtype=mx.int32)
    blocks = mx.random.permutation(capacity // PAGE_TOKENS, key=mx.random.key(1))[: -(-length // PAGE_TOKENS)].astype(mx.int32)
    mx.eval(kv, q, positions, blocks)
    variants: dict[str, Callable[[int], mx.array]] = {
        "gathered": lambda i: portable(q, Pages(*kv[i], blocks, PAGE_TOKENS), positions, length, 0, FAST),
        "mlx_length": lambda i: FAST.attention(q, kv[i][0][:, :length], kv[i][1][:, :length], positions, 0),
        "mlx_capacity": lambda i: FAST.attention(q, *kv[i], positions, 0),
    }
    if has_cuda_kernel(q, kv[0][0], rows):
        variants["kernel_paged"] = lambda i: on_cuda(q, Pages(*kv[i], blocks, PAGE_TOKENS), positions, 0, [rows])
        variants["kernel_one_page"] = lambda i: on_cuda(q, one_page(*kv[i]), positions, 0, [rows])
    found = {name: {"us": (us := operation_us(variant, copies)), "tb_per_s": layer_bytes / us / 1e6} for name, variant in variants.items()}
    return {"layer_mb": layer_bytes / 1e6} | found
