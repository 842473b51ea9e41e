"""A copy of the benchmarks without a checkout says which commit it is of, if it was told; and never fails for want of git."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import evidence


@pytest.mark.parametrize("told", [True, False])
def test_the_commit_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    if told:
        (tmp_path / "COMMIT").write_text("0123456789ab\n")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    assert evidence._commit() == ("0123456789ab" if told else "unknown: no git checkout and no file COMMIT")


def test_a_checkout_without_git_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "COMMIT").write_text("told")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert evidence._commit() == "told"
