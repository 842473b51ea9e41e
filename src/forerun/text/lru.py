"""A thread-safe LRU cache, bounded by the size of its values, that knows which conversations a value comes from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_TOKENS = 32  # overhead of an entry of token ids


class Owner(NamedTuple):
    """The conversation that an entry comes from. session: its id, "" if unknown, as for what is read from disk or computed from prompts."""

    tenant: str
    session: str


class LruCache(Generic[K, V]):
    """Values by key. Above `limit` the least recently used are evicted; a larger value is not stored. size_of: a value's size."""

    def __init__(self, limit: int, size_of: Callable[[V], int]) -> None:
        self._limit, self._size_of, self._used = limit, size_of, 0
        self._entries: OrderedDict[K, tuple[V, frozenset[Owner]]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value of that key, or None. Do not modify it."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, owner: Owner) -> None:
        """Store the value, replacing that of the key; an equal value then has several owners."""
        with self._lock:
            before = self._entries.get(key)
            self._remove(key)
            if self._size_of(value) > self._limit:
                return
            self._entries[key] = value, frozenset({owner}) | (before[1] if before and before[0] == value else frozenset[Owner]())
            self._used += self._size_of(value)
            while self._used > self._limit:
                self._remove(next(iter(self._entries)))

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the entries of which all owners are gone."""
        with self._lock:
            for key, (value, owners) in list(self._entries.items()):
                self._entries[key] = value, frozenset(owner for owner in owners if not is_gone(owner))
                if not self._entries[key][1]:
                    self._remove(key)

    def _remove(self, key: K) -> None:
        if key in self._entries:
            self._used -= self._size_of(self._entries.pop(key)[0])


def num_tokens(ids: Sized) -> int:
    """Size of an entry of token ids."""
    return len(ids) + ENTRY_TOKENS
