"""A model's default sampling parameters, for what a request leaves open. Knows checkpoint files, no requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.errors import ModelError
from forerun.text.files import read_object
from forerun.values import NEUTRAL, Sampling

_SAMPLING_KEYS = frozenset({"do_sample", "temperature", "top_p", "top_k", "min_p"})
# The model cards' recommendation for agents and code, for checkpoints without one.
QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
BY_MODEL_TYPE = {"qwen3_5": QWEN, "qwen3_5_text": QWEN, "qwen3_5_moe": QWEN, "qwen3_5_moe_text": QWEN}


def defaults_of(folder: Path) -> Sampling:
    """The checkpoint's generation_config.json, else the model card's values, else neutral sampling. Raises ModelError."""
    values = read_object(folder / "generation_config.json")
    if not _SAMPLING_KEYS & values.keys():
        values = {**values, **BY_MODEL_TYPE.get(str(read_object(folder / "config.json").get("model_type")), {})}
    try:
        return _sampling(values)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'generation_config.json'}: a value has the wrong type: {error}") from error


def _sampling(values: Mapping[str, Any]) -> Sampling:
    return replace(
        NEUTRAL,
        temperature=float(values.get("temperature", 1.0)) if values.get("do_sample", True) else 0.0,
        top_p=float(values.get("top_p", 1.0)),
        top_k=int(values.get("top_k", 0)),
        min_p=float(values.get("min_p", 0.0)),
        repetition_penalty=float(values.get("repetition_penalty", 1.0)),
    )
