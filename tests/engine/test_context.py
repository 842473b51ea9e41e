"""How long a conversation may get follows what was asked for, what the model declares, and what memory has room for."""

from __future__ import annotations

import pytest

from forerun.engine.context import LEAST_TOKENS, context_of
from forerun.errors import ConfigError

PLENTY = 1 << 40


def test_what_the_model_declares_if_memory_has_room() -> None:
    assert context_of(None, 262_144, 65_536, 262_144 * 65_536) == (262_144, ())


def test_what_memory_has_room_for_and_it_is_said() -> None:
    tokens, notes = context_of(None, 262_144, 65_536, 262_143 * 65_536)
    assert tokens == 262_143
    assert notes == ("context: 262,143 of 262,144 tokens, what memory has room for; --context says otherwise",)


@pytest.mark.parametrize("room_bytes", [0, -(1 << 30)])
def test_a_little_is_served_whatever_memory_says(room_bytes: int) -> None:
    assert context_of(None, 262_144, 65_536, room_bytes)[0] == LEAST_TOKENS


def test_what_was_asked_for_is_taken_at_its_word() -> None:
    assert context_of(100_000, 262_144, 65_536, 0) == (100_000, ())


def test_no_more_than_the_model_was_made_for() -> None:
    with pytest.raises(ConfigError, match="the model was made for 4096 tokens"):
        context_of(4097, 4096, 1, PLENTY)
