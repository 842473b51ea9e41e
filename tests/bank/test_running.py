"""Conversations of running requests: others fork them at what they have computed so far, and nobody takes them over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from tests import talking, tiny
from tests.fake_family import FakeFamily, scattered
from tests.running import differing_state, read
from tests.talking import SUFFIX

from forerun.bank import restore as restore_module
from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.live import LiveConversation
from forerun.bank.restore import RestoredState
from forerun.decode.prefill import prefill
from forerun.state.cache import Snapshot, lend
from forerun.state.conversion import relayout
from forerun.state.layout import Contiguous, Paged

FAMILY = FakeFamily(scattered(tiny.VOCAB), tiny.VOCAB)
opened, turn = partial(talking.opened, family=FAMILY), partial(talking.turn, family=FAMILY)
HEAD = [*tiny.words("system", 599), tiny.END]
PROMPT = [*HEAD, *tiny.words("question", 900)]
LAYOUTS: list[Any] = [Contiguous(), Paged(16)]


@pytest.fixture
def bank() -> Iterator[Bank]:
    with closing(opened(None)) as bank:
        yield bank


class Run:
    """A request as the engine runs it, chunk by chunk: its prefill so far, and how others find it."""

    def __init__(
        self, bank: Bank, prompt: Sequence[int], *, tenant: str = "", session: str | None = None, layout: Any = LAYOUTS[0]
    ) -> None:
        self.bank, self.prompt, self.tenant = bank, list(prompt), tenant
        self.restored: RestoredState[Any] = restored(bank, prompt, tenant=tenant, session=session, layout=layout)
        self.snapshots: list[Snapshot] = list(self.restored.snapshots)
        self.live: LiveConversation = bank.run(self.restored, prompt, self.snapshots, tenant=tenant)
        positions = {len(HEAD), len(prompt) - SUFFIX, len(prompt)}
        self._chunks = prefill(FAMILY, self.restored.cache, self.prompt, positions)

    def chunk(self) -> None:
        """Prefill one more chunk."""
        self.snapshots += next(self._chunks)

    def finish(self) -> None:
        """Prefill the rest, and store the conversation."""
        for new in self._chunks:
            self.snapshots += new
        self.bank.end_run(self.live)
        finished = FinishedTurn(self.restored.session, self.tenant, self.restored.turns + 1, len(self.prompt) - SUFFIX, len(self.snapshots))
        self.bank.remember(self.live.cache, self.prompt, self.snapshots, finished)


def restored(
    bank: Bank, prompt: Sequence[int], *, tenant: str = "", session: str | None = None, layout: Any = LAYOUTS[0]
) -> RestoredState[Any]:
    return bank.restore(prompt, tenant=tenant, session=session, layout=layout, headroom_tokens=20)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("origin_layout", LAYOUTS, ids=str)
def test_a_request_forks_one_that_is_being_prefilled(bank: Bank, origin_layout: Any, layout: Any) -> None:
    run = Run(bank, PROMPT, session="one", layout=origin_layout)
    other = [*HEAD, *tiny.words("another question", 50)]
    run.chunk()
    assert restored(bank, other).source == "cold", "the snapshot after the head comes with the second chunk"
    run.chunk()
    found = restored(bank, other, layout=layout)
    assert (found.source, found.reused_tokens, found.forked_from, found.cache.layout) == ("ram", len(HEAD), "one", layout)
    assert found.session != "one"
    assert differing_state(read(FAMILY, other, found.cache), read(FAMILY, other)) == []
    run.finish()
    assert differing_state(run.live.cache, read(FAMILY, PROMPT)) == []


def test_a_request_that_is_answered_is_forked_at_its_prompt_and_never_taken_over(bank: Bank) -> None:
    run = Run(bank, PROMPT)
    for _ in range(3):
        run.chunk()
    run.live.cache = cache = relayout(run.live.cache, Paged(16))
    read(FAMILY, [*PROMPT, *tiny.words("answer", 40)], cache)
    again = restored(bank, PROMPT)
    assert (again.source, again.reused_tokens, again.forked_from) == ("ram", len(PROMPT), run.restored.session)
    assert again.session != run.restored.session, "two requests that run are two conversations"
    assert again.cache is not cache
    assert cache.length == len(PROMPT) + 40
    assert differing_state(again.cache, read(FAMILY, PROMPT)) == []


def test_after_its_end_nobody_forks_it(bank: Bank) -> None:
    run = Run(bank, PROMPT)
    for _ in range(3):
        run.chunk()
    bank.end_run(run.live)
    bank.end_run(run.live)
    assert restored(bank, PROMPT).source == "cold"


def test_after_its_end_it_is_taken_over(bank: Bank) -> None:
    run = Run(bank, PROMPT)
    run.finish()
    found = restored(bank, [*PROMPT, *tiny.words("more", 9)])
    assert (found.source, found.reused_tokens, found.forked_from) == ("ram", len(PROMPT), "")
    assert found.turns == 1


def test_nobody_forks_another_tenants(bank: Bank) -> None:
    run = Run(bank, PROMPT, tenant="one")
    for _ in range(3):
        run.chunk()
    assert restored(bank, PROMPT, tenant="other").source == "cold"


def test_a_failed_request_is_passed_over_and_the_reason_is_given(bank: Bank) -> None:
    run = Run(bank, PROMPT)
    for _ in range(2):
        run.chunk()
    with pytest.raises(ArithmeticError), lend([run.live.cache], FAMILY.numerics):
        raise ArithmeticError
    found = restored(bank, PROMPT)
    assert (found.source, found.miss_reason.kind) == ("cold", "failed")
    assert "could not be copied" in found.miss_reason.text


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.parametrize("is_running", [True, False])
def test_without_memory_for_a_copy_it_is_passed_over(
    bank: Bank, is_running: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(bank, PROMPT, session="origin")
    for _ in range(3):
        run.chunk()
    if not is_running:
        run.finish()

    def failing(*args: Any) -> Any:
        raise error("no room")

    with monkeypatch.context() as patched:
        patched.setattr(restore_module, "fork", failing)
        found = restored(bank, PROMPT, session="another")
        assert (found.source, found.miss_reason.kind) == ("cold", "failed")
        assert "could not be copied: no room" in found.miss_reason.text
    assert restored(bank, PROMPT, session="another").forked_from == "origin"


def test_a_prefill_that_is_paused_within_a_pass_is_forked(bank: Bank) -> None:
    run = Run(bank, PROMPT)
    for _ in range(2):
        run.chunk()
    with lend([run.live.cache], FAMILY.numerics):
        found = restored(bank, [*HEAD, *tiny.words("another", 40)])
    assert found.reused_tokens == len(HEAD)
    assert differing_state(found.cache, read(FAMILY, HEAD)) == []


def test_a_running_conversation_counts_as_the_nearest(bank: Bank) -> None:
    """Else a first question would continue the conversation of another client with the same system prompt."""
    run = Run(bank, PROMPT)
    for _ in range(2):
        run.chunk()
    reason = restored(bank, [*PROMPT[:700], *tiny.words("another", 40)]).miss_reason
    assert (reason.kind, reason.shared_tokens) == ("differs", 700)
    assert reason.stored == tuple(PROMPT[700:716])


def test_a_finished_conversation_is_preferred_to_a_running_one(bank: Bank) -> None:
    first = turn(bank, PROMPT, session="done")
    run = Run(bank, [*first.stored, 1], session="running")
    assert run.restored.forked_from == "done"
    found = restored(bank, first.stored)
    assert (found.session, found.forked_from) == ("done", "")


def test_the_deeper_one_of_a_finished_and_a_running_conversation_is_forked(bank: Bank) -> None:
    turn(bank, HEAD, session="done")
    run = Run(bank, PROMPT, session="running")
    for _ in range(2):
        run.chunk()
    found = restored(bank, PROMPT, session="mine")
    assert (found.reused_tokens, found.forked_from) == (len(PROMPT), "running")
    assert found.turns == 0
