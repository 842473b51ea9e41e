"""A thread-safe LRU cache of token ids, bounded by tokens. Knows nothing of text, tenants or tokenizers."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

ENTRY_TOKENS = 32  # overhead of an entry


class LruCache(Generic[K]):
    """Token ids by key. Above `limit_tokens` the least recently used entries are evicted; an entry larger than the limit is not stored."""

    def __init__(self, limit_tokens: int) -> None:
        self._limit_tokens = limit_tokens
        self._used_tokens = 0
        self._entries: OrderedDict[K, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> array[int] | None:
        """The ids of that key, or None. Do not modify them."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, ids: Sequence[int]) -> None:
        """Store the ids, replacing those of the key."""
        with self._lock:
            self._used_tokens -= self._cost(self._entries.pop(key, None))
            self._entries[key] = array("I", ids)
            self._used_tokens += self._cost(self._entries[key])
            while self._used_tokens > self._limit_tokens:
                self._used_tokens -= self._cost(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._entries.clear()
            self._used_tokens = 0

    @staticmethod
    def _cost(ids: array[int] | None) -> int:
        return 0 if ids is None else len(ids) + ENTRY_TOKENS
