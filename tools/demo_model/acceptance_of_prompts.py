"""Measure on a CPU, in float32, how many drafts are accepted in the demo model's answers to given prompts: the method of evaluate.py.

    acceptance_of_prompts.py --model MODEL --prompts prompts.json --out acceptance.json [--new 96] [--repeats 12]

prompts.json: a list of lists of token ids. evaluate.py takes every position of an answer; a server verifies DEPTH drafts at once, and meets
hard positions more often, since it skips easy ones. So the answers are also walked through as a server does: `walked` counts its
steps, and how many of them accepted the draft of each depth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor

from acceptance import accepted
from losses import DEPTH
from model import Model
from runs import ModelOutputs, Sampling, generate, load_own, load_transformers, probs, read

SAMPLINGS = {"greedy": None, "sampled": Sampling(1.0, 0.95, 20)}
STOPS = ("<|im_end|>", "<|endoftext|>")


def main(
    model: Annotated[Path, typer.Option()],
    prompts: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option()],
    new: int = 96,
    repeats: int = 12,
) -> None:
    """Write OUT: the prompts, and the acceptance with each sampling; sampled answers are made `repeats` times."""
    torch.manual_seed(0)
    tokenizer, requested = Tokenizer.from_file(str(model / "tokenizer.json")), json.loads(prompts.read_text())
    own, other, stop = load_own(model), load_transformers(model), {tokenizer.token_to_id(name) for name in STOPS}
    stats: dict[str, Any] = {"torch": torch.__version__, "new_tokens": new, "repeats": repeats, "prompts": requested}
    for name, sampling in SAMPLINGS.items():
        again = requested * (repeats if sampling else 1)
        answers = [(ids, generate(other, ids, new, sampling, stop)) for ids in again]
        stats[name] = figures_of(own, [answer for answer in answers if len(answer[1]) >= DEPTH + 2], sampling)
    out.write_text(json.dumps(stats) + "\n")


def figures_of(model: Model, answers: list[tuple[list[int], list[int]]], sampling: Sampling | None) -> dict[str, Any]:
    """Acceptance over all positions of these answers (prompt, answer), and over the steps of a walk through them."""
    every, steps = [], torch.zeros(DEPTH + 1, dtype=torch.float64)
    for ids, made in answers:
        sequence, logits = ids + made, read(model, ids + made)
        every.append(accepted(logits, sequence, len(ids), sampling))
        steps += walk(stood(logits, sequence, len(ids), sampling))
    joint = torch.cat([torch.ones(1), torch.cat(every).mean(0)])
    conditional = [round(share, 4) for share in (joint[1:] / joint[:-1]).tolist()]
    walked = {"steps": round(steps[0].item(), 2), "accepted": [round(count, 2) for count in steps[1:].tolist()]}
    return {"positions": sum(map(len, every)), "conditional_by_depth": conditional, "walked": walked}


def stood(logits: ModelOutputs, sequence: list[int], num_prompt: int, sampling: Sampling | None) -> Tensor:
    """[positions, DEPTH]: the chance, given what was generated, that it came from accepted drafts of all depths up to this one.

    A token that the target drew is an accepted draft with the chance min(1, q / p).
    """
    start, stop = num_prompt - 1, len(sequence) - 1 - DEPTH
    tokens, columns = torch.tensor(sequence), []
    for step, draft in enumerate(logits.drafts):
        truth = tokens[start + 2 + step : stop + 2 + step][:, None]
        if sampling is None:
            columns.append((draft[start:stop].argmax(-1, keepdim=True) == truth).double())
        else:
            p, q = probs(logits.target[start + 1 + step : stop + 1 + step], sampling), probs(draft[start:stop], sampling)
            columns.append((q.gather(1, truth) / p.gather(1, truth)).clamp(max=1.0).double())
    return torch.cat(columns, -1).cumprod(-1)


def walk(chances: Tensor) -> Tensor:
    """Expected steps, and of them those that accepted the draft of each depth [DEPTH + 1], of a walk over chances [positions, DEPTH]."""
    visits, counts = torch.zeros(len(chances) + DEPTH + 1, dtype=torch.float64), torch.zeros(DEPTH + 1, dtype=torch.float64)
    visits[0] = 1.0
    for position, joint in enumerate(torch.nn.functional.pad(chances, (1, 0), value=1.0)):
        counts += visits[position] * joint
        # Exactly so many drafts are accepted, and one more token comes with them.
        exactly = joint - torch.nn.functional.pad(joint[1:], (0, 1))
        visits[position + 1 : position + DEPTH + 2] += visits[position] * exactly
    return counts


if __name__ == "__main__":
    typer.run(main)
