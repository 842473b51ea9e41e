"""A thread-safe LRU cache of token ids, bounded by tokens. Knows nothing of text or tokenizers."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

ENTRY_TOKENS = 32  # overhead of an entry


class Owner(NamedTuple):
    """The conversation that an entry comes from. session: its id, "" if unknown, as for what is read from disk or computed from prompts."""

    tenant: str
    session: str


class Entry(NamedTuple):
    """Token ids, and the conversations that they come from."""

    ids: array[int]
    owners: frozenset[Owner]


class LruCache(Generic[K]):
    """Token ids by key. Above `limit_tokens` the least recently used entries are evicted; an entry larger than the limit is not stored."""

    def __init__(self, limit_tokens: int) -> None:
        self._limit_tokens = limit_tokens
        self._used_tokens = 0
        self._entries: OrderedDict[K, Entry] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> array[int] | None:
        """The ids of that key, or None. Do not modify them."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key].ids

    def put(self, key: K, ids: Sequence[int], owner: Owner) -> None:
        """Store the ids, replacing those of the key; the same ids then have several owners."""
        with self._lock:
            old, new = self._remove(key), array("I", ids)
            if len(new) + ENTRY_TOKENS > self._limit_tokens:
                return
            self._entries[key] = Entry(new, frozenset({owner}) | (old.owners if old and old.ids == new else frozenset[Owner]()))
            self._used_tokens += len(new) + ENTRY_TOKENS
            while self._used_tokens > self._limit_tokens:
                self._remove(next(iter(self._entries)))

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the entries of which all owners are gone."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                owners = frozenset(owner for owner in entry.owners if not is_gone(owner))
                if owners:
                    self._entries[key] = Entry(entry.ids, owners)
                else:
                    self._remove(key)

    def _remove(self, key: K) -> Entry | None:
        entry = self._entries.pop(key, None)
        self._used_tokens -= len(entry.ids) + ENTRY_TOKENS if entry else 0
        return entry
