"""Measure the demo model on a CPU in float32.

    evaluate.py --model MODEL --data WORK --out figures.json [--prompts 20] [--new 80]
    evaluate.py --model MODEL --data WORK --reference reference.json

Target logits and generations come from transformers; the MTP module is run by the training code, whose drafts reference.json compares
with those of transformers' MtpModel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer

from acceptance import acceptance
from model import Model
from reference import reference as reference_of
from runs import Sampling, load_own, load_transformers, read

Tokens = npt.NDArray[np.uint16]
SAMPLINGS = {"greedy": None, "t1.0_p0.95_k20": Sampling(1.0, 0.95, 20)}
WINDOWS = {2048: 24, 8192: 6}
COMPARED_TOKENS = 640
ASSISTANT = "<|im_start|>assistant\n<think>\n"

Folder = Annotated[Path, typer.Option()]


def main(
    model: Folder,
    data: Folder,
    out: Annotated[Path | None, typer.Option()] = None,
    reference: Annotated[Path | None, typer.Option()] = None,
    prompts: int = 24,
    new: int = 96,
) -> None:
    """Write figures.json (OUT) or reference.json (REFERENCE)."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    own, other = load_own(model), load_transformers(model)
    held_out = {kind: np.fromfile(data / f"heldout_{kind}.u16", dtype=np.uint16) for kind in ("base", "chat")}
    if reference:
        made = reference_of(own, other, tokenizer, held_out["base"].tolist(), held_out["chat"].tolist())
        reference.write_text(json.dumps(made, indent=1, ensure_ascii=False))
    if out:
        out.write_text(json.dumps(dict(stats(own, other, tokenizer, held_out, prompts, new)), indent=1))


def stats(
    own: Model, other: Any, tokenizer: Tokenizer, held_out: dict[str, Tokens], num_prompts: int, num_new: int
) -> Iterator[tuple[str, Any]]:
    """(name, figure) one after the other, printed as they come."""
    for name, figure in _measured(own, other, tokenizer, held_out, num_prompts, num_new):
        print(name, figure, flush=True)
        yield name, figure


def held_out_loss(model: Model, tokens: Tokens, length: int, num_windows: int) -> float:
    """Mean next-token loss in nats over windows spread evenly over the stream."""
    starts = [index * (len(tokens) - length - 1) // num_windows for index in range(num_windows)]
    return sum(_window_loss(model, tokens[start : start + length + 1]) for start in starts) / num_windows


def prompts_of(tokens: Tokens, tokenizer: Tokenizer, count: int, kind: str, longest: int = 700) -> list[list[int]]:
    """Up to `count` prompts from held-out documents: conversations up to an assistant's turn, code up to a cut."""
    ends = np.flatnonzero(tokens == tokenizer.token_to_id("<|endoftext|>")) + 1
    documents = np.split(tokens, ends)
    chosen = (document.tolist() for document in documents[:: max(1, len(documents) // (count * 2))])
    if kind == "base":
        long_enough = (document for document in chosen if len(document) > 300)
        return [document[: 120 + 31 * (index % 14)] for index, document in enumerate(islice(long_enough, count))]
    opening = tokenizer.encode(ASSISTANT, add_special_tokens=False).ids
    cut = (_up_to_last(document, opening, 40, longest) for document in chosen)
    return list(islice(filter(None, cut), count))


def _measured(
    own: Model, other: Any, tokenizer: Tokenizer, held_out: dict[str, Tokens], num_prompts: int, num_new: int
) -> Iterator[tuple[str, Any]]:
    yield "own_vs_transformers_max_abs_logit", _largest_difference(own, other, held_out["chat"][:COMPARED_TOKENS].tolist())
    for kind, tokens in held_out.items():
        for length, num_windows in WINDOWS.items():
            yield f"loss_{kind}_{length}", round(held_out_loss(own, tokens, length, num_windows), 4)
    stop = {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    for kind in ("chat", "base"):
        prompts = prompts_of(held_out[kind], tokenizer, num_prompts, kind)
        for name, sampling in SAMPLINGS.items():
            yield f"acceptance_{kind}_{name}", acceptance(own, other, prompts, num_new, sampling, stop)


@torch.no_grad()
def _largest_difference(own: Model, other: Any, ids: list[int]) -> float:
    return float((other(torch.tensor([ids])).logits[0] - read(own, ids).target).abs().max())


@torch.no_grad()
def _window_loss(model: Model, window: Tokens) -> float:
    ids = torch.tensor(window.astype(np.int64))
    return float(F.cross_entropy(model.logits(model.model(ids[None, :-1]))[0], ids[1:]))


def _up_to_last(document: list[int], opening: list[int], shortest: int, longest: int) -> list[int]:
    """The document up to the last `opening` that begins at a position between the two bounds; [] if there is none."""
    size = len(opening)
    found = [at for at in range(shortest, min(longest + 1, len(document) - size)) if document[at : at + size] == opening]
    return document[: found[-1] + size] if found else []


if __name__ == "__main__":
    typer.run(main)
