"""mlx-lm's own model of the same shape, with random weights, timed in the same way. Knows only the weight names of our model."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from on_gpu.report import Report, Times, seconds, times
from on_gpu.shapes import noise, tensors

CHUNK_TOKENS = 2048  # as in mlx-lm's prefill


def run(report: Report, section: str, config: Mapping[str, Any], *, prompts: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    """Prefill of prompts, if any, and steps of 1 and 4 rows at lengths."""
    model = report.part(section, "mlx_lm_build_s", lambda: Built(config))
    if model is None:
        return
    if prompts:
        report.part(section, "mlx_lm_first_prefill", lambda: prefill(model.model, prompts[0]))
    for num_tokens in prompts:
        report.part(section, f"mlx_lm_prefill_{num_tokens}", lambda n=num_tokens: prefill(model.model, n))
    for length in lengths:
        for rows in (1, 4):
            report.part(section, f"mlx_lm_step_{rows}_at_{length}", lambda n=length, rows=rows: step(model.model, config, n, rows))


class Built(float):
    """The seconds it took, and the model."""

    model: Any

    def __new__(cls, config: Mapping[str, Any]) -> Built:
        made: list[Any] = []
        built = super().__new__(cls, seconds(lambda: made.append(build(config)) or []))
        built.model = made[0]
        return built


def build(config: Mapping[str, Any]) -> Any:
    """The model, its weights made one after another on the device."""
    family = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = family.Model(family.ModelArgs.from_dict(copy.deepcopy(dict(config))))
    weights = model.sanitize(tensors(config))
    if "quantization" in config:
        nn.quantize(model, **config["quantization"], class_predicate=lambda path, _: f"{path}.scales" in weights)  # type: ignore[attr-defined]
    model.load_weights(list(weights.items()))
    for _, array in tree_flatten(model.parameters()):
        mx.eval(array)
    return model


def prefill(model: Any, num_tokens: int) -> dict[str, float]:
    """Once: only the first chunk's time depends on what ran before, and it may take half a minute."""
    tokens = mx.random.randint(0, 100, (num_tokens,), key=mx.random.key(2))

    def run() -> list[Any]:
        cache = model.make_cache()
        for start in range(0, num_tokens, CHUNK_TOKENS):
            model(tokens[None, start : start + CHUNK_TOKENS], cache=cache)
            mx.eval([c.state for c in cache])
        return [model(tokens[None, :1], cache=cache)]

    taken = seconds(run)
    return {"tok_per_s": round(num_tokens / taken, 1), "s": taken}


def step(model: Any, config: Mapping[str, Any], length: int, rows: int) -> Times:
    """A step of `rows` rows with logits of all, after `length` tokens of random state."""
    cache, tokens = filled(model, config["text_config"], length), mx.arange(3, 3 + rows)[None]
    return times(lambda: [model(tokens, cache=cache), [c.state for c in cache]], repeats=7, warm=3)


def filled(model: Any, text: Mapping[str, Any], length: int) -> list[Any]:
    """Its caches as if they held `length` tokens."""
    caches = model.make_cache()
    key_width = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value_heads, value_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
    for i, cache in enumerate(caches):
        if hasattr(cache, "offset"):
            shape = (1, text["num_key_value_heads"], length + 256, text["head_dim"])
            cache.keys, cache.values = (noise(mx.zeros(shape, mx.bfloat16), 2 * i + j) for j in (0, 1))
            cache.offset = length
        else:
            tail = (1, text["linear_conv_kernel_dim"] - 1, key_width + value_heads * value_dim)
            cache[0] = noise(mx.zeros(tail, mx.bfloat16), 2 * i)
            cache[1] = noise(mx.zeros((1, value_heads, value_dim, text["linear_key_head_dim"])), 2 * i + 1)
        mx.eval(cache.state)
    return caches
