"""What tests of failing calls share."""

from __future__ import annotations

import os
import sqlite3
from functools import partial

import pytest
from tests.faults.failing import Connection

from forerun.bank.tier import database


@pytest.fixture
def watched_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's statements can be made to fail; nothing waits for the disk: the calls count here, not the power cut."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(database, "_SETTINGS", [setting.replace("NORMAL", "OFF") for setting in database._SETTINGS])
