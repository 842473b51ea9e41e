"""Memory is the machine's, or the container's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import machine


@pytest.mark.parametrize(("limit", "expected"), [("4096\n", 4096), ("max\n", None), (f"{1 << 62}\n", None), (None, None)])
def test_a_containers_limit_bounds_memory(limit: str | None, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CONTAINER_LIMIT", tmp_path / "limit")
    whole = machine.memory_bytes()
    if limit is not None:
        (tmp_path / "limit").write_text(limit)
    assert machine.memory_bytes() == (expected or whole)
