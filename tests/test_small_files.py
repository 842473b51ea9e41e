"""Small files: replaced whole, under temporary names that nobody else uses; those that only save work raise no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun import small_files


def test_a_file_that_only_saves_work_is_logged_and_raises_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small_files.keep(tmp_path / "kept", "text")
    assert ((tmp_path / "kept").read_text(), caplog.text) == ("text", "")
    small_files.keep(tmp_path / "kept" / "file", "text")
    assert f"{tmp_path}/kept/file cannot be written" in caplog.text
    with pytest.raises(OSError, match="kept"):
        small_files.put(tmp_path / "kept" / "file", "text")


def test_a_temporary_file_never_takes_the_name_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the process is number 1, and `requests.jsonl.1` is the log before this one."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    (tmp_path / "requests.jsonl.1").write_text("older")
    small_files.put(tmp_path / "requests.jsonl", "newer")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"requests.jsonl": "newer", "requests.jsonl.1": "older"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    small_files.put(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        small_files.put(tmp_path / "file", "\ud800")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
