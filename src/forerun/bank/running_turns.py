"""Turns between `Bank.restore` and `Bank.remember`, those that wait for it, and which of them lost their conversation meanwhile. For all
threads.

Knows names only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet


@dataclass(slots=True, eq=False, weakref_slot=True)
class RunningTurn:
    """A turn that runs or waits. is_removed: its conversation was removed since it began, so nothing of it may be stored.

    session: "" while nobody knows which one a waiting turn continues. tokens: the prompt of a waiting one.
    """

    tenant: str = ""
    session: str = ""
    is_removed: bool = False
    tokens: tuple[int, ...] = ()

    def is_of(self, tenant: str, session: str | None) -> bool:
        """Whether it is of this conversation; None: of any of the tenant."""
        return self.tenant == tenant and session in (None, self.session)


class RunningTurns:
    """The turns that run or wait: those that have not ended, and that somebody still holds."""

    def __init__(self) -> None:
        self._turns: WeakSet[RunningTurn] = WeakSet()
        self._leaving: list[tuple[str, str | None]] = []
        self._lock = threading.Lock()

    def begin(self, tenant: str, session: str, tokens: tuple[int, ...] = ()) -> RunningTurn:
        """A new turn. tokens: the prompt of one that waits."""
        turn = RunningTurn(tenant, session, tokens=tokens)
        with self._lock:
            turn.is_removed = any(turn.is_of(*leaving) for leaving in self._leaving)
            self._turns.add(turn)
        return turn

    def end(self, turn: RunningTurn) -> None:
        """The turn is stored, or will not be."""
        with self._lock:
            self._turns.discard(turn)

    def of(self, tenant: str, session: str) -> list[RunningTurn]:
        """The turns of a conversation."""
        with self._lock:
            return [turn for turn in self._turns if turn.is_of(tenant, session)]

    def nameless(self, tenant: str) -> list[RunningTurn]:
        """The tenant's turns that wait for nobody knows which conversation."""
        with self._lock:
            return [turn for turn in self._turns if turn.is_of(tenant, "")]

    @contextmanager
    def removing(self, tenant: str, session: str | None) -> Iterator[None]:
        """While a conversation is removed; session None: all of the tenant. Its turns that run now, or begin meanwhile, are not stored."""
        with self._lock:
            self._leaving.append((tenant, session))
            for turn in self._turns:
                turn.is_removed |= turn.is_of(tenant, session)
        try:
            yield
        finally:
            with self._lock:
                self._leaving.remove((tenant, session))
