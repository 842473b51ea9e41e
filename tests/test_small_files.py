"""Small files: those that only save work are not worth an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import small_files


def test_what_only_saves_work_is_told_of_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small_files.keep(tmp_path / "kept", "text")
    assert ((tmp_path / "kept").read_text(), caplog.text) == ("text", "")
    small_files.keep(tmp_path / "kept" / "file", "text")
    assert f"{tmp_path}/kept/file cannot be written" in caplog.text
    with pytest.raises(OSError, match="kept"):
        small_files.put(tmp_path / "kept" / "file", "text")
