"""The contract of fast numerics: restored bytes are stored bytes; from a chunk boundary a prompt continues bit for bit; from anywhere
else the result is close to exact numerics."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import differing, empty, logits, read, snapshots
from tests.talking import cold, opened, turn
from tests.waiting import LIMIT_S

from forerun.bank.bank import FinishedTurn
from forerun.decode.prefill import CHUNK_TOKENS
from forerun.kernels.numerics import FAST
from forerun.state.layout import Contiguous

FAMILY = tiny.family(FAST)
TOKENS = tiny.words("fast", 900)


def test_fast_is_close_to_exact() -> None:
    found, expected = logits(FAMILY, read(FAMILY, TOKENS)), logits(tiny.family(), cold(TOKENS))
    assert float(mx.abs(found - expected).max()) < 1e-3
    assert not mx.array_equal(found, expected)  # other kernels, not the same


@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_from_a_chunk_boundary_a_prompt_continues_bit_for_bit(variant: str, tmp_path: Path) -> None:
    whole = read(FAMILY, TOKENS)
    cache, found = snapshots(FAMILY, TOKENS[:CHUNK_TOKENS], [CHUNK_TOKENS])
    stored = read(FAMILY, TOKENS[:CHUNK_TOKENS])
    with closing(opened(tmp_path / "bank", family=FAMILY, ram_limit_bytes=0 if variant == "ssd" else 1 << 30)) as bank:
        bank.remember(cache, TOKENS[:CHUNK_TOKENS], found, FinishedTurn("s", "", 1, 0, 1))
        assert bank.flush(LIMIT_S)
        restored = bank.restore(TOKENS, tenant="", session=None, layout=Contiguous(), headroom_tokens=0)
        assert (restored.source, restored.reused_tokens) == (variant, CHUNK_TOKENS)
        assert differing(restored.cache, stored) == []
        assert differing(read(FAMILY, TOKENS, restored.cache), whole) == []


def test_a_continued_conversation_is_close_to_a_fresh_one(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank", family=FAMILY)) as bank:
        first = turn(bank, TOKENS[:700], family=FAMILY)
        second = turn(bank, [*first.stored, *TOKENS[700:]], family=FAMILY)
    assert second.restored.reused_tokens == len(first.stored)
    fresh = logits(FAMILY, read(FAMILY, [*first.stored, *TOKENS[700:]], empty(FAMILY)))
    assert float(mx.abs(second.logits - fresh).max()) < 1e-3
