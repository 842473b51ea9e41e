"""The check of the numbers detects wrong ones."""

from __future__ import annotations

import pytest
from tests import tiny
from tests.running import read

from forerun.bank.bank import Bank
from forerun.bank.restore import RestoredState
from forerun.doctor import numbers
from forerun.state.layout import L

TOKENS = tiny.words(0, 20)


def test_logits_that_differ_from_the_reference() -> None:
    family = tiny.family()
    logits = family.head(read(family, TOKENS).hidden[None])[0]
    prompt = {"token_ids": TOKENS, "top5_ids": [1, 2], "top5_logits": [logits[1].item(), logits[2].item()]}
    assert numbers._reference(family, [prompt], 1e-3).status == "ok"
    wrong = prompt | {"top5_logits": [logits[1].item(), logits[2].item() + 0.1]}
    assert numbers._reference(family, [prompt, wrong], 1e-3).status == "failure"


def test_states_that_differ_in_one_token() -> None:
    family = tiny.family()
    assert numbers.is_same(read(family, TOKENS), read(family, TOKENS))
    assert not numbers.is_same(read(family, TOKENS), read(family, [*TOKENS[:-1], TOKENS[-1] + 1]))
    assert not numbers.is_same(read(family, TOKENS), read(family, TOKENS[:-1]))


def test_a_restore_that_returns_another_state(monkeypatch: pytest.MonkeyPatch) -> None:
    family = tiny.family()
    assert numbers._restore(family, TOKENS).status == "ok"

    def missing(bank: Bank, tokens: list[int], *, layout: L, headroom_tokens: int, **other: object) -> RestoredState[L]:
        return bank.bypass("bypass", prompt_tokens=len(tokens), session=None, layout=layout, headroom_tokens=headroom_tokens)

    monkeypatch.setattr(Bank, "restore", missing)
    assert numbers._restore(family, TOKENS).text == "a conversation restored from ram and ssd differs"
