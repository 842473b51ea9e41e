"""The restore contract over every combination: stored in RAM or on SSD, written from a contiguous or a paged cache, requested in either
layout, resumed at its end or at a snapshot, with and without draft layers. Arrays are restored bit for bit, in the requested layout."""

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
from forerun.state.conversion import relayout_as_chosen
from forerun.state.layout import Contiguous, Layout, Paged

FIRST = tiny.words("layouts", 300)
SECOND = tiny.words("more of layouts", 200)
LAYOUTS: list[Layout] = [Contiguous(), Paged(64)]
FAMILIES = {"mtp": tiny.family(), "no mtp": tiny.without_draft()}


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """A bank that holds a conversation of two turns: its tokens, the end of its second prompt, and its session."""

    bank: Bank
    stored: list[int]
    prompt_end: int
    session: str | None
    family: Family


Shelf = Callable[[str, Any, str], SessionAccess]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """The conversation in a tier, written from a layout, by a model; made once, since restoring does not move records."""
    with ExitStack() as stack:

        @cache
        def stored(tier: str, written: Any, family: str) -> SessionAccess:
            model = FAMILIES[family]
            options: dict[str, Any] = {"ram_limit_bytes": 0} if tier == "ssd" else {}
            folder = tmp_path_factory.mktemp("bank") / "bank" if tier == "ssd" else None
            bank = stack.enter_context(closing(opened(folder, family=model, **options)))
            first = turn(bank, FIRST, family=model, layout=written)
            prompt = [*first.stored, *SECOND]
            stored = turn(bank, prompt, family=model, layout=written).stored
            assert tier == "ram" or bank.flush(60.0)
            return SessionAccess(bank, stored, len(prompt), "another: the live cache cannot be had" if tier == "ram" else None, model)

        yield stored


@cache
def fresh(family: Family, *tokens: int) -> Cache[Any]:
    """The state after these tokens, without a bank. Shared: do not modify it."""
    return read(family, tokens)


def check(stored: SessionAccess, tier: str, requested: Any, position: str) -> Cache[Any]:
    """The contract for one restore."""
    end = len(stored.stored) if position == "exact" else stored.prompt_end - SUFFIX
    tokens = stored.stored[:end] + tiny.words("goes on", 30)
    restored = stored.bank.restore(tokens, tenant="", session=stored.session, layout=requested, headroom_tokens=20)
    assert (restored.source, restored.reused_tokens) == (tier, end)
    assert_layout(restored.cache, requested)
    assert differing_state(restored.cache, fresh(stored.family, *tokens[:end])) == []
    after, whole = read(stored.family, tokens, restored.cache), fresh(stored.family, *tokens)
    assert mx.array_equal(logits(stored.family, after), logits(stored.family, whole))
    assert differing_state(after, whole) == []
    return after


def assert_layout(cache: Cache[Any], requested: Layout) -> None:
    """Label and arrays of all attention layers, draft layers included, have the layout."""
    assert cache.layout == cache.store.layout == requested
    assert (cache.store.num_blocks > 0) == isinstance(requested, Paged)
    assert len(cache.store.buffers) == 2 * len(cache.spec.attention)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", ["exact", "at a snapshot"])
@pytest.mark.parametrize("requested", LAYOUTS, ids=lambda layout: f"requested {layout}")
@pytest.mark.parametrize("written", LAYOUTS, ids=lambda layout: f"from {layout}")
@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_a_cache_is_restored_in_the_requested_layout(
    shelf: Shelf, tier: str, written: Any, requested: Any, position: str, family: str
) -> None:
    check(shelf(tier, written, family), tier, requested, position)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("written", LAYOUTS, ids=lambda layout: f"from {layout}")
def test_a_live_cache_is_restored_in_the_requested_layout(written: Any, family: str) -> None:
    for requested in LAYOUTS:
        model = FAMILIES[family]
        with closing(opened(None, family=model)) as bank:
            stored = turn(bank, FIRST, family=model, layout=written).stored
            check(SessionAccess(bank, stored, len(FIRST), None, model), "ram", requested, "exact")


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_restoring_the_written_layout_would_be_detected(shelf: Shelf, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that this contract excludes: the stored layout decides, not the requested one."""
    materialise, fork = restore_module.materialise, restore_module.fork

    def as_written(arena: Any, segments: Any, snapshot: Any, requested: Any, headroom_tokens: int) -> Any:
        return materialise(arena, segments, snapshot, Paged(64), headroom_tokens)

    monkeypatch.setattr(restore_module, "materialise", as_written)
    monkeypatch.setattr(restore_module, "fork", lambda cache, snapshot, requested, rows: fork(cache, snapshot, Paged(64), rows))
    with pytest.raises(AssertionError):
        check(shelf(tier, Paged(64), "mtp"), tier, Contiguous(), "exact")


def test_no_draft_layers_no_draft_rows() -> None:
    with_draft, without = (read(model, FIRST) for model in FAMILIES.values())
    assert len(with_draft.store.buffers) == len(without.store.buffers) + 2
    assert relayout_as_chosen(without, Paged(64)).draft_length == without.length
