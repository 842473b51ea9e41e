"""The restore contract: wherever state comes from and wherever a prompt leaves it, the cache has the layout that was asked for, and every
bit of it and of what follows is as if the prompt had been read from its beginning. Every way to keep state must pass."""

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
from forerun.bank.restore import Restored
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous, L, Paged
from forerun.state.record import SEGMENT_TOKENS
from forerun.state.records import extract, extract_snapshot, materialise, relayout
from forerun.state.store import Arena
from forerun.values import Source

HEAD = 40
FIRST = [*tiny.words("system", HEAD - 1), tiny.END, *tiny.words("question", 560)]
SECOND = tiny.words("second question", 500)


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """A bank that holds a conversation of two turns. stored: its tokens; session: the name to ask by."""

    bank: Bank
    stored: list[int]
    source: Source
    session: str | None


Variant = Callable[[Path, ExitStack], SessionAccess]


def talk(bank: Bank) -> list[int]:
    """Two turns, the second over the end of a segment and with drafts. Returns what is stored."""
    told = turn(bank, FIRST)
    return turn(bank, [*told.stored, *SECOND], depth=1).stored


def in_ram_live(folder: Path, stack: ExitStack) -> SessionAccess:
    bank = stack.enter_context(closing(opened(None)))
    return SessionAccess(bank, talk(bank), "ram", None)


def in_ram_records(folder: Path, stack: ExitStack) -> SessionAccess:
    bank = stack.enter_context(closing(opened(None)))
    return SessionAccess(bank, talk(bank), "ram", "somebody else's: the live cache cannot be had")


def on_disk(folder: Path, stack: ExitStack) -> SessionAccess:
    bank = stack.enter_context(closing(opened(folder, ram_limit_bytes=0)))
    return SessionAccess(bank, talk(bank), "ssd", None)


def on_disk_reopened(folder: Path, stack: ExitStack) -> SessionAccess:
    with closing(opened(folder)) as bank:
        stored = talk(bank)
        assert bank.flush(LIMIT_S)
    return SessionAccess(stack.enter_context(closing(opened(folder))), stored, "ssd", None)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Variant], SessionAccess]]:
    """Every way's bank, made once: a restore from records takes nothing away."""
    with ExitStack() as stack:

        @cache
        def kept(variant: Variant) -> SessionAccess:
            return variant(tmp_path_factory.mktemp("bank") / "bank", stack)

        yield kept


@pytest.fixture(params=[in_ram_live, in_ram_records, on_disk, on_disk_reopened], ids=lambda variant: variant.__name__)
def kept(request: pytest.FixtureRequest, shelf: Callable[[Variant], SessionAccess], tmp_path: Path) -> Iterator[SessionAccess]:
    variant: Variant = request.param
    with ExitStack() as stack:
        yield variant(tmp_path / "bank", stack) if variant is in_ram_live else shelf(variant)  # a live cache is taken away


@pytest.fixture(params=[Contiguous(), Paged(64)], ids=str)
def layout(request: pytest.FixtureRequest) -> Any:
    return request.param


def restore(kept: SessionAccess, tokens: list[int], layout: L) -> Restored[L]:
    return kept.bank.restore(tokens, tenant="", session=kept.session, layout=layout, headroom_tokens=20)


def check(kept: SessionAccess, tokens: list[int], layout: L, reused: int) -> None:
    """The contract: `reused` of the tokens come back, as asked and exact, and what follows is exact too."""
    restored = restore(kept, tokens, layout)
    assert (restored.source, restored.reused_tokens) == (kept.source, reused)
    assert restored.cache.length == reused
    check_layout(restored.cache, layout)
    assert differing_state(restored.cache, cold(tokens[:reused])) == []
    after = read(tiny.family(), tokens, restored.cache)
    assert mx.array_equal(logits(tiny.family(), after), logits(tiny.family(), cold(tokens)))
    assert differing_state(after, cold(tokens)) == []


def check_layout(found: Cache[Any], asked: L) -> None:
    """What the cache says of itself, and how its arrays really lie."""
    assert found.layout == asked, f"layout {found.layout} was not asked for"
    assert (found.store.num_blocks > 0) == isinstance(asked, Paged), f"the arrays do not lie as in layout {asked}"


def prompt_end(kept: SessionAccess) -> int:
    """Where the second prompt ends."""
    return len(FIRST) + 19 + len(SECOND)


