"""Measure on a CPU, in float32, how many drafts are accepted in the demo model's answers to given prompts: the method of evaluate.py.

    acceptance_of_prompts.py --model MODEL --prompts prompts.json --out acceptance.json [--new 96] [--repeats 4]

prompts.json: a list of lists of token ids. Greedy answers are also walked through, one verification step of DEPTH drafts after another, as
a server does: `walked` counts its steps and how many of them accepted the draft of each depth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor

from acceptance import acceptance, accepted
from losses import DEPTH
from model import Model
from runs import Sampling, generate, load_own, load_transformers, read

LAWS = {"greedy": None, "sampled": Sampling(1.0, 0.95, 20)}
STOPS = ("<|im_end|>", "<|endoftext|>")


def main(
    model: Annotated[Path, typer.Option()],
    prompts: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    new: int = 96,
    repeats: int = 4,
) -> None:
    """Write OUT: the prompts, and the acceptance under each law; sampled answers are made `repeats` times."""
    torch.manual_seed(0)
    tokenizer, asked = Tokenizer.from_file(str(model / "tokenizer.json")), json.loads(prompts.read_text())
    own, other, stop = load_own(model), load_transformers(model), {tokenizer.token_to_id(name) for name in STOPS}
    figures: dict[str, Any] = {"torch": torch.__version__, "new_tokens": new, "repeats": repeats, "prompts": asked}
    for name, sampling in LAWS.items():
        figures[name] = acceptance(own, other, asked * (repeats if sampling else 1), new, sampling, stop)
    figures["greedy"]["walked"] = walked(own, [(ids, generate(other, ids, new, None, stop)) for ids in asked])
    out.write_text(json.dumps(figures) + "\n")


def walked(model: Model, answers: list[tuple[list[int], list[int]]]) -> dict[str, Any]:
    """Steps through greedy answers (prompt, answer), and in how many of them the draft of each depth was accepted."""
    steps = [step for ids, made in answers for step in walk(accepted(read(model, ids + made), ids + made, len(ids), None))]
    return {"steps": len(steps), "accepted": [sum(step > depth for step in steps) for depth in range(DEPTH)]}


def walk(chances: Tensor) -> list[int]:
    """Accepted drafts of each step; chances [positions, DEPTH] are 0 or 1."""
    steps, position = [], 0
    while position < len(chances):
        steps.append(int(chances[position].sum()))
        position += steps[-1] + 1
    return steps


if __name__ == "__main__":
    typer.run(main)
