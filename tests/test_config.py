"""Sizes in bytes, the order of the sources, and the messages of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.config import Config, format_bytes, load, parse_bytes, prepare
from forerun.errors import ConfigError, ForerunError


@pytest.fixture(autouse=True)
def _private_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CONFIG", str(tmp_path / "config.toml"))


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [("0", 0), ("1048576", 1 << 20), ("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5 kib", 1536), ("7b", 7), (12, 12)],
)
def test_sizes(size: object, num_bytes: int) -> None:
    assert parse_bytes(size) == num_bytes


@pytest.mark.parametrize(("num_bytes", "size"), [(2 << 30, "2GiB"), (500_000_000, "500MB"), (1 << 20, "1MiB"), (0, "0")])
def test_the_shortest_way_to_write_a_size(num_bytes: int, size: str) -> None:
    assert format_bytes(num_bytes) == size
    assert parse_bytes(size) == num_bytes


@pytest.mark.parametrize("size", ["", "GiB", "-1", "2 GiBs", "1,5MB", "2G"])
def test_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(size)


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text('port = 1\nbank_ram_bytes = "1MiB"\nbank_disk_bytes = "3MB"\n')
    monkeypatch.setenv("FORERUN_PORT", "2")
    monkeypatch.setenv("FORERUN_BANK_DISK_BYTES", "4MB")
    config = load({"port": 3, "host": None})
    assert (config.port, config.bank_disk_bytes, config.bank_ram_bytes, config.host) == (3, 4_000_000, 1 << 20, "127.0.0.1")


def test_an_error_names_key_value_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_BANK_RAM_BYTES", "lots")
    with pytest.raises(ConfigError, match=r"bank_ram_bytes = 'lots' \(from environment\): not a size"):
        load({})


def test_an_unknown_key_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_PROT", "1")
    with pytest.raises(ConfigError, match="unknown setting 'prot'") as caught:
        load({})
    assert "'port'" in caught.value.hint


def test_origins_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CORS_ORIGINS", "https://a.example, http://localhost:3000")
    assert load({}).cors_origins == ("https://a.example", "http://localhost:3000")
    for wrong in ("*", "a.example", "https://a.example/path"):
        with pytest.raises(ConfigError, match="origin"):
            load({"cors_origins": wrong})


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("forerun.config.cache_home", lambda: tmp_path / "file" / "forerun")
    with pytest.raises(ForerunError, match=f"cannot write {tmp_path}/file/forerun/tmp: ") as caught:
        prepare(Config())
    assert "XDG_CACHE_HOME" in caught.value.hint
