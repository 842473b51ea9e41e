"""The restore contract: wherever state comes from and wherever a prompt diverges, the cache has the requested layout, and every bit of it
and of what follows is as after a prefill from the beginning. Run against every form of stored state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.records import opened as opened_tier
from tests.running import differing_state, logits, read
from tests.talking import SUFFIX, cold, opened, turn
from tests.waiting import LIMIT_S

from forerun.bank import restore as restore_module
from forerun.bank.bank import Bank
from forerun.bank.restore import RestoredState
from forerun.state.cache import Cache
from forerun.state.conversion import extract, extract_snapshot, fork, materialise, relayout
from forerun.state.layout import Contiguous, L, Paged
from forerun.state.record import SEGMENT_TOKENS
from forerun.state.store import Arena
from forerun.values import Source

HEAD = 40
FIRST = [*tiny.words("system", HEAD - 1), tiny.END, *tiny.words("question", 560)]
SECOND = tiny.words("second question", 500)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A bank that holds a conversation of two turns. stored: its tokens. session: the id to request."""

    bank: Bank
    stored: list[int]
    source: Source
    session: str | None


Variant = Callable[[Path, ExitStack], StoredSession]


def talk(bank: Bank) -> list[int]:
    """Two turns, the second over the end of a segment and with drafts. Returns what is stored."""
    first = turn(bank, FIRST)
    return turn(bank, [*first.stored, *SECOND], depth=1).stored


def in_ram_live(folder: Path, stack: ExitStack) -> StoredSession:
    bank = stack.enter_context(closing(opened(None)))
    return StoredSession(bank, talk(bank), "ram", None)


def in_ram_forked(folder: Path, stack: ExitStack) -> StoredSession:
    bank = stack.enter_context(closing(opened(None)))
    return StoredSession(bank, talk(bank), "ram", "another: the live cache cannot be taken over")


def on_disk(folder: Path, stack: ExitStack) -> StoredSession:
    bank = stack.enter_context(closing(opened(folder, ram_limit_bytes=0)))
    return StoredSession(bank, talk(bank), "ssd", None)


def on_disk_reopened(folder: Path, stack: ExitStack) -> StoredSession:
    with closing(opened(folder)) as bank:
        stored = talk(bank)
        assert bank.flush(LIMIT_S)
    return StoredSession(stack.enter_context(closing(opened(folder))), stored, "ssd", None)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Variant], StoredSession]]:
    """Every variant's bank, made once: a restore from records and a fork consume nothing."""
    with ExitStack() as stack:

        @cache
        def case(variant: Variant) -> StoredSession:
            return variant(tmp_path_factory.mktemp("bank") / "bank", stack)

        yield case


@pytest.fixture(params=[in_ram_live, in_ram_forked, on_disk, on_disk_reopened], ids=lambda variant: variant.__name__)
def case(request: pytest.FixtureRequest, cases: Callable[[Variant], StoredSession], tmp_path: Path) -> Iterator[StoredSession]:
    variant: Variant = request.param
    with ExitStack() as stack:
        yield variant(tmp_path / "bank", stack) if variant is in_ram_live else cases(variant)  # a live cache is consumed


@pytest.fixture(params=[Contiguous(), Paged(64)], ids=str)
def layout(request: pytest.FixtureRequest) -> Any:
    return request.param


def restore(case: StoredSession, tokens: list[int], layout: L) -> RestoredState[L]:
    return case.bank.restore(tokens, tenant="", session=case.session, layout=layout, headroom_tokens=20)


def check(case: StoredSession, tokens: list[int], layout: L, reused: int) -> None:
    """The contract: `reused` of the tokens are restored, in the requested layout and exact, and what follows is exact too."""
    restored = restore(case, tokens, layout)
    assert (restored.source, restored.reused_tokens) == (case.source, reused)
    assert restored.cache.length == reused
    check_layout(restored.cache, layout)
    assert differing_state(restored.cache, cold(tokens[:reused])) == []
    after = read(tiny.family(), tokens, restored.cache)
    assert mx.array_equal(logits(tiny.family(), after), logits(tiny.family(), cold(tokens)))
    assert differing_state(after, cold(tokens)) == []


def check_layout(found: Cache[Any], requested: L) -> None:
    """The cache's label, and the actual layout of its arrays."""
    assert found.layout == requested, f"layout {found.layout} was not requested"
    assert (found.store.num_blocks > 0) == isinstance(requested, Paged), f"the arrays do not lie as in layout {requested}"


def prompt_end(case: StoredSession) -> int:
    """Where the second prompt ends."""
    return len(FIRST) + 19 + len(SECOND)


def test_the_conversation_is_what_the_tests_below_take_it_for(case: StoredSession) -> None:
    assert prompt_end(case) - SUFFIX > SEGMENT_TOKENS
    assert len(case.stored) == prompt_end(case) + 19
    assert len(set(case.stored[-19:])) > 5


def test_the_same_again(case: StoredSession, layout: L) -> None:
    check(case, case.stored, layout, len(case.stored))


