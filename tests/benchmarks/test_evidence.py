"""A copy of the benchmarks without a checkout reports its commit, if a file names it; and never fails without git."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import evidence


@pytest.mark.parametrize("is_given", [True, False])
def test_the_commit_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given: bool) -> None:
    if is_given:
        (tmp_path / "COMMIT").write_text("0123456789ab\n")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    assert evidence._commit() == ("0123456789ab" if is_given else "unknown: no git checkout and no file COMMIT")


def test_a_checkout_without_git_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "COMMIT").write_text("given")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert evidence._commit() == "given"
