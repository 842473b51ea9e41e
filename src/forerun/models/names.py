"""What tensors are called: hub and MLX folders name the same tensor differently, and families ask for it by one name.

That name is the hub's of a model without other modalities: `model.layers.3.mlp.down_proj.weight`, `lm_head.weight`, `mtp.fc.weight`.
"""

from __future__ import annotations

import re

PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""), ("model.mtp.", "mtp."))
# Of no use to a model that reads text: the parts that see and hear, and tables that are computed.
UNUSED = re.compile(r"((?:model\.)?(?:visual|vision_tower|audio_tower|multi_modal_projector)\.).*|(.*\.rotary_emb\.inv_freq)")


def canonical(stored: str) -> str:
    """The one name of a tensor or module, whoever wrote the checkpoint."""
    name = stored
    for theirs, ours in PREFIXES:
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    name = name.replace(".switch_mlp.", ".experts.")
    # The hub's fused experts are parameters of their module, without a suffix of their own.
    return f"{name}.weight" if re.search(r"\.experts\.\w+_proj$", name) else name


def unused(stored: str) -> str:
    """Under which heading a tensor that no family reads is dropped ("model.visual.*"); "" if it is to be read."""
    match = UNUSED.fullmatch(stored)
    return "" if match is None else f"{match[1]}*" if match[1] else "rotary_emb.inv_freq"