def test_after_decoded_tokens(case: StoredSession, layout: L) -> None:
    check(case, case.stored + tiny.words("third question", 70), layout, len(case.stored))


def test_leaving_at_a_snapshot(case: StoredSession, layout: L) -> None:
    end = prompt_end(case) - SUFFIX
    check(case, case.stored[:end] + tiny.words("edited", 30), layout, end)


def test_leaving_among_decoded_tokens(case: StoredSession, layout: L) -> None:
    last = prompt_end(case) - SUFFIX * (case.source == "ssd")
    check(case, case.stored[: prompt_end(case) + 9] + tiny.words("edited", 30), layout, last)


def test_leaving_in_an_earlier_turn(case: StoredSession, layout: L) -> None:
    check(case, case.stored[:700] + tiny.words("edited", 30), layout, len(FIRST) + 19)


def test_sharing_the_first_message_only(case: StoredSession, layout: L) -> None:
    check(case, case.stored[: HEAD + 3] + tiny.words("another", 30), layout, HEAD)


def test_sharing_nothing_that_has_a_snapshot(case: StoredSession, layout: L) -> None:
    restored = restore(case, case.stored[: HEAD - 1] + tiny.words("another", 30), layout)
    assert (restored.source, restored.reused_tokens, restored.cache.length) == ("cold", 0, 0)
    check_layout(restored.cache, layout)
    assert restored.miss_reason.text == "the nearest stored conversation diverges after 39 tokens; there is no snapshot before that"


def test_one_restore_after_the_other_in_changing_layouts(case: StoredSession) -> None:
    layouts: list[Any] = [Paged(64), Contiguous(), Paged(16), Paged(64)]
    for requested, cut in zip(layouts, (len(case.stored), 700, len(case.stored), HEAD), strict=True):
        tokens = case.stored[:cut] + tiny.words(cut, 30)
        restored = restore(case, tokens, requested)
        check_layout(restored.cache, requested)
        assert differing_state(restored.cache, cold(tokens[: restored.reused_tokens])) == []
        assert differing_state(read(tiny.family(), tokens, restored.cache), cold(tokens)) == []


def test_the_original_fault_would_be_seen(case: StoredSession, layout: L, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced at run time: whatever is requested, the other layout is built."""
    other: Any = Paged(64) if isinstance(layout, Contiguous) else Contiguous()

    def built(arena: Arena, segments: Any, snapshot: Any, requested: Any, headroom_tokens: int) -> Any:
        return materialise(arena, segments, snapshot, other, headroom_tokens)

    monkeypatch.setattr(restore_module, "materialise", built)
    monkeypatch.setattr(restore_module, "relayout", lambda cache, requested: relayout(cache, other))
    monkeypatch.setattr(restore_module, "fork", lambda cache, snapshot, requested, headroom: fork(cache, snapshot, other, headroom))
    with pytest.raises(AssertionError, match=rf"layout {re.escape(str(other))} was not requested"):
        check(case, case.stored, layout, len(case.stored))


def test_the_original_fault_under_the_right_name_would_be_seen(case: StoredSession, layout: L, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it hid for 50 hours: every label names the requested layout."""
    other: Any = Paged(64) if isinstance(layout, Contiguous) else Contiguous()

    def called(cache: Any, name: Any) -> Any:
        cache.layout = name
        return cache

    def built(arena: Arena, segments: Any, snapshot: Any, requested: Any, headroom_tokens: int) -> Any:
        return called(materialise(arena, segments, snapshot, other, headroom_tokens), requested)

    monkeypatch.setattr(restore_module, "materialise", built)
    monkeypatch.setattr(restore_module, "relayout", lambda cache, requested: called(relayout(cache, other), requested))
    monkeypatch.setattr(restore_module, "fork", lambda cache, at, requested, headroom: called(fork(cache, at, other, headroom), requested))
    with pytest.raises(AssertionError, match="the arrays do not lie as in layout"):
        check(case, case.stored, layout, len(case.stored))


def test_stored_bytes_are_those_of_a_fresh_prefill(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        tokens = talk(bank)
        assert bank.flush(LIMIT_S)
    fresh = cold(tokens)
    with closing(opened_tier(tmp_path / "bank")) as tier:
        records = [tier.get(info.key) for info in tier.index.inventory()]
    segments = {r.info.start: r for r in records if r.info.kind == "segment"}
    assert [(r.info.start, r.info.stop) for r in segments.values()] == [(0, SEGMENT_TOKENS), (SEGMENT_TOKENS, len(tokens))]
    for segment in segments.values():
        assert segment.payload == extract(fresh, segment.info.start, segment.info.stop)
    snapshots = {r.info.stop: r for r in records if r.info.kind == "snapshot"}
    assert sorted(snapshots) == [HEAD, len(FIRST) - SUFFIX, len(FIRST) + 19, len(tokens) - 19 - SUFFIX, len(tokens)]
    for position, snapshot in snapshots.items():
        assert snapshot.payload == extract_snapshot(cold(tokens[:position]).snapshot())
