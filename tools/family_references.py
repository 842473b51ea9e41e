"""Record what transformers computes from the small random checkpoints of tests/families.py: tests/models/references.npz.

    python tools/family_references.py       where torch and transformers are installed beside MLX, from the root of the repository

Of each family: tokens, logits [tokens, vocab] of the target in float32, and, where there is an MTP head, the logits of its drafts. Knows
nothing of our own models.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests import families  # noqa: E402

TOKENS = [(37 * i + 11) % families.VOCAB for i in range(40)]


def answers(kind: str, folder: Path) -> dict[str, np.ndarray]:
    """The logits of one family."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    out = model(torch.tensor([TOKENS]), output_hidden_states=True)
    found = {f"{kind}/logits": out.logits[0].numpy()}
    if any(name.startswith("mtp.") for name in families.SHAPES[kind]()):
        found[f"{kind}/drafts"] = drafts(model, out.hidden_states[-1]).numpy()
    return found


def drafts(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [tokens - 1, vocab] of the head that reads the hidden vector at p and the token at p + 1."""
    model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    head, cache = MtpModel.from_pretrained(model).eval(), MtpCache(config=model.config.get_mtp_config())
    positions = torch.arange(1, len(TOKENS))[None]
    rows = head.forward_layer(0, hidden[:, :-1], positions, cache, input_ids=torch.tensor([TOKENS[1:]]))
    logits: torch.Tensor = head._project_to_logits(rows)[0]
    return logits


def main() -> None:
    found: dict[str, Any] = {"tokens": np.array(TOKENS, dtype=np.int32)}
    for kind, config in families.CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = families.write_hub(Path(folder), kind, families.tensors(kind))
            (path / "config.json").write_text(json.dumps(config))
            with torch.no_grad():
                found |= answers(kind, path)
    np.savez_compressed(ROOT / "tests" / "models" / "references.npz", **found)


if __name__ == "__main__":
    main()
