"""A conversation's removal, or its import, is broken off: any call to the disk fails, or the process is killed before any call. What is
there afterwards is accounted for, others lose nothing, and it can be done again."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.failing import Moment, failing
from tests.faults.killed import ACTS, LEFT, NAMES, RECORDS, prepare
from tests.records import bytes_under, opened

from forerun.bank import stored
from forerun.errors import BankError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "bank"
    prepare(folder)
    return folder


def check(folder: Path, act: str) -> None:
    """What must hold after whatever was broken off, and after it was done again."""
    tier = opened(folder)
    assert tier.num_bytes == bytes_under(folder)
    for session in tier.index.all_sessions():
        if session.id in LEFT[act]:
            assert stored.usable(tier.index, session).position == session.num_tokens
    if act != "load" or tier.index.session("", "again") is None:
        ACTS[act](tier)
    left = {session.id: stored.usable(tier.index, session).position for session in tier.index.all_sessions()}
    assert left == LEFT[act]
    assert len(tier.index.inventory()) == RECORDS[act]
    assert tier.num_bytes == bytes_under(folder)
    tier.close()


@pytest.mark.usefixtures("watched_calls")
@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.long)])
@pytest.mark.parametrize("act", ["remove", *(pytest.param(act, marks=pytest.mark.long) for act in ("wipe", "load"))])
def test_every_call_of_a_removal_may_fail(act: str, moment: Moment, model: Path, tmp_path: Path) -> None:
    at, num_calls = -1, 1  # the first time none fails
    while at < num_calls:
        folder = tmp_path / str(at)
        shutil.copytree(model, folder)
        tier = opened(folder)
        with failing(at, moment) as failure, suppress(BankError, KeyError):
            ACTS[act](tier)
        gc.collect()  # what the error still holds: a cursor that was not read to its end keeps reading
        num_calls = len(failure.calls) if at < 0 else num_calls
        assert tier.num_bytes == bytes_under(folder)
        tier.close()
        check(folder, act)
        at += 1
    assert num_calls > 12


@pytest.mark.parametrize("act", ["remove", *(pytest.param(act, marks=pytest.mark.long) for act in ("wipe", "load"))])
def test_a_process_may_be_killed_at_any_call_of_a_removal(act: str, model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.killed", act, str(model), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    num_killed = int(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout)
    assert num_killed > 12
    for at in range(num_killed):
        check(tmp_path / str(at), act)


@pytest.mark.usefixtures("watched_calls")
def test_the_conversation_itself_goes_last(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "bank")
    tier = opened(tmp_path / "bank")
    assert {session.id for session in tier.index.all_sessions()} == set(NAMES)
    with failing(-1, "before") as failure:
        stored.remove(tier, "", "mine", ())
    calls = [call for call in failure.calls if call == "unlink" or "DELETE" in call]
    assert [call for call in calls if "FROM session" in call] == calls[-1:]
    assert len(calls) == 2 * 3 + 1 + 1  # and its responses
    tier.close()
