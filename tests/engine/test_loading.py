"""A load that fails releases what it holds, in order."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.talking import IDENTITY, opened, tokenizer, turn
from tests.waiting import LIMIT_S

from forerun.bank.tier import folder
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.index import Index
from forerun.bank.tier.reconcile import Reconciler
from forerun.config import Config
from forerun.engine import loading
from forerun.errors import ConfigError, ModelError
from forerun.kernels import arithmetic
from forerun.models.load import DEMO_MODEL
from forerun.text.prompt import Prompter
from forerun.text.template import Template


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, ""),
        ({"numerics": "fast 1, other"}, "1 stored conversation has other numerics: not used until a server with that starts"),
        (
            {"template": "t2", "weights": "w2"},
            "1 stored conversation has other weights and template: not used until a server with that starts",
        ),
    ],
)
def test_conversations_of_another_identity_are_counted(
    changes: dict[str, str], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bank = opened(tmp_path)
    turn(bank, range(10, 50))
    assert bank.flush(LIMIT_S)
    bank.close()
    index = folder.view(tmp_path)
    loading._log_others(index, replace(IDENTITY, **changes))
    index.close()
    assert [record.getMessage() for record in caplog.records] == [line] * bool(line)


def fail_warm_up(*_: Any) -> None:
    raise ModelError("cold")


@pytest.mark.parametrize(("disk_bytes", "error"), [(1, ConfigError), (1 << 30, ModelError)], ids=["quota", "warm-up"])
def test_no_thread_is_at_the_index_when_it_is_closed(
    disk_bytes: int, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reconciles what a crash left; closing the database under it may end the process with signal 11."""
    stopping, stop, close, at_work = threading.Event(), Reconciler.stop, Index.close, []

    def stopped(reconciling: Reconciler) -> None:
        stopping.set()
        stop(reconciling)

    def none(tier: DiskTier) -> list[str]:
        stopping.wait(LIMIT_S)
        return []

    def closed(index: Index) -> None:
        if index._file_lock is not None:  # the folder's, not RAM's
            at_work.append(any(thread.name == "bank-reconcile" for thread in threading.enumerate()))
        close(index)

    monkeypatch.setattr(DiskTier, "_prefixes", none)
    monkeypatch.setattr(Reconciler, "stop", stopped)
    monkeypatch.setattr(Index, "close", closed)
    monkeypatch.setattr(loading, "warm_up", fail_warm_up)
    monkeypatch.setattr(loading.proof, "prove_once", lambda: None)
    settings = Config.model_validate({"bank_dir": tmp_path / "bank", "bank_disk_bytes": disk_bytes})
    prompter = Prompter(tokenizer(), Template.load(DEMO_MODEL))
    with pytest.raises(error):
        loading.load_model(settings, DEMO_MODEL, arithmetic.here(), prompter, lambda doing, frac: None)
    stopping.set()
    assert at_work == [False]
