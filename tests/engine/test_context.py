"""The context length follows the setting, what the model declares, and what memory holds."""

from __future__ import annotations

import pytest

from forerun.engine.context import LEAST_TOKENS, context_of
from forerun.errors import ConfigError

PLENTY = 1 << 40


@pytest.mark.parametrize(
    ("requested", "free_bytes", "expected"),
    [
        (None, 262_144 * 65_536, 262_144),
        (None, 262_143 * 65_536, 262_143),  # what memory holds
        (None, 0, LEAST_TOKENS),
        (None, -(1 << 30), LEAST_TOKENS),
        (100_000, 0, 100_000),  # as requested
    ],
)
def test_as_requested_or_as_declared_or_as_memory_holds(requested: int | None, free_bytes: int, expected: int) -> None:
    assert context_of(requested, 262_144, 65_536, free_bytes) == expected


def test_more_than_the_model_declares_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model was made for 4096 tokens"):
        context_of(4097, 4096, 1, PLENTY)
