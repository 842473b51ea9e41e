"""Canonical tensor names: hub and MLX folders name the same tensor differently, and families use one name.

It is the hub's name for a text-only model: `model.layers.3.mlp.down_proj.weight`, `lm_head.weight`, `mtp.fc.weight`.
"""

from __future__ import annotations

import re

PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""), ("model.mtp.", "mtp."))
# Not used by a text model: vision and audio towers, and tables that are computed.
UNUSED = re.compile(r"((?:model\.)?(?:visual|vision_tower|audio_tower|multi_modal_projector)\.).*|(.*\.rotary_emb\.inv_freq)")


def canonical(stored: str) -> str:
    """The canonical name of a tensor or module."""
    name = stored
    for theirs, ours in PREFIXES:
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    name = name.replace(".switch_mlp.", ".experts.")
    # The hub's fused experts are parameters of their module, without the suffix.
    return f"{name}.weight" if re.search(r"\.experts\.\w+_proj$", name) else name


def unused(stored: str) -> str:
    """The heading of a tensor that no family reads ("model.visual.*"); "" for a tensor that is read."""
    match = UNUSED.fullmatch(stored)
    return "" if match is None else f"{match[1]}*" if match[1] else "rotary_emb.inv_freq"
