"""`Sessions` of a folder that no server holds: of one tenant, or of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.records import opened, record

from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.cli.session_access import FolderSessions, run
from forerun.engine.engine import ALL_TENANTS
from forerun.errors import UnknownSessionError


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[FolderSessions]:
    """One conversation of each of two tenants, under the same id."""
    with closing(opened(tmp_path / "bank")) as tier:
        for number, tenant in enumerate(("ann", "bob")):
            each = record(tokens=[number])
            tier.put(each)
            tier.index.label(each.info.key, RecordLabel("work", tenant, 1.0, 1.0))
            tier.index.note_session(Session(tenant, "work", "", float(number), 1, 1, False, (each.info.key,)))
        yield FolderSessions(tier, tmp_path / "bank", tmp_path / "requests.jsonl", b"")


def tenants(sessions: FolderSessions, tenant: str, limit: int = 10) -> list[str]:
    return [info.tenant for info in run(sessions.all(tenant, limit))]


def test_one_tenant_or_all(sessions: FolderSessions) -> None:
    assert [tenants(sessions, tenant) for tenant in ("ann", "", ALL_TENANTS)] == [["ann"], [], ["bob", "ann"]]
    assert tenants(sessions, ALL_TENANTS, limit=1) == ["bob"]
    assert run(sessions.one("ann", "work")).tenant == "ann"


@pytest.mark.parametrize("act", ["remove", "wipe"])
def test_other_tenants_are_untouched(sessions: FolderSessions, act: str) -> None:
    run(sessions.remove("ann", "work") if act == "remove" else sessions.wipe("ann"))
    with pytest.raises(UnknownSessionError):
        run(sessions.one("ann", "work"))
    assert tenants(sessions, ALL_TENANTS) == ["bob"]
    assert len(sessions.tier.index.inventory()) == 1


def test_all_are_wiped(sessions: FolderSessions) -> None:
    assert run(sessions.wipe(ALL_TENANTS)) == 2
    assert (tenants(sessions, ALL_TENANTS), sessions.tier.index.inventory()) == ([], [])


def test_a_coroutine_that_awaits_is_not_run() -> None:
    with pytest.raises(AssertionError):
        run(asyncio.sleep(0))
