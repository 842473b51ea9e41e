"""The cost of a mixture's products, rows with the matrices of their chosen experts, by implementation. Knows arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from forerun.kernels.quantised import PackedMatrix, Scheme, dequantise, quantise
from on_gpu.report import operation_us
from on_gpu.shapes import noise

SCHEME = Scheme("affine", 4, 32)
COPIES = 4
MAX_TAKEN = 256  # matrices that are copied to be multiplied with
Variant = Callable[[Any], mx.array]


def products(num: int, chosen: int, out: int, inner: int, rows: int) -> dict[str, Any]:
    """Microseconds and errors of x [rows, inner] with `chosen` of `num` matrices [out, inner] for each row, in bfloat16 and in 4 bits."""
    weights = [noise(mx.zeros((num, out, inner), mx.bfloat16), i) for i in range(COPIES)]
    packed = [quantise(weight, SCHEME) for weight in weights]
    x = noise(mx.zeros((rows, inner), mx.bfloat16), 99)
    experts = mx.argpartition(mx.random.normal((rows, num), key=mx.random.key(7)), kth=-chosen, axis=-1)[:, -chosen:]
    mx.eval(weights, packed, x, experts)
    plain, quantised = _plain(x, experts), _packed(x, experts)
    found = {f"bfloat16 {name}": _result(variant, weights, x, experts, weights[0]) for name, variant in plain.items()}
    whole = dequantise(packed[0], mx.bfloat16)
    return found | {f"4 bits {name}": _result(variant, packed, x, experts, whole) for name, variant in quantised.items()}


def _plain(x: mx.array, experts: mx.array) -> dict[str, Variant]:
    def gathered(w: mx.array) -> mx.array:
        return mx.gather_mm(x[:, None, None], w.swapaxes(-1, -2), rhs_indices=experts)[:, :, 0]

    def taken(w: mx.array) -> mx.array:
        return (w[experts] @ x[:, None, :, None])[..., 0]

    variants: dict[str, Variant] = {"gathered": gathered, "in order": lambda w: _in_order(x, w, experts)}
    return variants | ({"taken": taken} if experts.size <= MAX_TAKEN else {})


def _packed(x: mx.array, experts: mx.array) -> dict[str, Variant]:
    how = SCHEME._asdict()

    def gathered(w: PackedMatrix) -> mx.array:
        return mx.gather_qmm(x[:, None, None], *w[:3], rhs_indices=experts, transpose=True, **how)[:, :, 0]

    def in_order(w: PackedMatrix) -> mx.array:
        def run(rows: mx.array, chosen: mx.array) -> mx.array:
            return mx.gather_qmm(x[rows][:, None], *w[:3], rhs_indices=chosen, transpose=True, sorted_indices=True, **how)

        return _sorted(experts, run)

    def taken(w: PackedMatrix) -> mx.array:
        parts = [None if part is None else part[experts] for part in w[:3]]
        return (dequantise(PackedMatrix(*parts, w.scheme), x.dtype) @ x[:, None, :, None])[..., 0]  # type: ignore[arg-type, call-arg]

    def unpacked(w: PackedMatrix) -> mx.array:
        return _in_order(x, dequantise(w, x.dtype), experts)

    variants: dict[str, Variant] = {"gathered": gathered, "in order": in_order, "unpacked first": unpacked}
    return variants | ({"taken": taken} if experts.size <= MAX_TAKEN else {})


def _in_order(x: mx.array, w: mx.array, experts: mx.array) -> mx.array:
    def run(rows: mx.array, chosen: mx.array) -> mx.array:
        return mx.gather_mm(x[rows][:, None], w.swapaxes(-1, -2), rhs_indices=chosen, sorted_indices=True)

    return _sorted(experts, run)


def _sorted(experts: mx.array, run: Callable[[mx.array, mx.array], mx.array]) -> mx.array:
    flat = experts.reshape(-1)
    order = mx.argsort(flat)
    return run(order // experts.shape[1], flat[order])[:, 0][mx.argsort(order)].reshape(*experts.shape, -1)


def _result(variant: Variant, weights: list[Any], x: mx.array, experts: mx.array, whole: mx.array) -> dict[str, Any]:
    """Microseconds, and the largest error of the first row over the largest value; or why the device cannot."""
    try:
        found = variant(weights[0])[0].astype(mx.float32)
        right = (whole[experts[0]].astype(mx.float32) @ x[0, :, None].astype(mx.float32))[..., 0]
        error = float(mx.abs(found - right).max() / mx.abs(right).max())
        return {"us": operation_us(lambda i: variant(weights[i]), COPIES), "error": round(error, 5)}
    except (RuntimeError, ValueError) as failed:
        return {"failed": str(failed)}