def test_the_conversation_is_what_the_tests_below_take_it_for(kept: SessionAccess) -> None:
    assert prompt_end(kept) - SUFFIX > SEGMENT_TOKENS
    assert len(kept.stored) == prompt_end(kept) + 19
    assert len(set(kept.stored[-19:])) > 5


def test_the_same_again(kept: SessionAccess, layout: L) -> None:
    check(kept, kept.stored, layout, len(kept.stored))


def test_after_decoded_tokens(kept: SessionAccess, layout: L) -> None:
    check(kept, kept.stored + tiny.words("third question", 70), layout, len(kept.stored))


def test_leaving_at_a_snapshot(kept: SessionAccess, layout: L) -> None:
    end = prompt_end(kept) - SUFFIX
    check(kept, kept.stored[:end] + tiny.words("edited", 30), layout, end)


def test_leaving_among_decoded_tokens(kept: SessionAccess, layout: L) -> None:
    last = prompt_end(kept) - SUFFIX * (kept.source == "ssd")
    check(kept, kept.stored[: prompt_end(kept) + 9] + tiny.words("edited", 30), layout, last)


def test_leaving_in_an_earlier_turn(kept: SessionAccess, layout: L) -> None:
    check(kept, kept.stored[:700] + tiny.words("edited", 30), layout, len(FIRST) + 19)


def test_sharing_the_first_message_only(kept: SessionAccess, layout: L) -> None:
    check(kept, kept.stored[: HEAD + 3] + tiny.words("another", 30), layout, HEAD)


def test_sharing_nothing_that_has_a_snapshot(kept: SessionAccess, layout: L) -> None:
    restored = restore(kept, kept.stored[: HEAD - 1] + tiny.words("another", 30), layout)
    assert (restored.source, restored.reused_tokens, restored.cache.length) == ("cold", 0, 0)
    check_layout(restored.cache, layout)
    assert restored.miss_reason.text == "the nearest stored conversation diverges after 39 tokens; there is no snapshot before that"


def test_one_restore_after_the_other_in_changing_layouts(kept: SessionAccess) -> None:
    layouts: list[Any] = [Paged(64), Contiguous(), Paged(16), Paged(64)]
    for asked, cut in zip(layouts, (len(kept.stored), 700, len(kept.stored), HEAD), strict=True):
        tokens = kept.stored[:cut] + tiny.words(cut, 30)
        restored = restore(kept, tokens, asked)
        check_layout(restored.cache, asked)
        assert differing_state(restored.cache, cold(tokens[: restored.reused_tokens])) == []
        assert differing_state(read(tiny.family(), tokens, restored.cache), cold(tokens)) == []


def test_the_original_fault_would_be_seen(kept: SessionAccess, layout: L, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced in at run time: whatever is asked for, what is built is the other layout."""
    other: Any = Paged(64) if isinstance(layout, Contiguous) else Contiguous()

    def built(arena: Arena, segments: Any, snapshot: Any, asked: Any, headroom_tokens: int) -> Any:
        return materialise(arena, segments, snapshot, other, headroom_tokens)

    monkeypatch.setattr(restore_module, "materialise", built)
    monkeypatch.setattr(restore_module, "relayout", lambda cache, asked: relayout(cache, other))
    with pytest.raises(AssertionError, match=rf"layout {re.escape(str(other))} was not asked for"):
        check(kept, kept.stored, layout, len(kept.stored))


def test_the_original_fault_under_the_right_name_would_be_seen(kept: SessionAccess, layout: L, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it hid for 50 hours: every label says what was asked for."""
    other: Any = Paged(64) if isinstance(layout, Contiguous) else Contiguous()

    def called(cache: Any, name: Any) -> Any:
        cache.layout = name
        return cache

    def built(arena: Arena, segments: Any, snapshot: Any, asked: Any, headroom_tokens: int) -> Any:
        return called(materialise(arena, segments, snapshot, other, headroom_tokens), asked)

    monkeypatch.setattr(restore_module, "materialise", built)
    monkeypatch.setattr(restore_module, "relayout", lambda cache, asked: called(relayout(cache, other), asked))
    with pytest.raises(AssertionError, match="the arrays do not lie as in layout"):
        check(kept, kept.stored, layout, len(kept.stored))


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
