"""How a model wants to be sampled where a request does not say. Knows files of checkpoints, no requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import ModelError
from forerun.text.files import read_object
from forerun.values import Sampling

SAYS_SOMETHING = frozenset({"do_sample", "temperature", "top_p", "top_k", "min_p"})
# What the makers recommend for agents and for code (the models' cards), for checkpoints that come without it.
QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
BY_MODEL_TYPE = {"qwen3_5": QWEN, "qwen3_5_text": QWEN, "qwen3_5_moe": QWEN, "qwen3_5_moe_text": QWEN}


def defaults_of(folder: Path) -> Sampling:
    """The checkpoint's own suggestion, else its makers', else the plain law. Raises ModelError."""
    given = read_object(folder / "generation_config.json")
    if not SAYS_SOMETHING & given.keys():
        given = {**given, **BY_MODEL_TYPE.get(str(read_object(folder / "config.json").get("model_type")), {})}
    try:
        return _sampling(given)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'generation_config.json'}: a value has the wrong type: {error}") from error


def _sampling(given: Mapping[str, Any]) -> Sampling:
    return Sampling(
        temperature=float(given.get("temperature", 1.0)) if given.get("do_sample", True) else 0.0,
        top_p=float(given.get("top_p", 1.0)),
        top_k=int(given.get("top_k", 0)),
        min_p=float(given.get("min_p", 0.0)),
        seed=None,
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
    )
