"""The n-th call to the system or to SQLite fails while a turn is restored, answered and saved, and others are evicted: the request is
served with the right answer, every byte is counted afterwards, and the next turn is right too."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.faults.failing import Moment, failing
from tests.records import bytes_under
from tests.running import greedy, read
from tests.talking import opened
from tests.waiting import LIMIT_S

from forerun.bank.bank import Bank
from forerun.bank.live import LiveConversation
from forerun.bank.tier import files
from forerun.bank.tier.quota import INDEX_SLACK_BYTES
from forerun.state.store import Arena
from forerun.values import GREEDY

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
FIRST = [*tiny.words("system", 30), tiny.END, *tiny.words("question", 100)]
NUM = 4

pytestmark = pytest.mark.usefixtures("watched_calls")


@cache
def answer(prompt: tuple[int, ...]) -> list[int]:
    return greedy(FAMILY, read(FAMILY, prompt), NUM)


def turn(bank: Bank, prompt: list[int]) -> list[int]:
    """A turn, whose answer must be the one without a bank. Returns its stored tokens."""
    result = talking.turn(bank, prompt, family=FAMILY, sampling=GREEDY, max_tokens=NUM)
    assert result.stored == [*prompt, *answer(tuple(prompt))][: len(result.stored)]
    return result.stored


def bank_in(folder: Path) -> Bank:
    bank = opened(folder, family=FAMILY)
    assert bank._disk is not None
    assert bank._disk.wait_until_reconciled(LIMIT_S)
    return bank


def restore_and_save(bank: Bank, stored: list[int]) -> None:
    """A conversation is restored from disk, continued, and saved."""
    turn(bank, stored + tiny.words(2, 20))


def evict(bank: Bank, stored: list[int]) -> None:
    """Another conversation needs the bytes of the first."""
    turn(bank, tiny.words("other", 200))


def move_out(bank: Bank, stored: list[int]) -> None:
    """RAM is short: what was live comes back from disk."""
    bank._ram_limit_bytes = 0
    turn(bank, turn(bank, stored + tiny.words(2, 20)) + tiny.words(3, 20))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A folder with a conversation, and what is stored of it."""
    folder = tmp_path_factory.mktemp("model") / "bank"
    with closing(bank_in(folder)) as bank:
        stored = turn(bank, FIRST)
        assert bank.flush(LIMIT_S)
    return folder, stored


def calls_of(work: Callable[[Bank, list[int]], None], folder: Path, stored: list[int], at: int, moment: Moment) -> int:
    """Do the work while call number `at` fails, in a folder that is nearly full. Returns the number of calls."""
    with closing(bank_in(folder)) as bank:
        assert bank._disk is not None
        bank._disk.limit_bytes = bank._disk.num_bytes + INDEX_SLACK_BYTES + 20_000
        with failing(at, moment) as failure:
            work(bank, stored)
            assert bank.flush(LIMIT_S)
        return len(failure.calls)


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.long)])
@pytest.mark.parametrize("work", [restore_and_save, evict, pytest.param(move_out, marks=pytest.mark.long)])
def test_every_call_may_fail(
    work: Callable[[Bank, list[int]], None], moment: Moment, model: tuple[Path, list[int]], tmp_path: Path
) -> None:
    whole, stored = model
    at, num_calls = -1, 1  # the first time none fails
    while at < num_calls:
        folder = tmp_path / str(at)
        shutil.copytree(whole, folder)
        num_calls = calls_of(work, folder, stored, at, moment)
        with closing(bank_in(folder)) as bank:
            turn(bank, stored + tiny.words("after", 20))
            assert bank.flush(LIMIT_S)
            assert bank._disk is not None
            assert bank._disk.num_bytes == bytes_under(folder)
        shutil.rmtree(folder)
        at += 1
    assert num_calls > 20


@pytest.mark.parametrize("code", [errno.EROFS, pytest.param(errno.ENOSPC, marks=pytest.mark.long)], ids=["read-only", "full"])
def test_the_disk_may_refuse_to_be_written_from_any_moment_on(code: int, model: tuple[Path, list[int]], tmp_path: Path) -> None:
    """What is stored is still read; when the disk can be written again, the conversation continues as if nothing had happened."""
    whole, stored = model
    sources: list[str] = []
    at, num_calls = -1, 1
    while at < num_calls:
        folder = tmp_path / str(at)
        shutil.copytree(whole, folder)
        with closing(bank_in(folder)) as bank:
            with failing(at, "from then on", code) as failure:
                last = turn(bank, stored + tiny.words(2, 20))
                assert bank.flush(LIMIT_S)
                bank._ram_limit_bytes = 0
                bank.trim()
                sources.append(talking.turn(bank, stored, family=FAMILY, sampling=GREEDY, max_tokens=NUM).restored.source)
                assert bank.flush(LIMIT_S)
            num_calls = len(failure.calls)
            assert bool(bank.stats.skipped) == bool(failure.failed), "what is not written is reported"
            last = turn(bank, last + tiny.words("after", 20))
            assert bank.flush(LIMIT_S)
        with closing(bank_in(folder)) as bank:
            assert bank._disk is not None
            assert bank._disk.num_bytes == bytes_under(folder)
            again = talking.turn(bank, last, family=FAMILY, sampling=GREEDY, max_tokens=NUM)
            assert (again.restored.source, again.restored.reused_tokens) == ("ssd", len(last))
        shutil.rmtree(folder)
        at += 9
    assert sources.count("ssd") >= len(sources) - 1 > 8  # a row that cannot be deleted, of a file that is gone, hides its replacement


def test_memory_may_be_short_at_any_moment(model: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a record, a cache for it, a copy for the disk: a failed allocation costs time, never the answer."""
    whole, stored = model
    allocated: list[str] = []

    def short(at: int, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object) -> object:
            allocated.append(name)
            if len(allocated) - 1 == at:
                raise MemoryError(name)
            return call(*given)

        return counted

    at, num_calls = -1, 1
    while at < num_calls:
        folder = tmp_path / str(at)
        shutil.copytree(whole, folder)
        with closing(bank_in(folder)) as bank, monkeypatch.context() as patched:
            allocated.clear()
            for name, owner in (("read", files), ("store", Arena), ("capture", LiveConversation)):
                patched.setattr(owner, name, short(at, name, getattr(owner, name)))
            last = turn(bank, stored + tiny.words(2, 20))
            assert bank.flush(LIMIT_S)
            turn(bank, last + tiny.words(3, 20))
            assert bank.flush(LIMIT_S)
            num_calls = len(allocated)
        at += 1
    assert {"read", "store", "capture"} <= set(allocated)
