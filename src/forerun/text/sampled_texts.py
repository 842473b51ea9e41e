"""How the model wrote its answers: the token ids of a text, by the place in a tenant's conversation at which the text begins.

Knows nothing of how text is cut into tokens, nor of messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

from forerun.text.lru import LruCache

LIMIT_TOKENS = 1 << 20


class PrefixDigest:
    """A place in a tenant's conversation: a running digest of all token ids before it."""

    def __init__(self, tenant: str) -> None:
        self._digest = blake2b(sha256(tenant.encode()).digest(), digest_size=16)

    def extend(self, ids: Sequence[int]) -> None:
        """Go on by these ids."""
        self._digest.update(array("I", ids).tobytes())

    @property
    def name(self) -> str:
        """The place's name, hexadecimal."""
        return self._digest.hexdigest()


class SampledText(NamedTuple):
    """At the place of this name, the text stands for these ids."""

    place: str
    text: str
    ids: tuple[int, ...]


class SampledTexts:
    """What was sampled at places. The least recently used is forgotten first."""

    def __init__(self) -> None:
        self._ids: LruCache[tuple[str, str]] = LruCache(LIMIT_TOKENS)
        self._lengths: LruCache[str] = LruCache(LIMIT_TOKENS)

    def put(self, sampled_text: SampledText) -> None:
        """Remember that the text at this place was written with these ids."""
        self._ids.put((sampled_text.place, sampled_text.text), sampled_text.ids)
        known = self._lengths.get(sampled_text.place) or ()
        self._lengths.put(sampled_text.place, sorted({*known, len(sampled_text.text)}, reverse=True))

    def get(self, place: PrefixDigest, text: str) -> array[int] | None:
        """The ids of the text at this place, or None."""
        return self._ids.get((place.name, text))

    def clear(self) -> None:
        """Forget all."""
        self._ids.clear()
        self._lengths.clear()

    def beginnings(self, place: PrefixDigest, text: str, start: int) -> list[str]:
        """The texts remembered at this place with which text[start:] begins, longest first."""
        found = (text[start : start + length] for length in self._lengths.get(place.name) or ())
        return [each for each in found if self.get(place, each) is not None]
