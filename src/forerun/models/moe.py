"""A mixture-of-experts block: a router chooses some experts for each row, and one shared expert serves all rows.

Knows nothing of the layers around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from forerun.errors import ModelError
from forerun.kernels.cuda_source import is_cuda
from forerun.kernels.swiglu import swiglu
from forerun.models.layers import Mlp
from forerun.models.linear import Linear
from forerun.models.weights import Weights

# From this many products on, they are sorted by expert, so that a GPU reads each expert's weights once. Fewer are faster unsorted: on Metal
# as mlx-lm measured, on CUDA by `experts` in benchmarks/results/gpu-h200-mixture.json.
SORTED_FROM, SORTED_FROM_ON_CUDA = 64, 2048


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """The fields of config.json that define the block. is_normalised: the weights of the chosen experts are scaled to sum to 1."""

    experts: int
    chosen: int
    ffn: int
    shared_ffn: int
    is_normalised: bool

    @classmethod
    def parse(cls, text: Mapping[str, Any]) -> MoeConfig:
        """Raises ModelError naming a field that is missing."""
        try:
            return cls(
                experts=text["num_experts"],
                chosen=text["num_experts_per_tok"],
                ffn=text["moe_intermediate_size"],
                shared_ffn=text["shared_expert_intermediate_size"],
                is_normalised=bool(text.get("norm_topk_prob", True)),
            )
        except KeyError as error:
            raise ModelError(f"config.json lacks {error.args[0]!r}", hint="a mixture of experts needs it") from error


@dataclass(frozen=True, slots=True)
class Moe:
    """sum over chosen experts of weight * expert(x), plus sigmoid(shared_gate(x)) * shared(x). gate_up and down: one matrix per expert."""

    config: MoeConfig
    router: Linear
    gate_up: Linear
    down: Linear
    shared: Mlp
    shared_gate: Linear

    @classmethod
    def read(cls, weights: Weights, prefix: str, hidden: int, config: MoeConfig) -> Moe:
        """The block whose tensors begin with `prefix`, gate and up of the experts fused or separate."""
        c, inner = config, f"{prefix}.experts"
        is_fused = bool(weights.names(f"{inner}.gate_up_proj."))
        outs = {f"{inner}.gate_up_proj": 2 * c.ffn} if is_fused else {f"{inner}.{x}_proj": c.ffn for x in ("gate", "up")}
        return cls(
            c,
            weights.linear(hidden, {f"{prefix}.gate": c.experts}),
            weights.linear(hidden, outs, experts=(c.experts,)),
            weights.linear(c.ffn, {f"{inner}.down_proj": hidden}, experts=(c.experts,)),
            Mlp.read(weights, f"{prefix}.shared_expert", hidden, c.shared_ffn),
            weights.linear(hidden, {f"{prefix}.shared_expert_gate": 1}),
        )

    def __call__(self, x: mx.array) -> mx.array:
        """[rows, hidden] for x [rows, hidden]. Row-invariant under EXACT."""
        weights, experts = self._route(x)
        routed = (self._experts(x, experts) * weights[..., None]).sum(axis=1)
        return routed + mx.sigmoid(self.shared_gate(x)) * self.shared(x)

    def _route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Weights and indices of the chosen experts, each [rows, chosen]; the softmax over all experts is in float32."""
        probs = mx.softmax(self.router(x).astype(mx.float32), axis=-1)
        experts = mx.argpartition(probs, kth=-self.config.chosen, axis=-1)[:, -self.config.chosen :]
        weights = mx.take_along_axis(probs, experts, axis=-1)
        if self.config.is_normalised:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return weights.astype(x.dtype), experts

    def _experts(self, x: mx.array, experts: mx.array) -> mx.array:
        """Each chosen expert's output, [rows, chosen, hidden]."""
        if experts.size < (SORTED_FROM_ON_CUDA if is_cuda() else SORTED_FROM):
            return self._run(x[:, None], experts, is_sorted=False)
        flat = experts.reshape(-1)
        order = mx.argsort(flat)
        y = self._run(x[order // self.config.chosen][:, None], flat[order][:, None], is_sorted=True)
        return y[mx.argsort(order)].reshape(*experts.shape, -1)

    def _run(self, x: mx.array, experts: mx.array, *, is_sorted: bool) -> mx.array:
        return self.down.of_experts(swiglu(self.gate_up.of_experts(x, experts, is_sorted=is_sorted)), experts, is_sorted=is_sorted)
