"""Named conversations are saved and resumed; others are not saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.chat.transcript import Transcript
from forerun.errors import ConfigError, ForerunError

HELLO = {"role": "user", "content": "héllo"}


def test_a_named_one_is_saved_privately_and_resumed(tmp_path: Path) -> None:
    Transcript.open(tmp_path / "chats", "mine").add(HELLO)
    resumed = Transcript.open(tmp_path / "chats", "mine")
    resumed.add(HELLO)
    assert Transcript.open(tmp_path / "chats", "mine").messages == [HELLO, HELLO]
    assert [path.stat().st_mode & 0o777 for path in (resumed.folder, resumed.file)] == [0o700, 0o600]
    assert list(resumed.folder.iterdir()) == [resumed.file]


def test_one_without_a_name_is_not_saved(tmp_path: Path) -> None:
    Transcript.open(tmp_path / "chats", "").add(HELLO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "a b", "x" * 101])
def test_an_invalid_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name"):
        Transcript.open(tmp_path, name)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"messages": 1}'])
def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ForerunError) as caught:
        Transcript.open(tmp_path, "mine")
    assert "mine.json" in str(caught.value)
    assert (tmp_path / "mine.json").read_text() == text


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForerunError, match="cannot save the session"):
        Transcript.open(tmp_path / "file", "mine").add(HELLO)
