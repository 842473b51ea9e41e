"""The content of reference.json: what the delivered model answers to six fixed prompts, for other implementations to be held against."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer

from documents import chat_template
from messages import message, tool_specs
from model import Model
from runs import drafts, drafts_of_transformers, generate

HOW = (
    "Prompt logits (last position), greedy tokens: transformers Qwen3_5ForCausalLM in float32 on a CPU, weights as stored. Greedy "
    "decoding does not stop at end tokens. Drafts: after the prompt and the first greedy token t (mtp_first_token), the MTP module "
    "sees every prompt row (target hidden after the final norm, embedding of the next token), the last row joining t; it drafts "
    "three tokens, each later step fed its own post-norm hidden state and its own draft, in float32."
)
NUM_GREEDY = 32
CLAMP = """What does this function do?

```python
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value
```"""
CONVERSATIONS: tuple[dict[str, Any], ...] = (
    {"messages": [message("system", "You are a helpful assistant."), message("user", "Hello!")], "enable_thinking": False},
    {
        "messages": [message("user", "Write a Python function `mean(values)`. Return the arithmetic mean of a list of numbers.")],
        "enable_thinking": False,
    },
    {"messages": [message("system", "You are a helpful assistant."), message("user", CLAMP)]},
    {
        "messages": [
            message("system", "You are a coding agent. ModelOutputs files with the tools, make small edits and report what you did."),
            message("user", "Which functions are in src/config.py?"),
        ],
        "tools": tool_specs(["read_file", "grep", "edit_file"]),
    },
)


def reference(model: Model, other: Any, tokenizer: Tokenizer, held_out_code: list[int], held_out_chat: list[int]) -> dict[str, Any]:
    """All of reference.json. model: the training code's; other: transformers'."""
    template = chat_template()
    rendered = [template.render(add_generation_prompt=True, **conversation) for conversation in CONVERSATIONS]
    prompts = [("chat template", tokenizer.encode(text, add_special_tokens=False).ids) for text in rendered]
    prompts += [("held-out code", held_out_code[1000:1160]), ("held-out conversation", held_out_chat[:600])]
    return {"how": HOW, "prompts": [{"kind": kind, **answers(model, other, tokenizer, ids)} for kind, ids in prompts]}


def answers(model: Model, other: Any, tokenizer: Tokenizer, ids: list[int]) -> dict[str, Any]:
    """What the model answers to one prompt."""
    with torch.no_grad():
        top = other(torch.tensor([ids])).logits[0, -1].topk(5)
    greedy = generate(other, ids, NUM_GREEDY)
    drafted = drafts(model, ids, greedy[0])
    return {
        "text": tokenizer.decode(ids, skip_special_tokens=False),
        "token_ids": ids,
        "top5_ids": top.indices.tolist(),
        "top5_logits": [round(logit, 5) for logit in top.values.tolist()],
        "greedy_32": greedy,
        "greedy_text": tokenizer.decode(greedy, skip_special_tokens=False),
        "mtp_first_token": greedy[0],
        "mtp_greedy_drafts": drafted,
        "mtp_drafts_of_transformers_agree": drafted == drafts_of_transformers(other, ids, greedy[0]),
    }
