"""How many of the demo model's drafts are accepted, over text that its target generates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from losses import DEPTH
from model import Model
from runs import ModelOutputs, Sampling, generate, probs, read


def acceptance(
    model: Model, reference: Any, prompts: Sequence[list[int]], count: int, sampling: Sampling | None, stop: Collection[int | None]
) -> dict[str, Any]:
    """Shares of accepted drafts by depth, and tokens a verification step. A position counts if all its drafts lie in the generated text."""
    found = []
    for ids in prompts:
        made = generate(reference, ids, count, sampling, stop)
        if len(made) >= DEPTH + 2:
            sequence = ids + made
            found.append(accepted(read(model, sequence), sequence, len(ids), sampling))
    return _summary(found, is_greedy=sampling is None)


def accepted(logits: ModelOutputs, sequence: list[int], num_prompt: int, sampling: Sampling | None) -> Tensor:
    """[positions, DEPTH]: the chance that the draft of a depth and all before it are accepted, from each position on.

    Greedy (sampling None): 0 or 1. Sampled: the expected acceptance sum of min(p, q), exact over the target's distribution, weighted by
    the chance that the generated tokens before it would have been accepted as drafts.
    """
    start, stop = num_prompt - 1, len(sequence) - 1 - DEPTH
    tokens, columns = torch.tensor(sequence), []
    reached = torch.ones(stop - start, dtype=torch.float64)
    for step, draft in enumerate(logits.drafts):
        truth = tokens[start + 2 + step : stop + 2 + step]
        if sampling is None:
            reached = reached * (draft[start:stop].argmax(-1) == truth)
            columns.append(reached)
        else:
            p, q = probs(logits.target[start + 1 + step : stop + 1 + step], sampling), probs(draft[start:stop], sampling)
            columns.append(reached * torch.minimum(p, q).sum(-1))
            reached = reached * (q.gather(1, truth[:, None]) / p.gather(1, truth[:, None]))[:, 0].clamp(max=1.0)
    return torch.stack(columns, -1)


def steps_of_a_walk(chances: Tensor) -> tuple[int, int]:
    """(tokens, steps) of generating the positions one verification step after the other, greedy."""
    num_tokens = num_steps = position = 0
    while position < len(chances):
        advance = int(chances[position].sum()) + 1
        num_tokens, num_steps, position = num_tokens + advance, num_steps + 1, position + advance
    return num_tokens, num_steps


def _summary(found: list[Tensor], *, is_greedy: bool) -> dict[str, Any]:
    every = torch.cat(found)
    joint = every.mean(0)
    conditional = joint / torch.cat([torch.ones(1), joint[:-1]])
    summary = {
        "positions": len(every),
        "all_accepted_up_to_depth": [round(share, 4) for share in joint.tolist()],
        "conditional_by_depth": [round(share, 4) for share in conditional.tolist()],
        "expected_tokens_a_step_depth3": round(1 + joint.sum().item(), 3),
    }
    if is_greedy:
        num_tokens, num_steps = map(sum, zip(*map(steps_of_a_walk, found), strict=True))
        summary["measured_tokens_a_step_depth3"] = round(num_tokens / num_steps, 3)
    return summary
