"""The disk limit: as set, or a share of the free bytes; and a limit too low for any conversation."""

from __future__ import annotations

import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from tests import tiny
from tests.fake_family import FakeFamily, scattered

from forerun.bank.tier import quota
from forerun.config import Config
from forerun.errors import ConfigError

SPEC = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB).spec
Usage = namedtuple("Usage", "free")


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1000) if path.exists() else None)


@pytest.mark.usefixtures("free_bytes")
def test_by_default_a_share_of_what_is_free(tmp_path: Path) -> None:
    config = Config(bank_dir=tmp_path / "not" / "there")
    assert (quota.disk_limit(config, 200), quota.daily_limit(config)) == (120, 500)


def test_as_set(tmp_path: Path) -> None:
    config = Config(bank_dir=tmp_path, bank_disk_bytes=5, bank_daily_write_bytes=6)
    assert (quota.disk_limit(config, 200), quota.daily_limit(config)) == (5, 6)


def test_a_limit_too_low_for_any_conversation_is_refused_if_set_and_logged_if_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="bank_disk_bytes = 2000000: this model's conversations need"):
        quota.check_disk_limit(Config(bank_disk_bytes=2_000_000), SPEC, 2_000_000)
    quota.check_disk_limit(Config(bank_disk_bytes=4 << 20), SPEC, 4 << 20)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        quota.check_disk_limit(Config(bank_dir=tmp_path), SPEC, 2_000_000)
    assert "nearly full" in caplog.text
