"""Teacher forcing on the bundled model: its own answer has only small gaps, another has large ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from forerun.cli.demo import MODEL
from forerun.demo import near_ties as module
from forerun.demo.compare import NearTies
from forerun.kernels import cpu
from forerun.kernels.arithmetic import Arithmetic
from forerun.kernels.numerics import FAST

PROBE = json.loads((MODEL / "reference.json").read_text())["prompts"][0]


@pytest.fixture(scope="module")
def model() -> Iterator[module.TeacherForcing]:
    """The model on one probe, in array operations: by the CPU kernels there are no near-ties."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "extension", lambda: None)
        forced = module.TeacherForcing(Arithmetic(FAST, "float32", "array operations"))
        forced._probes = [PROBE]
        yield forced


def ties(model: module.TeacherForcing, monkeypatch: pytest.MonkeyPatch, *answers: Sequence[int]) -> NearTies:
    monkeypatch.setattr(module, "_model", lambda: model)
    return module.near_ties(PROBE["token_ids"], *answers)


def test_the_models_own_answer_is_within_the_bound(model: module.TeacherForcing, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ties(model, monkeypatch, PROBE["greedy_32"], PROBE["greedy_32"])
    assert result.largest_gap <= result.bound
    assert 0 < result.bound < 0.1


def test_another_answer_is_not(model: module.TeacherForcing, monkeypatch: pytest.MonkeyPatch) -> None:
    other = [*PROBE["greedy_32"][:-1], PROBE["greedy_32"][0]]
    result = ties(model, monkeypatch, PROBE["greedy_32"], other)
    assert result.largest_gap > result.bound
    assert result.count >= 1
