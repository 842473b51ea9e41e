"""The check of the numbers detects wrong ones."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests import tiny
from tests.running import read

from forerun.bank.bank import Bank
from forerun.bank.restore import RestoredState
from forerun.doctor import numbers
from forerun.doctor.finding import Finding, ok, warning
from forerun.kernels import cpu
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


def kernels_in_use(monkeypatch: pytest.MonkeyPatch, instruction_set: str, num_threads: int) -> list[Finding]:
    module = ModuleType("forerun._cpu")
    vars(module).update(instruction_set=lambda: instruction_set, num_threads=lambda: num_threads)
    monkeypatch.setattr(cpu, "unusable", lambda: None)
    monkeypatch.setattr(cpu, "extension", lambda: module)
    return list(numbers.cpu_kernels())


def test_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "is_cpu", lambda: True)
    assert kernels_in_use(monkeypatch, "avx512", 2) == [ok("cpu", "CPU kernels: avx512, 2 threads")]
    (slow,) = kernels_in_use(monkeypatch, "portable", 1)
    assert (slow.status, slow.text) == ("warning", "CPU kernels: portable, 1 thread")
    monkeypatch.setattr(cpu, "unusable", lambda: cpu.Unusable("there was no C++ compiler", "install one"))
    assert list(numbers.cpu_kernels()) == [warning("cpu", "no CPU kernels: there was no C++ compiler", "install one")]
    monkeypatch.setattr(numbers, "is_cpu", lambda: False)
    assert list(numbers.cpu_kernels()) == []
