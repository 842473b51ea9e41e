"""The functions of the module `forerun._cpu`, typed. Shapes and dtypes of each: `operations.h`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx


class Operations(Protocol):
    """Arrays are float32 unless `operations.h` says otherwise; wrong shapes and dtypes raise ValueError."""

    MLX_VERSION: str

    def instruction_sets(self) -> list[str]: ...
    def instruction_set(self) -> str: ...
    def use(self, name: str) -> None: ...
    def num_threads(self) -> int: ...
    def set_num_threads(self, threads: int) -> None: ...
    def rms_norm(self, x: mx.array, gain: mx.array, eps: float) -> mx.array: ...
    def add_rms_norm(self, x: mx.array, residual: mx.array, gain: mx.array, eps: float) -> tuple[mx.array, mx.array]: ...
    def swiglu(self, x: mx.array) -> mx.array: ...
    def linear(self, x: mx.array, w: mx.array) -> mx.array: ...
    def quantised_linear(self, x: mx.array, packed: mx.array, scales: mx.array, biases: mx.array, bits: int, group: int) -> mx.array: ...
    def block_linear(self, x: mx.array, blocks: mx.array, format: str) -> mx.array: ...
    def block_rows(self, blocks: mx.array, ids: mx.array, format: str) -> mx.array: ...
    def block_dequantise(self, blocks: mx.array, format: str) -> mx.array: ...
    def linear_of_experts(self, x: mx.array, w: mx.array, experts: mx.array) -> mx.array: ...
    def quantised_linear_of_experts(
        self, x: mx.array, packed: mx.array, scales: mx.array, biases: mx.array, experts: mx.array, bits: int, group: int
    ) -> mx.array: ...
    def log_softmax(self, x: mx.array) -> mx.array: ...
    def top_k(self, x: mx.array, k: int) -> tuple[mx.array, mx.array]: ...
    def delta_net(
        self,
        projected: mx.array,
        tails: Sequence[mx.array],
        matrices: Sequence[mx.array],
        spans: Sequence[int],
        conv: mx.array,
        decay_rate: mx.array,
        dt_bias: mx.array,
        gain: mx.array,
        eps: float,
        key_heads: int,
        value_heads: int,
    ) -> tuple[mx.array, list[mx.array], list[mx.array]]: ...
    def attention_inputs(
        self,
        projected: mx.array,
        q_gain: mx.array | None,
        k_gain: mx.array | None,
        eps: float,
        positions: mx.array,
        frequencies: mx.array,
        heads: int,
        kv_heads: int,
        head_dim: int,
        is_gated: bool,
        is_traditional: bool,
    ) -> tuple[mx.array, mx.array]: ...
    def write_rows(self, keys: mx.array, values: mx.array, k: mx.array, v: mx.array, at: mx.array) -> tuple[mx.array, mx.array]: ...
    def attention(
        self,
        q: mx.array,
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        blocks: Sequence[mx.array | None],
        spans: Sequence[int],
        positions: mx.array,
        first: int,
        block_tokens: int,
    ) -> mx.array: ...
    def sigmoid_gate(self, y: mx.array, projected: mx.array, heads: int, head_dim: int) -> mx.array: ...
