"""Memory is the machine's, or what a container may take of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import machine


@pytest.mark.parametrize(("told", "expected"), [("4096\n", 4096), ("max\n", None), (f"{1 << 62}\n", None), (None, None)])
def test_a_container_takes_no_more_than_it_may(
    told: str | None, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CONTAINER_LIMIT", tmp_path / "limit")
    whole = machine.memory_bytes()
    if told is not None:
        (tmp_path / "limit").write_text(told)
    assert machine.memory_bytes() == (expected or whole)
