"""The contract of fast numerics, by array operations here: restored bytes are stored bytes; from a chunk boundary a prompt continues bit
for bit; from anywhere else the result is close to exact numerics."""

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
from forerun.models.qwen3_5 import Qwen35
from forerun.state.layout import Contiguous

TOKENS = tiny.words("fast", 900)


@pytest.fixture(scope="module")
def exact() -> mx.array:
    """By the CPU kernels: a fixture of the module is there before array operations take their place."""
    return logits(tiny.family(), cold(TOKENS))


@pytest.fixture
def family(without_cpu_kernels: None) -> Qwen35:
    return tiny.family(FAST)


def test_fast_is_close_to_exact(exact: mx.array, family: Qwen35) -> None:
    found, expected = logits(family, read(family, TOKENS)), exact
    assert float(mx.abs(found - expected).max()) < 1e-3
    assert not mx.array_equal(found, expected)  # other kernels, not the same


@pytest.mark.parametrize("variant", ["ram", "ssd"])
def test_from_a_chunk_boundary_a_prompt_continues_bit_for_bit(family: Qwen35, variant: str, tmp_path: Path) -> None:
    whole = read(family, TOKENS)
    cache, found = snapshots(family, TOKENS[:CHUNK_TOKENS], [CHUNK_TOKENS])
    stored = read(family, TOKENS[:CHUNK_TOKENS])
    with closing(opened(tmp_path / "bank", family=family, ram_limit_bytes=0 if variant == "ssd" else 1 << 30)) as bank:
        bank.remember(cache, TOKENS[:CHUNK_TOKENS], found, FinishedTurn("s", "", 1, 0, 1))
        assert bank.flush(LIMIT_S)
        restored = bank.restore(TOKENS, tenant="", session=None, layout=Contiguous(), headroom_tokens=0)
        assert (restored.source, restored.reused_tokens) == (variant, CHUNK_TOKENS)
        assert differing(restored.cache, stored) == []
        assert differing(read(family, TOKENS, restored.cache), whole) == []


def test_a_continued_conversation_is_close_to_a_fresh_one(family: Qwen35, tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank", family=family)) as bank:
        first = turn(bank, TOKENS[:700], family=family)
        second = turn(bank, [*first.stored, *TOKENS[700:]], family=family)
    assert second.restored.reused_tokens == len(first.stored)
    fresh = logits(family, read(family, [*first.stored, *TOKENS[700:]], empty(family)))
    assert float(mx.abs(second.logits - fresh).max()) < 1e-3
