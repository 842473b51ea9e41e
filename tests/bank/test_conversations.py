"""Random trees of conversations on one bank, through restarts, kills, short RAM and damage: every turn is as if nothing had been stored,
and as long as nothing was lost, a conversation continues from its very end."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.records import path_of
from tests.running import differing_state, greedy, read
from tests.talking import opened
from tests.waiting import LIMIT_S

from forerun.state.cache import Cache
from forerun.state.layout import Contiguous, Layout, Paged
from forerun.state.record import SEGMENT_TOKENS
from forerun.values import GREEDY

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
NUM = 8
SYSTEM = [*tiny.words("system", 60), tiny.END]


@cache
def fresh(tokens: tuple[int, ...]) -> Cache[Any]:
    return read(FAMILY, tokens)


def answer(prompt: Sequence[int]) -> list[int]:
    return greedy(FAMILY, read(FAMILY, prompt), NUM)


@dataclass
class ChatSession:
    """A conversation: its owner, its stored tokens, and whether the bank had no reason to lose any of it."""

    tenant: str
    session: str | None
    stored: list[int] = field(default_factory=lambda: list(SYSTEM))
    is_intact: bool = False


class World:
    """A bank and its conversations."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bank = folder, opened(folder, family=FAMILY)
        self.talks = [ChatSession("alice", None), ChatSession("alice", "named"), ChatSession("bob", None)]
        self.num_turns = 0

    def turn(self, which: int, frac: float, num: int, depth: int, layout: Layout) -> None:
        """A turn in this layout, after this fraction of the stored tokens; less than all of them is a new branch."""
        talk, self.num_turns = self.talks[which % len(self.talks)], self.num_turns + 1
        cut = len(talk.stored) if frac > 0.5 else len(SYSTEM) + int(2 * frac * (len(talk.stored) - len(SYSTEM)))
        prompt = talk.stored[:cut] + tiny.words(self.num_turns, num)
        options: dict[str, Any] = {"sampling": GREEDY, "max_tokens": NUM, "depth": depth}
        result = talking.turn(self.bank, prompt, family=FAMILY, layout=layout, tenant=talk.tenant, session=talk.session, **options)
        reused = result.restored.reused_tokens
        assert reused <= cut
        assert (result.restored.source == "cold") == (reused == 0)
        assert result.stored == [*prompt, *answer(prompt)][: len(result.stored)]
        assert len(result.stored) == len(prompt) + NUM - 1
        assert result.restored.cache.layout == layout
        assert differing_state(result.restored.cache, fresh(tuple(result.stored))) == []
        if talk.is_intact and cut == len(talk.stored):
            assert reused == cut
        after = ChatSession(talk.tenant, talk.session, result.stored, is_intact=True)
        if cut < len(talk.stored):
            self.talks.append(after)
        else:
            self.talks[which % len(self.talks)] = after

    def restart(self, flushes: bool) -> None:
        """In order, or as after a kill: what waits is lost."""
        if flushes:
            assert self.bank.flush(LIMIT_S)
        else:
            self.lose()
        self.bank.close()
        self.bank = opened(self.folder, family=FAMILY)

    def press(self) -> None:
        """RAM is short for a moment."""
        limit, self.bank._ram_limit_bytes = self.bank._ram_limit_bytes, 0
        self.bank.trim()
        self.bank._ram_limit_bytes = limit

    def damage(self, which: int) -> None:
        """A bit of a record flips."""
        assert self.bank.flush(LIMIT_S)
        assert self.bank._disk is not None
        keys = sorted(info.key for info in self.bank._disk.index.inventory())
        if keys:
            path = path_of(self.folder, keys[which % len(keys)])
            spoilt = bytearray(path.read_bytes())
            spoilt[which % len(spoilt)] ^= 4
            path.write_bytes(spoilt)
            self.lose()

    def lose(self) -> None:
        for talk in self.talks:
            talk.is_intact = False


lengths, layouts = st.sampled_from([1, 20, 300, SEGMENT_TOKENS - 69, 1200]), st.sampled_from([Contiguous(), Paged(16), Paged(64)])
turns = st.tuples(st.just("turn"), st.integers(0, 30), st.floats(0, 1), lengths, st.sampled_from([0, 3]), layouts)
others = st.one_of(
    st.tuples(st.just("restart"), st.booleans()), st.tuples(st.just("press")), st.tuples(st.just("damage"), st.integers(0, 1 << 20))
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.one_of(turns, turns, others), min_size=3, max_size=14))
def test_nothing_that_happens_changes_an_answer(moves: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "bank")
        try:
            for name, *arguments in moves:
                getattr(world, name)(*arguments)
        finally:
            world.bank.close()
