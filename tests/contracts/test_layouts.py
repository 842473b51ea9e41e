"""The restore contract over every combination: kept in RAM or on SSD, written from a contiguous or a paged cache, asked for in either
layout, taken up at its end or at a mark, with and without draft layers. The arrays come back bit for bit, lying as was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from tests import tiny
from tests.running import differing_state, logits, read
from tests.talking import SUFFIX, opened, turn

from forerun.bank import restore as restore_module
from forerun.bank.bank import Bank
from forerun.models.base import Family
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.records import relayout_as_chosen

FIRST = tiny.words("layouts", 300)
SECOND = tiny.words("more of layouts", 200)
LAYOUTS: list[Layout] = [Contiguous(), Paged(64)]
FAMILIES = {"mtp": tiny.family(), "no mtp": tiny.without_draft()}


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """A bank that holds a conversation of two turns: its tokens, where its second prompt ends, and the session to ask by."""

    bank: Bank
    stored: list[int]
    prompt_end: int
    session: str | None
    family: Family


Shelf = Callable[[str, Any, str], SessionAccess]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """The conversation kept in a tier, written from a layout, by a model; made once: records stay where they are."""
    with ExitStack() as stack:

        @cache
        def kept(tier: str, written: Any, family: str) -> SessionAccess:
            model = FAMILIES[family]
            options: dict[str, Any] = {"ram_limit_bytes": 0} if tier == "ssd" else {}
            folder = tmp_path_factory.mktemp("bank") / "bank" if tier == "ssd" else None
            bank = stack.enter_context(closing(opened(folder, family=model, **options)))
            told = turn(bank, FIRST, family=model, layout=written)
            prompt = [*told.stored, *SECOND]
            stored = turn(bank, prompt, family=model, layout=written).stored
            return SessionAccess(bank, stored, len(prompt), "another: the live cache cannot be had" if tier == "ram" else None, model)

        yield kept


@cache
def fresh(family: Family, *tokens: int) -> Cache[Any]:
    """The state after these tokens, read from nothing. Shared: look, do not touch."""
    return read(family, tokens)


def check(kept: SessionAccess, tier: str, asked: Any, place: str) -> Cache[Any]:
    """The contract for one restore."""
    end = len(kept.stored) if place == "exact" else kept.prompt_end - SUFFIX
    tokens = kept.stored[:end] + tiny.words("goes on", 30)
    restored = kept.bank.restore(tokens, tenant="", session=kept.session, layout=asked, headroom_tokens=20)
    assert (restored.source, restored.reused_tokens) == (tier, end)
    assert_lies(restored.cache, asked)
    assert differing_state(restored.cache, fresh(kept.family, *tokens[:end])) == []
    after, whole = read(kept.family, tokens, restored.cache), fresh(kept.family, *tokens)
    assert mx.array_equal(logits(kept.family, after), logits(kept.family, whole))
    assert differing_state(after, whole) == []
    return after


def assert_lies(cache: Cache[Any], asked: Layout) -> None:
    """Label and arrays of all attention layers, those of the draft among them, are in the layout."""
    assert cache.layout == cache.store.layout == asked
    assert (cache.store.num_blocks > 0) == isinstance(asked, Paged)
    assert len(cache.store.buffers) == 2 * len(cache.spec.attention)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", ["exact", "at a mark"])
@pytest.mark.parametrize("asked", LAYOUTS, ids=lambda layout: f"asked {layout}")
@pytest.mark.parametrize("written", LAYOUTS, ids=lambda layout: f"from {layout}")
@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_it_comes_back_as_asked(shelf: Shelf, tier: str, written: Any, asked: Any, place: str, family: str) -> None:
    check(shelf(tier, written, family), tier, asked, place)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("written", LAYOUTS, ids=lambda layout: f"from {layout}")
def test_a_live_cache_comes_back_as_asked(written: Any, family: str) -> None:
    for asked in LAYOUTS:
        model = FAMILIES[family]
        with closing(opened(None, family=model)) as bank:
            stored = turn(bank, FIRST, family=model, layout=written).stored
            check(SessionAccess(bank, stored, len(FIRST), None, model), "ram", asked, "exact")


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_the_layout_that_it_was_written_in_would_be_seen(shelf: Shelf, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original fault in its other form: what is stored decides, not who asks."""
    materialise = restore_module.materialise

    def as_written(arena: Any, segments: Any, snapshot: Any, asked: Any, headroom_tokens: int) -> Any:
        return materialise(arena, segments, snapshot, Paged(64), headroom_tokens)

    monkeypatch.setattr(restore_module, "materialise", as_written)
    with pytest.raises(AssertionError):
        check(shelf(tier, Paged(64), "mtp"), tier, Contiguous(), "exact")


def test_no_draft_layers_no_draft_rows() -> None:
    with_draft, without = (read(model, FIRST) for model in FAMILIES.values())
    assert len(with_draft.store.buffers) == len(without.store.buffers) + 2
    assert relayout_as_chosen(without, Paged(64)).draft_length == without.length
