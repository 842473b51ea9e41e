"""`forerun config show`: values and their origins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.config import Config


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file, and a setting in the environment."""
    path = tmp_path / "config.toml"
    path.write_text('port = 8500\nbank_disk_bytes = "50GiB"\ndecode_layout = "scattered"\n')
    monkeypatch.setenv("FORERUN_CONFIG", str(path))
    monkeypatch.setenv("FORERUN_DECODE_LAYOUT", "paged")
    return path


def test_every_value_has_its_origin(forerun: Callable[..., Any], file: Path) -> None:
    shown = json.loads(forerun("config", "show", "--json").out)
    settings = shown["settings"]
    assert (shown["file"], list(settings)) == (str(file), list(Config.model_fields))
    assert settings["port"] == {"value": 8500, "origin": str(file)}
    assert settings["decode_layout"] == {"value": "paged", "origin": "environment"}
    assert settings["host"] == {"value": "127.0.0.1", "origin": "default"}


def test_values_for_people_are_as_in_the_file(forerun: Callable[..., Any], file: Path) -> None:
    lines = [line.split() for line in forerun("config", "show").out.splitlines()]
    assert ["bank_disk_bytes", str(file), "50GiB"] in lines
    assert ["eager", "default", "false"] in lines
    assert ["api_key", "default", "none"] in lines


def test_unset_values_are_resolved(forerun: Callable[..., Any], file: Path, tmp_path: Path) -> None:
    file.write_text(f'bank_dir = "{tmp_path}"\nbank_ram_bytes = 0\n')
    lines = {line.split()[0]: line.split() for line in forerun("config", "show").out.splitlines() if line}
    assert lines["model"][2] == "demo-model,"
    assert lines["context"][1:] == ["default", "32,768", "tokens"]
    assert lines["bank_dir"][1:] == [str(file), str(tmp_path)]
    settings = json.loads(forerun("config", "show", "--json").out)["settings"]
    assert settings["bank_disk_bytes"] == {"value": None, "origin": "default", "comes_to": " ".join(lines["bank_disk_bytes"][2:])}
    assert lines["bank_disk_bytes"][3] in ("kB", "MB", "GB")
    assert "comes_to" not in settings["bank_dir"]


def test_auto_says_what_it_comes_to(forerun: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_DECODE_LAYOUT")
    file.write_text("")
    lines = {line.split()[0]: line.split(maxsplit=2)[2] for line in forerun("config", "show").out.splitlines() if " default " in line}
    assert lines["draft_depth"] == "auto: 0 to 3, whichever is fastest"
    assert lines["decode_layout"] == "auto: contiguous up to 131,072 tokens, paged above"
    settings = json.loads(forerun("config", "show", "--json").out)["settings"]
    assert settings["draft_depth"] == {"value": "auto", "origin": "default", "comes_to": "0 to 3, whichever is fastest"}
    file.write_text('decode_layout = "paged"\ndraft_depth = 2\n')
    settings = json.loads(forerun("config", "show", "--json").out)["settings"]
    assert [["comes_to" in settings[name]] for name in ("decode_layout", "draft_depth")] == [[False], [False]]


def test_a_missing_model_is_no_error(forerun: Callable[..., Any], file: Path) -> None:
    file.write_text('model = "/not/there"\n')
    shown = forerun("config", "show")
    assert (shown.code, "not known: no such folder: /not/there" in shown.out) == (0, True)


def test_an_unknown_setting_is_reported_with_its_origin(forerun: Callable[..., Any], file: Path) -> None:
    file.write_text("prot = 8500\n")
    ran = forerun("config", "show")
    assert (ran.code, ran.err) == (2, f"forerun: unknown setting 'prot' (from {file})\nhint: did you mean 'port'?\n")
