"""A gated DeltaNet layer between its two projections: convolution, gated delta rule, norm and output gate.

On a CPU one kernel computes all of it. Elsewhere what depends on each row alone is outside the rule, so that a replay of the recurrence
does not compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from forerun.kernels import cpu, delta_inputs, delta_rule, gated_delta
from forerun.kernels.delta_inputs import Heads
from forerun.kernels.difference import difference
from forerun.kernels.norms import rms_norm
from forerun.kernels.numerics import GatedDelta
from forerun.kernels.row_span import joined_rows, split_rows
from forerun.kernels.states import States
from forerun.kernels.swiglu import silu

Arrays = tuple[mx.array, ...]


@dataclass(frozen=True, slots=True)
class Parameters:
    """conv [width, channels]; decay_rate, dt_bias [value_heads] float32; gain [value_dim] of the output's norm."""

    heads: Heads
    conv: mx.array
    decay_rate: mx.array
    dt_bias: mx.array
    gain: mx.array
    eps: float


class DeltaNet(Protocol):
    """State: convolution tail [width - 1, channels], matrix [value_heads, value_dim, key_dim] float32.

    `rule` runs over the rows of `inputs(projected)`, which lie end to end by sequence: spans[j] of them after states.of(j). It returns
    the states after them. `output` of what it returned is the layer's, [rows, value width].
    projected [rows, channels + value width + 2 value_heads]: q, k and v; output gates z; betas b; decays a.
    """

    def inputs(self, projected: mx.array) -> Arrays: ...

    def rule(self, states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]: ...

    def output(self, y: mx.array, projected: mx.array) -> mx.array: ...


def delta_net(parameters: Parameters, rule: GatedDelta) -> DeltaNet:
    """The layer on the default device; `rule` where no kernel computes all of it."""
    return OnCpu(parameters) if cpu.extension() else PortableDeltaNet(parameters, rule)


@dataclass(frozen=True, slots=True)
class OnCpu:
    """One CPU kernel."""

    parameters: Parameters

    def inputs(self, projected: mx.array) -> Arrays:
        return (projected,)

    def rule(self, states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]:
        p, (projected,), kernels = self.parameters, inputs, cpu.extension()
        assert kernels is not None
        y, tails, matrices = kernels.delta_net(
            projected,
            [tail for tail, _ in states.each()],
            [matrix for _, matrix in states.each()],
            spans,
            p.conv,
            p.decay_rate,
            p.dt_bias,
            p.gain,
            p.eps,
            p.heads.key_heads,
            p.heads.value_heads,
        )
        return y, States(list(zip(tails, matrices, strict=True)))

    def output(self, y: mx.array, projected: mx.array) -> mx.array:
        return y


@dataclass(frozen=True, slots=True)
class PortableDeltaNet:
    """Array operations, and the kernels of CUDA for parts."""

    parameters: Parameters
    gated_delta: GatedDelta

    def inputs(self, projected: mx.array) -> Arrays:
        p = self.parameters
        qkv, _, b, a = self._parts(projected)
        decay = mx.exp(-p.decay_rate * mx.logaddexp(a.astype(mx.float32) + p.dt_bias, 0.0))
        return qkv, decay, mx.sigmoid(b)

    def rule(self, states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]:
        if self._has_cuda_kernels(inputs[0].dtype):
            return self._on_cuda(states, inputs, spans)
        parts = zip(*(split_rows(x, spans) for x in inputs), strict=True)
        outputs, after = zip(*map(self._of_one, states.each(), parts), strict=True)
        return joined_rows(outputs), States(after)

    def _has_cuda_kernels(self, dtype: mx.Dtype) -> bool:
        heads = self.parameters.heads
        is_fast = self.gated_delta is delta_rule.delta_rule and dtype == self.parameters.conv.dtype
        return is_fast and delta_inputs.has_cuda_kernel(dtype, heads) and delta_rule.has_cuda_kernel(dtype, heads.key_dim, heads.value_dim)

    def _on_cuda(self, states: States, inputs: Arrays, spans: Sequence[int]) -> tuple[mx.array, States]:
        """All sequences in one launch of each kernel."""
        qkv, decay, beta = inputs
        tails, matrices = states.stacked()
        q, k, v, tails = delta_inputs.on_cuda(tails, qkv, self.parameters.conv, self.parameters.heads, spans)
        y, matrices = delta_rule.on_cuda(q, k, v, decay, beta, matrices, spans)
        return y, States(stacked=(tails, matrices))

    def _of_one(self, state: Arrays, inputs: Arrays) -> tuple[mx.array, Arrays]:
        (tail, matrix), (qkv, decay, beta) = state, inputs
        q, k, v, tail = delta_inputs.portable(tail, qkv, self.parameters.conv, self.parameters.heads)
        y, matrix = self.gated_delta(q, k, v, decay, beta, matrix)
        return y, (tail, matrix)

    def output(self, y: mx.array, projected: mx.array) -> mx.array:
        p, (_, z, _, _) = self.parameters, self._parts(projected)
        gated = rms_norm(y.astype(projected.dtype), p.gain, p.eps) * silu(z.reshape(y.shape))
        return gated.reshape(y.shape[0], -1)

    def _parts(self, projected: mx.array) -> list[mx.array]:
        heads = self.parameters.heads
        width = heads.value_heads * heads.value_dim
        channels = 2 * heads.key_heads * heads.key_dim + width
        return list(mx.split(projected, (channels, channels + width, channels + width + heads.value_heads), axis=-1))


def errors(device: mx.Device) -> list[float]:
    """`error` for the heads of real models, one row and many; empty where no kernel computes the layer."""
    with mx.stream(device):
        shapes = (Heads(4, 64, 8, 64), Heads(16, 128, 16, 128), Heads(16, 128, 48, 128))
        return [error(rows, heads) for heads in shapes for rows in (1, 70)] if cpu.extension() else []


def error(rows: int, heads: Heads) -> float:
    """Relative error of `OnCpu` against `PortableDeltaNet` with the reference rule on random rows; see `difference`."""
    value_width = heads.value_heads * heads.value_dim
    channels = 2 * heads.key_heads * heads.key_dim + value_width
    shapes = ((4, channels), (heads.value_heads,), (heads.value_heads,), (heads.value_dim,))
    state_shapes = ((3, channels), (heads.value_heads, heads.value_dim, heads.key_dim))
    keys = iter(mx.random.split(mx.random.key(rows), 7))
    conv, rate, bias, gain, tail, matrix = (mx.random.normal(s, key=next(keys)) for s in (*shapes, *state_shapes))
    projected = mx.random.normal((rows, channels + value_width + 2 * heads.value_heads), key=next(keys))
    parameters = Parameters(heads, conv, mx.abs(rate), bias, gain, 1e-6)
    layers: tuple[DeltaNet, DeltaNet] = (OnCpu(parameters), PortableDeltaNet(parameters, gated_delta.steps))
    return difference(*(_all_of(layer, projected, (tail, matrix)) for layer in layers))


def _all_of(layer: DeltaNet, projected: mx.array, state: Arrays) -> Arrays:
    y, after = layer.rule(States([state]), layer.inputs(projected), [projected.shape[0]])
    return layer.output(y, projected), *after.of(0)
