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


def test_origins_are_those_that_browsers_send(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = "https://A.example/, http://localhost:3000,http://[::1]:3000, https://a.example:443, http://a.example:80/, http://a.example:443"
    apps = "app://obsidian.md, tauri://localhost, capacitor://localhost/, moz-extension://0a-1b, vscode-webview://x, file+x.y-z://h"
    monkeypatch.setenv("FORERUN_CORS_ORIGINS", f"{sent}, {apps}")
    web = (
        "https://a.example",
        "http://localhost:3000",
        "http://[::1]:3000",
        "https://a.example",
        "http://a.example",
        "http://a.example:443",
    )
    assert load({}).cors_origins == (*web, *apps.replace("/,", ",").split(", "))


NO_ORIGINS = [
    "a.example",
    "https://a.example/path",
    "https://a.example//",
    "null",
    "http://*.a.example",
    "app://*",
    "http://a:b",
    "https://",
]
NO_ORIGINS += [
    "http://u@a.example",
    "http://a.example?x",
    "http://a.example#x",
    "http://localhost:*",
    "1http://a",
    "file:///x",
    "http://a b",
]


@pytest.mark.parametrize("wrong", NO_ORIGINS)
def test_what_is_no_origin(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not an origin; write scheme://host or scheme://host:port"):
        load({"cors_origins": f"https://a.example,{wrong}"})


def test_a_list_in_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('cors_origins = ["app://x/"]\nallowed_hosts = ["B.example."]\n')
    assert (load({}).cors_origins, load({}).allowed_hosts) == (("app://x",), ("b.example",))
    (tmp_path / "config.toml").write_text("allowed_hosts = [5]\n")
    with pytest.raises(ConfigError, match="allowed_hosts"):
        load({})


def test_allowed_hosts() -> None:
    given = "LLM.home.lan., *.ts.net,192.168.1.5, [fe80::1],::1, my_box"
    assert load({"allowed_hosts": given}).allowed_hosts == ("llm.home.lan", "*.ts.net", "192.168.1.5", "fe80::1", "::1", "my_box")


@pytest.mark.parametrize("wrong", ["http://a", "a:80", "[::1]:80", "a.*", "*a", "*.*", "a/b", "a..b", "**", "ä.example", "a b", "."])
def test_what_is_no_hosts_name(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not a host's name"):
        load({"allowed_hosts": wrong})


@pytest.mark.parametrize("field", ["allowed_hosts", "cors_origins"])
def test_a_star_is_refused_with_the_reason(field: str) -> None:
    with pytest.raises(ConfigError, match=r"'\*' would let every web page"):
        load({field: "*"})


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("forerun.config.cache_home", lambda: tmp_path / "file" / "forerun")
    with pytest.raises(ForerunError, match=f"cannot write {tmp_path}/file/forerun/tmp: ") as caught:
        prepare(Config())
    assert "XDG_CACHE_HOME" in caught.value.hint
