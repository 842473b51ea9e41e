"""Whether a checkpoint's norm weights are gains, or differences from 1. Both occur; a wrong guess gives noise, or rejected drafts.

Qwen's own files hold differences (zero-centred: y = x (1 + w)); conversions for MLX add the 1 ("folded"), some to the target but not to the
MTP head. So each is decided separately, by what the checkpoint declares or else by evidence, which is recorded. Knows tensors, no
family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from forerun.errors import ModelError
from forerun.models.weights import Weights

DECLARED = "forerun_norms"  # in config.json: {"target": "folded", "mtp": "zero-centred"}
DELTAS = ("delta", "delta_plus_one", "mlx_delta")
NORM = re.compile(r"norm(_\w+)?\.weight$")
HINT = f'declare them in config.json: "{DECLARED}": {{"target": "folded", "mtp": "zero-centred"}}'
# Trained gains have means above the first. Of differences at least one mean is below it, and none of q_norm or k_norm above the second.
MIN_GAIN, MAX_HEAD_DIFFERENCE = 0.5, 1.25


@dataclass(frozen=True, slots=True)
class Convention:
    """is_zero_centred: the gain is 1 + weight. evidence: the reason, for notes."""

    is_zero_centred: bool
    evidence: str

    def __str__(self) -> str:
        return f"{'zero-centred' if self.is_zero_centred else 'folded'} ({self.evidence})"


def of_target(config: Mapping[str, Any], conv: mx.array) -> Convention:
    """The target model's convention. conv: a convolution's weight, [channels, 1, width] as on the hub or [channels, width, 1] as in MLX."""
    declared = _declared(config, "target")
    if declared is not None:
        return declared
    if conv.ndim == 3 and conv.shape[1] == 1 and conv.shape[2] > 1:
        return Convention(True, "conv1d as on the hub")
    return Convention(False, "conv1d as MLX has it")


def of_mtp(weights: Weights, target: Convention) -> Convention:
    """The MTP head's convention. Raises ModelError if the evidence contradicts itself."""
    declared = _declared(weights.config, "mtp")
    if declared is not None:
        return declared
    if target.is_zero_centred and not weights.has_separate_head:
        return Convention(True, "in the target's own files, which are")
    means = {name: _mean(weights.peek(name)) for name in weights.names("mtp.") if NORM.search(name)}
    lowest = min(means.values(), default=1.0)
    highest_of_heads = max((mean for name, mean in means.items() if name.endswith(("q_norm.weight", "k_norm.weight"))), default=0.0)
    if lowest >= MIN_GAIN:
        return Convention(False, f"means from {lowest:.2f} up")
    if highest_of_heads < MAX_HEAD_DIFFERENCE:
        return Convention(True, f"means down to {lowest:.2f}")
    listed = ", ".join(f"{name} {mean:.2f}" for name, mean in sorted(means.items()))
    raise ModelError(f"the norms of the MTP head are neither clearly gains nor differences from 1; means: {listed}", hint=HINT)


def _mean(weight: mx.array) -> float:
    return cast(float, weight.astype(mx.float32).mean().item())


def _declared(config: Mapping[str, Any], part: str) -> Convention | None:
    declared = (config.get(DECLARED) or {}).get(part)
    if declared in ("folded", "zero-centred"):
        return Convention(declared == "zero-centred", "declared")
    if declared is not None:
        raise ModelError(f"config.json: {DECLARED} of {part} is {declared!r}", hint=HINT)
    encodings = [config.get(key) for key in ("mtplx_mtp_norm_encoding", "mtp_norm_encoding")] if part == "mtp" else []
    return Convention(True, "declared") if any(e in DELTAS for e in encodings) else None
