"""Hold mlx-lm against reference.json: logits and greedy tokens in float32 on the CPU.

check_mlx.py --model MODEL
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import typer
from mlx.utils import tree_map
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


def main(model: Annotated[Path, typer.Option()]) -> None:
    """Print the differences of every prompt, then the worst."""
    mx.set_default_device(mx.cpu)
    network, tokenizer = load(str(model))
    network.update(tree_map(lambda weight: weight.astype(mx.float32), network.parameters()))
    worst, num_equal, num_greedy = 0.0, 0, 0
    for prompt in json.loads((model / "reference.json").read_text())["prompts"]:
        if tokenizer.encode(prompt["text"], add_special_tokens=False) != prompt["token_ids"]:
            raise SystemExit("the tokenizers differ")
        difference, equal = compare(network, prompt)
        worst, num_equal, num_greedy = max(worst, difference), num_equal + equal, num_greedy + len(prompt["greedy_32"])
        print(
            f"{len(prompt['token_ids'])} tokens: top-5 logits differ by at most {difference:.2e}, {equal} greedy tokens equal", flush=True
        )
    print(f"worst {worst:.2e}, greedy {num_equal} of {num_greedy}")


def compare(network: Any, prompt: dict[str, Any]) -> tuple[float, int]:
    """(largest difference of the top-5 logits, number of greedy tokens that are equal)."""
    cache = make_prompt_cache(network)
    logits = network(mx.array([prompt["token_ids"]]), cache=cache)[0, -1]
    difference = max(abs(logits[token].item() - logit) for token, logit in zip(prompt["top5_ids"], prompt["top5_logits"], strict=True))
    num_equal = 0
    for expected in prompt["greedy_32"]:
        token = int(mx.argmax(logits))
        num_equal += token == expected
        logits = network(mx.array([[token]]), cache=cache)[0, -1]
    return difference, num_equal


if __name__ == "__main__":
    typer.run(main)
