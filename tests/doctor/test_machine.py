"""Each check of the machine, on one where something is wrong."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.records import record
from tests.wire import serving

from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold
from forerun.config import Config
from forerun.doctor import machine
from forerun.doctor.finding import Finding, checks, ok
from forerun.errors import ConfigError

RECORD = record("segment", tokens=[1, 2, 3], num_bytes=1000)


def config(**settings: object) -> Config:
    return Config.model_validate(settings)


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert only(machine.compiler(is_cpu=True)).status == "warning"
    assert only(machine.compiler(is_cpu=False)).status == "ok"


def test_a_ram_quota_over_half_of_memory_is_a_warning() -> None:
    assert only(machine.memory(config(bank_ram_bytes="3GiB"), 4 << 30)).status == "warning"
    assert only(machine.memory(config(bank_ram_bytes="1GiB"), 4 << 30)).status == "ok"


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "SLOW_READ_BYTES_PER_S", 0.0)
    settings = config(bank_dir=tmp_path / "deep" / "bank", bank_disk_bytes="64MiB")
    assert only(machine.disk(settings)).status == "ok"
    monkeypatch.setattr(machine, "SLOW_READ_BYTES_PER_S", 1e15)
    assert "SSD" in only(machine.disk(settings)).remedy
    assert only(machine.disk(config(bank_disk_bytes=0))).status == "warning"
    assert list(tmp_path.iterdir()) == []


def test_a_bank_with_a_damaged_record(tmp_path: Path) -> None:
    settings = config(bank_dir=tmp_path)
    assert only(machine.bank(settings)).text.endswith("holds nothing yet")
    tier = DiskTier(tmp_path, limit_bytes=1 << 30, daily_limit_bytes=1 << 30, index=hold(tmp_path))
    tier.put(RECORD)
    tier.close()
    assert re.search(r"1 records in [\d.]+ .?B at", only(machine.bank(settings)).text)
    path = tmp_path / "records" / RECORD.info.key[:2] / RECORD.info.key
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    finding = only(machine.bank(settings))
    assert finding.status == "failure"
    assert RECORD.info.key in finding.text


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0.0)
        port = taken.getsockname()[1]
        taken.close()
        assert only(machine.port(config(port=port))).status == "ok"
    with serving() as wire:
        port = int(wire.url.rsplit(":", 1)[1])
        assert only(machine.port(config(port=port, api_key="sesame"))).text == f"a server of scripted listens at {wire.url}"
    assert wire.keys == ["Bearer sesame"]


def test_an_error_is_a_finding() -> None:
    def check() -> Iterator[Finding]:
        yield ok("a", "b")
        raise ConfigError("no", hint="so")

    assert [(found.status, found.text, found.remedy) for found in checks("settings", check)] == [("failure", "no", "so")]
