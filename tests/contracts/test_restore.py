"""The restore contract: wherever state comes from and wherever a prompt leaves it, the cache has the layout that was asked for, and every
bit of it and of what follows is as if the prompt had been read from its beginning. Every way to keep state must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.records import opened as opened_tier
from tests.running import differing, logits, read
from tests.talking import SUFFIX, cold, opened, turn

from forerun.bank import bank as bank_module
from forerun.bank.bank import Bank, Restored
from forerun.state.layout import Contiguous, Paged
from forerun.state.record import SEGMENT_TOKENS
from forerun.state.records import extract, extract_mark
from forerun.values import Source

HEAD = 40
FIRST = [*tiny.words("system", HEAD - 1), tiny.END, *tiny.words("question", 560)]
SECOND = tiny.words("second question", 500)


@dataclass(frozen=True, slots=True)
class Kept:
    """A bank that holds a conversation of two turns. stored: its tokens; session: the name to ask by."""

    bank: Bank
    stored: list[int]
    source: Source
    session: str | None


def talk(bank: Bank) -> list[int]:
    """Two turns, the second over the end of a segment and with drafts. Returns what is stored."""
    told = turn(bank, FIRST)
    return turn(bank, [*told.stored, *SECOND], depth=3).stored


def in_ram_live(folder: Path, stack: ExitStack) -> Kept:
    bank = stack.enter_context(closing(opened(None)))
    return Kept(bank, talk(bank), "ram", None)


def in_ram_records(folder: Path, stack: ExitStack) -> Kept:
    bank = stack.enter_context(closing(opened(None)))
    return Kept(bank, talk(bank), "ram", "somebody else's: the live cache cannot be had")


def on_disk(folder: Path, stack: ExitStack) -> Kept:
    bank = stack.enter_context(closing(opened(folder, ram_limit_bytes=0)))
    told = turn(bank, FIRST)
    assert bank.flush(10)
    stored = turn(bank, [*told.stored, *SECOND], depth=3).stored
    assert bank.flush(10)
    return Kept(bank, stored, "ssd", None)


def on_disk_reopened(folder: Path, stack: ExitStack) -> Kept:
    with closing(opened(folder)) as bank:
        stored = talk(bank)
        assert bank.flush(10)
    return Kept(stack.enter_context(closing(opened(folder))), stored, "ssd", None)


WAYS = [in_ram_live, in_ram_records, on_disk, on_disk_reopened]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    way: Callable[[Path, ExitStack], Kept] = request.param
    with ExitStack() as stack:
        yield way(tmp_path / "bank", stack)


def restore(kept: Kept, tokens: list[int]) -> Restored[Contiguous]:
    return kept.bank.restore(tokens, tenant="", session=kept.session, layout=Contiguous(), room_tokens=20)


def check(kept: Kept, tokens: list[int], reused: int) -> None:
    """The contract: `reused` of the tokens come back, as asked and exact, and what follows is exact too."""
    restored = restore(kept, tokens)
    assert restored.cache.layout == Contiguous(), f"layout {restored.cache.layout} was not asked for"
    assert (restored.source, restored.reused_tokens) == (kept.source, reused)
    assert restored.cache.length == reused
    assert differing(restored.cache, cold(tokens[:reused])) == []
    after = read(tiny.family(), tokens, restored.cache)
    assert mx.array_equal(logits(tiny.family(), after), logits(tiny.family(), cold(tokens)))
    assert differing(after, cold(tokens)) == []


def prompt_end(kept: Kept) -> int:
    """Where the second prompt ends."""
    return len(FIRST) + 19 + len(SECOND)


def test_the_conversation_is_what_the_tests_below_take_it_for(kept: Kept) -> None:
    assert prompt_end(kept) - SUFFIX > SEGMENT_TOKENS
    assert len(kept.stored) == prompt_end(kept) + 19
    assert len(set(kept.stored[-19:])) > 5


def test_the_same_again(kept: Kept) -> None:
    check(kept, kept.stored, len(kept.stored))


def test_after_decoded_tokens(kept: Kept) -> None:
    check(kept, kept.stored + tiny.words("third question", 70), len(kept.stored))


def test_leaving_at_a_mark(kept: Kept) -> None:
    end = prompt_end(kept) - SUFFIX
    check(kept, kept.stored[:end] + tiny.words("edited", 30), end)


def test_leaving_among_decoded_tokens(kept: Kept) -> None:
    last = prompt_end(kept) - SUFFIX * (kept.source == "ssd")
    check(kept, kept.stored[: prompt_end(kept) + 9] + tiny.words("edited", 30), last)


def test_leaving_in_an_earlier_turn(kept: Kept) -> None:
    check(kept, kept.stored[:700] + tiny.words("edited", 30), len(FIRST) + 19)


def test_sharing_the_first_message_only(kept: Kept) -> None:
    check(kept, kept.stored[: HEAD + 3] + tiny.words("another", 30), HEAD)


def test_sharing_nothing_that_has_a_mark(kept: Kept) -> None:
    restored = restore(kept, kept.stored[: HEAD - 1] + tiny.words("another", 30))
    assert (restored.source, restored.reused_tokens, restored.cache.length) == ("cold", 0, 0)
    assert restored.reason == "the prompt and the stored conversation are the same for 39 tokens; no mark lies before that"


def test_one_restore_after_the_other(kept: Kept) -> None:
    forks = [kept.stored[:cut] + tiny.words(cut, 30) for cut in (len(kept.stored), 700, len(kept.stored), HEAD)]
    for tokens in forks:
        restored = restore(kept, tokens)
        assert differing(restored.cache, cold(tokens[: restored.reused_tokens])) == []
        assert differing(read(tiny.family(), tokens, restored.cache), cold(tokens)) == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_restore_in_another_layout_would_be_seen(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original fault, forced in at run time: whatever is asked for, the cache that comes back is arranged otherwise."""

    def otherwise(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(*args: Any) -> Any:
            cache = build(*args)
            cache.layout = Paged(16)
            return cache

        return built

    with ExitStack() as stack:
        kept = way(tmp_path / "bank", stack)
        for name in ("materialise", "relayout"):
            monkeypatch.setattr(bank_module, name, otherwise(getattr(bank_module, name)))
        with pytest.raises(AssertionError, match=r"layout paged\(16\) was not asked for"):
            check(kept, kept.stored, len(kept.stored))


def test_stored_bytes_are_those_of_a_fresh_prefill(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "bank")) as bank:
        tokens = talk(bank)
        assert bank.flush(10)
    fresh = cold(tokens)
    with closing(opened_tier(tmp_path / "bank")) as tier:
        records = [tier.get(info.key) for info in tier.inventory()]
    segments = {r.start: r for r in records if r.kind == "segment"}
    assert [(r.start, r.stop) for r in segments.values()] == [(0, SEGMENT_TOKENS), (SEGMENT_TOKENS, len(tokens))]
    for segment in segments.values():
        assert segment.payload == extract(fresh, segment.start, segment.stop)
    marks = {r.stop: r for r in records if r.kind == "mark"}
    assert sorted(marks) == [HEAD, len(FIRST) + 19, len(tokens) - 19 - SUFFIX, len(tokens)]
    for position, mark in marks.items():
        assert mark.payload == extract_mark(cold(tokens[:position]).snapshot())
