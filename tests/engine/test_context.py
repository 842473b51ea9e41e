"""How long a conversation may get follows what was asked for, what the model declares, and what memory has room for."""

from __future__ import annotations

import pytest

from forerun.engine.context import LEAST_TOKENS, context_of
from forerun.errors import ConfigError

PLENTY = 1 << 40


@pytest.mark.parametrize(
    ("asked", "free_bytes", "given"),
    [
        (None, 262_144 * 65_536, 262_144),
        (None, 262_143 * 65_536, 262_143),  # what memory has room for
        (None, 0, LEAST_TOKENS),
        (None, -(1 << 30), LEAST_TOKENS),
        (100_000, 0, 100_000),  # taken at its word
    ],
)
def test_as_asked_or_as_declared_or_as_memory_holds(asked: int | None, free_bytes: int, given: int) -> None:
    assert context_of(asked, 262_144, 65_536, free_bytes) == given


def test_no_more_than_the_model_was_made_for() -> None:
    with pytest.raises(ConfigError, match="the model was made for 4096 tokens"):
        context_of(4097, 4096, 1, PLENTY)
