"""Join the shards of a training run into model.safetensors: bfloat16, with A_log and the gated norm in float32.

export.py --run RUN --out MODEL
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file

Folder = Annotated[Path, typer.Option()]


def main(run: Folder, out: Folder) -> None:
    """Write model.safetensors."""
    trained = {name: weight for shard in sorted(run.glob("part*.safetensors")) for name, weight in load_file(shard).items()}
    weights = {hub_name(name): exported(name, weight).contiguous() for name, weight in trained.items()}
    save_file(dict(sorted(weights.items())), out / "model.safetensors", metadata={"format": "pt"})
    print(len(weights), "tensors,", sum(weight.numel() for weight in weights.values()), "parameters")


def hub_name(name: str) -> str:
    """The name of a weight in the file."""
    return f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name


def exported(name: str, weight: torch.Tensor) -> torch.Tensor:
    """A weight as it is stored.

    A zero-centred gain is rounded so that 1 + weight is exact in bfloat16: loaders that add the one in bfloat16 and loaders that add it
    in float32 then agree.
    """
    if is_zero_centred(name):
        weight = (1 + weight).to(torch.bfloat16).float() - 1
    is_kept = name.endswith(("A_log", "linear_attn.norm.weight"))
    return weight.float() if is_kept else weight.to(torch.bfloat16)


def is_zero_centred(name: str) -> bool:
    """Whether a weight is the gain of a norm, less one."""
    return "norm" in name.split(".")[-2] and "linear_attn" not in name


if __name__ == "__main__":
    typer.run(main)
