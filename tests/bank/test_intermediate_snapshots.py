"""Intermediate snapshots of a long prompt: an edit in the middle, or another conversation, continues from them bit for bit."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing_state, read
from tests.talking import CONTIGUOUS
from tests.waiting import LIMIT_S

from forerun.bank.policy import APART_TOKENS

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
HEAD = [*tiny.words("system", 30), tiny.END]
MESSAGE_TOKENS = 400
MESSAGES = [[*tiny.words(f"message {i}", MESSAGE_TOKENS - 1), tiny.END] for i in range(7)]
DOCUMENT = [*HEAD, *tiny.words("document", 1050)]


def joined(messages: list[list[int]]) -> list[int]:
    return [*HEAD, *(token for message in messages for token in message)]


def test_an_edit_in_the_middle_of_a_long_prompt_reuses_an_intermediate_snapshot(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        turn(bank, joined(MESSAGES))
        assert bank.flush(LIMIT_S)
    for edited in (4, 6):
        with closing(opened(tmp_path / "bank")) as bank:
            prompt = joined([*MESSAGES[:edited], tiny.words("edited", 20)])
            restored = bank.restore(prompt, tenant="", session=None, layout=CONTIGUOUS, headroom_tokens=0)
            before = len(joined(MESSAGES[:edited]))
            assert before - APART_TOKENS - MESSAGE_TOKENS <= restored.reused_tokens <= before
            assert restored.reused_tokens > len(HEAD)
            assert differing_state(restored.cache, read(FAMILY, prompt[: restored.reused_tokens])) == []


def test_a_third_conversation_continues_where_two_diverged(tmp_path: Path) -> None:
    reused = []
    for question in range(3):
        with closing(opened(tmp_path / "bank")) as bank:
            result = turn(bank, [*DOCUMENT, *tiny.words(question, APART_TOKENS + 10)])
            reused.append(result.restored.reused_tokens)
            assert bank.flush(LIMIT_S)
    assert reused[:2] == [0, len(HEAD)]
    assert reused[2] >= len(DOCUMENT)
    assert differing_state(result.restored.cache, read(FAMILY, result.stored)) == []
