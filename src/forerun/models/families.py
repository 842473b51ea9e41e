"""The supported families by the `model_type` of a config.json. Reads no weights itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import ModelError
from forerun.kernels.numerics import Numerics
from forerun.models import llama, qwen3_5
from forerun.models.base import Family
from forerun.models.qwen3_5_moe import Qwen35Moe
from forerun.models.qwen3_next import Qwen3Next
from forerun.models.weights import Weights


@dataclass(frozen=True, slots=True)
class FamilyLoader:
    """config: parses config.json and gives the StateSpec. build: makes the family from its weights."""

    config: type[llama.Config] | type[qwen3_5.Config]
    build: Callable[[Weights, Numerics], Family]


_QWEN3_5, _QWEN3_5_MOE = FamilyLoader(qwen3_5.Config, qwen3_5.Qwen35), FamilyLoader(qwen3_5.Config, Qwen35Moe)
KINDS = {
    "llama": FamilyLoader(llama.Config, llama.Llama),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_mtp": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_next": FamilyLoader(qwen3_5.Config, Qwen3Next),
}


def kind_of(model_type: object, path: Path) -> FamilyLoader:
    """The family of the `model_type` in the configuration of `path`. Raises ModelError."""
    if model_type not in KINDS:
        raise ModelError(f"{path}: model_type {model_type!r} is not supported", hint=f"supported: {', '.join(sorted(KINDS))}")
    return KINDS[str(model_type)]
