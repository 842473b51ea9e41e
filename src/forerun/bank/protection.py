"""Prompts of requests that wait: what they would restore is evicted neither from RAM nor from disk while they do.

Evaluated when something is to be evicted, not before: state may be stored or dropped while a request waits, and waiting costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from forerun.bank.match import PrefixChain, match
from forerun.bank.tier.base import Tier
from forerun.state.record import PrefixHasher, RecordInfo


@dataclass(frozen=True, slots=True, eq=False)
class ProtectedPrompt:
    """A prompt whose state is not evicted, as far as it exists. session: that the request names, or None."""

    chain: PrefixChain
    hasher: PrefixHasher
    session: str | None


class Protections:
    """The protected prompts. May be used from any thread."""

    def __init__(self) -> None:
        self._all: list[ProtectedPrompt] = []
        self._lock = threading.Lock()

    def add(self, prompt: ProtectedPrompt) -> None:
        """Protect what this prompt would restore."""
        with self._lock:
            self._all.append(prompt)

    def remove(self, prompt: ProtectedPrompt) -> None:
        """End the protection; one that has ended already is ignored."""
        with self._lock:
            self._all = [each for each in self._all if each is not prompt]

    def prompts(self) -> list[ProtectedPrompt]:
        """Those that are protected now."""
        with self._lock:
            return list(self._all)

    def of(self, tier: Tier) -> Callable[[RecordInfo], bool]:
        """Whether a prompt would restore from a record of the tier; valid while the tier does not change. The tier's index is queried only
        for prompts that the record might be of use to. Raises BankError.
        """
        prompts = self.prompts()

        @cache
        def keys(prompt: ProtectedPrompt) -> frozenset[str]:
            plan = next(match([tier], prompt.hasher, prompt.chain).plans(), None)
            return frozenset(location.key for location in plan.locations) if plan else frozenset()

        return lambda info: any(each.chain.meets(info) and info.key in keys(each) for each in prompts)
