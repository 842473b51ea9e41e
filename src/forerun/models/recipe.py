"""The quantisation of each matrix: one default scheme, other bits where a pattern matches. Pure.

Knows module names (canonical ones, see names.py); no tensors, no files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from forerun.errors import ConfigError
from forerun.kernels.quantised import Scheme
from forerun.models.linear import SCHEMES

PLAIN_BITS = 16
# Routers are small, and a wrong choice of experts is a large error.
LEFT_PLAIN = ("*.mlp.gate", "*.mlp.shared_expert_gate")
MTP = "mtp."


@dataclass(frozen=True, slots=True)
class Recipe:
    """default: of every matrix. preset, overrides: (module path pattern, bits); the last match wins; 16 bits is plain. A pattern of a
    preset may match nothing; one of `overrides` comes from the user and must match.

    The MTP head is plain unless `is_mtp_forced`: quantised, its drafts are accepted less often, or never.
    """

    default: Scheme
    preset: tuple[tuple[str, int], ...]
    overrides: tuple[tuple[str, int], ...]
    is_mtp_forced: bool

    def check(self, paths: Collection[str]) -> None:
        """Raises ConfigError for bits or groups that MLX does not have, an override that matches nothing, or the MTP head if not forced."""
        for bits in (self.default.bits, *(bits for _, bits in self.overrides)):
            if bits != PLAIN_BITS and Scheme("affine", bits, self.default.group_size) not in SCHEMES:
                raise ConfigError(
                    f"{bits} bits in groups of {self.default.group_size}", hint="2, 3, 4, 5, 6 or 8 in groups of 32, 64 or 128"
                )
        for pattern, bits in self.overrides:
            matched = [path for path in paths if fnmatchcase(path, pattern)]
            if not matched:
                raise ConfigError(f"--override {pattern}: no matrix of this model matches", hint="for example '*.down_proj=8'")
            if not self.is_mtp_forced and bits != PLAIN_BITS and all(path.startswith(MTP) for path in matched):
                hint = "its drafts would be accepted less often, or never; --force-mtp quantises it anyway"
                raise ConfigError(f"--override {pattern}: the MTP head stays as it is", hint=hint)

    def scheme(self, path: str, inner: int) -> Scheme | None:
        """The scheme of the matrix [..., out, inner] of this module; None is plain."""
        if any(fnmatchcase(path, pattern) for pattern in LEFT_PLAIN) or (path.startswith(MTP) and not self.is_mtp_forced):
            return None
        bits = next((bits for pattern, bits in reversed(self.preset + self.overrides) if fnmatchcase(path, pattern)), self.default.bits)
        if bits == PLAIN_BITS or inner % self.default.group_size:
            return None
        return Scheme("affine", bits, self.default.group_size)


def uniform(config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The default scheme for every matrix."""
    return ()


def optimized_speed(config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """8 bits for embeddings, head, outputs of DeltaNet layers and the last 8 MLPs: the mix that MTPLX publishes under this name."""
    layers = int(config.get("text_config", config).get("num_hidden_layers", 0))
    last = tuple((f"model.layers.{i}.mlp.*", 8) for i in range(max(0, layers - 8), layers))
    return ("*embed_tokens", 8), ("*lm_head", 8), ("*.linear_attn.out_proj", 8), *last


PRESETS = {"uniform": uniform, "optimized-speed": optimized_speed}
