"""Every family against what transformers computed from the same small random checkpoints (tools/family_references.py), heads included."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests import families
from tests.running import empty, step

from forerun.kernels.numerics import ARRAYS, EXACT, FAST, Numerics
from forerun.state.cache import lend

RECORDED = np.load(Path(__file__).parent / "references.npz")
TOKENS: list[int] = RECORDED["tokens"].tolist()


@pytest.mark.parametrize("numerics", [EXACT, ARRAYS, FAST], ids=lambda numerics: numerics.name, indirect=True)
@pytest.mark.parametrize("kind", families.CONFIGS)
def test_logits(kind: str, numerics: Numerics) -> None:
    family = families.built(families.CONFIGS[kind], families.tensors(kind), numerics)
    found = np.array(step(family, empty(family), TOKENS))
    assert np.abs(found - RECORDED[f"{kind}/logits"]).max() < 1e-4
    assert np.abs(found).max() > 1


@pytest.mark.parametrize("kind", [kind for kind in families.CONFIGS if kind != "llama"])
def test_drafts(kind: str) -> None:
    family = families.built(families.CONFIGS[kind], families.tensors(kind))
    cache, ids = empty(family), mx.array(TOKENS, dtype=mx.int32)
    with lend([cache], family.numerics) as view:
        hidden = family.forward(ids, [len(TOKENS)], view)
        view.keep([len(TOKENS)], hidden)
        view.keep_draft([1])  # position 0 has no row
        drafts = np.array(family.head(family.draft(hidden[:-1], ids[1:], [len(TOKENS) - 1], view)))
    assert np.abs(drafts - RECORDED[f"{kind}/drafts"]).max() < 1e-4
    assert np.abs(drafts).max() > 1
