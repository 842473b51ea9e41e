"""The delivered model, run two ways in float32 on a CPU: by the training code, and by transformers."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from deltanet import CHUNK
from losses import DEPTH
from model import Model, read_config


class Sampling(NamedTuple):
    """The settings of a distribution to draw tokens from."""

    temperature: float
    top_p: float
    top_k: int


class ModelOutputs(NamedTuple):
    """A sequence as the training code computes it: logits [tokens, vocab] of the target and of each draft step."""

    target: Tensor
    drafts: list[Tensor]


def load_own(folder: Path) -> Model:
    """The training code's model with the delivered weights."""
    model = Model(read_config(folder / "config.json"))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(
        {name.replace("model.language_model.", "model."): weight.float() for name, weight in weights.items()}, strict=True
    )
    return model.eval()


def load_transformers(folder: Path) -> Any:
    """transformers' model with the delivered weights; its MTP module is loaded by `drafts_of_transformers`."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    return Qwen3_5ForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()


@torch.no_grad()
def read(model: Model, ids: list[int]) -> ModelOutputs:
    """The logits of a sequence. Row p of draft step s predicts token p + 2 + s from the true tokens up to p + 1 + s."""
    padded = torch.tensor([ids + [0] * (-len(ids) % CHUNK)])
    hidden, embedded = model.model(padded)[:, : len(ids)], model.model.embed_tokens(padded[:, : len(ids)])
    # The last rows have no true token to read; the first row's stands in for it and their logits are never used.
    shifted = [torch.cat([embedded[:, step:], embedded[:, :1].expand(-1, step, -1)], 1) for step in range(1, DEPTH + 1)]
    return ModelOutputs(model.logits(hidden)[0], [model.logits(draft)[0] for draft in model.mtp.draft_steps(hidden, shifted)])


@torch.no_grad()
def generate(reference: Any, ids: list[int], count: int, sampling: Sampling | None = None, stop: Collection[int | None] = ()) -> list[int]:
    """Up to `count` tokens after `ids` by transformers, greedy without `sampling`; a token of `stop` is the last."""
    made: list[int] = []
    cache, rows = None, torch.tensor([ids])
    while len(made) < count and not (made and made[-1] in stop):
        step = reference(rows, past_key_values=cache, use_cache=True)
        cache, logits = step.past_key_values, step.logits[0, -1]
        made.append(int(torch.multinomial(probs(logits, sampling), 1) if sampling else logits.argmax()))
        rows = torch.tensor([made[-1:]])
    return made


def probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [..., vocab] after temperature, top-k and top-p."""
    logits = logits / sampling.temperature
    least = logits.topk(sampling.top_k, -1).values[..., -1:]
    ordered, ids = torch.softmax(logits.masked_fill(logits < least, -math.inf), -1).sort(-1, descending=True)
    is_kept = ordered.cumsum(-1) - ordered < sampling.top_p
    left = torch.zeros_like(ordered).scatter(-1, ids, ordered * is_kept)
    return left / left.sum(-1, keepdim=True)


def drafts(model: Model, ids: list[int], first: int) -> list[int]:
    """The greedy drafts after `ids` once the target has emitted `first`, each step fed its own predecessor, by the training code."""
    sequence = [*ids, first]
    for step in range(DEPTH):
        sequence.append(int(read(model, sequence).drafts[step][len(ids) - 1].argmax()))
    return sequence[len(ids) + 1 :]


@torch.no_grad()
def drafts_of_transformers(reference: Any, ids: list[int], first: int) -> list[int]:
    """The same drafts by transformers' MtpModel: one module fed recursively, one cache."""
    reference.config.num_mtp_layers, reference.config.mtp_layer_types = 1, ["full_attention"]
    module, cache = MtpModel.from_pretrained(reference).eval(), MtpCache(config=reference.config.get_mtp_config())
    hidden = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
    read_next, positions = torch.tensor([[*ids[1:], first]]), torch.arange(1, len(ids) + 1)[None]
    made: list[int] = []
    for _ in range(DEPTH):
        rows = module.forward_layer(0, hidden, positions, cache, input_ids=read_next)
        made.append(int(module._project_to_logits(rows)[0, -1].argmax()))
        hidden, read_next, positions = rows[:, -1:], torch.tensor([made[-1:]]), positions[:, -1:] + 1
    return made
