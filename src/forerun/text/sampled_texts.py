"""How the model tokenised its answers: the token ids of a text, by the prefix of a tenant's conversation after which the text starts.

Knows nothing of tokenizers or messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

from forerun.text.lru import LruCache, Owner, num_tokens

LIMIT_TOKENS = 1 << 20


class PrefixDigest:
    """Running digest of a tenant and of all token ids of a conversation before a position."""

    def __init__(self, tenant: str) -> None:
        self._digest = blake2b(sha256(tenant.encode()).digest(), digest_size=16)

    def extend(self, ids: Sequence[int]) -> None:
        """Append these ids to the prefix."""
        self._digest.update(array("I", ids).tobytes())

    def hexdigest(self) -> str:
        """The digest of the prefix so far."""
        return self._digest.hexdigest()


class SampledText(NamedTuple):
    """After the prefix with this digest, the text stands for these ids."""

    prefix: str
    text: str
    ids: tuple[int, ...]


class SampledTexts:
    """LRU cache of sampled texts."""

    def __init__(self) -> None:
        self._ids: LruCache[tuple[str, str], array[int]] = LruCache(LIMIT_TOKENS, num_tokens)
        self._lengths: LruCache[str, Sequence[int]] = LruCache(LIMIT_TOKENS, num_tokens)

    def put(self, sampled_text: SampledText, owner: Owner) -> None:
        """Store the ids that the text was sampled as."""
        self._ids.put((sampled_text.prefix, sampled_text.text), array("I", sampled_text.ids), owner)
        lengths = self._lengths.get(sampled_text.prefix) or ()
        self._lengths.put(sampled_text.prefix, sorted({*lengths, len(sampled_text.text)}, reverse=True), owner)

    def get(self, prefix: PrefixDigest, text: str) -> array[int] | None:
        """The ids of the text after this prefix, or None."""
        return self._ids.get((prefix.hexdigest(), text))

    def forget(self, is_gone: Callable[[Owner], bool]) -> None:
        """Remove the texts of which all owners are gone. Their lengths stay, as others of the same prefix may have them."""
        self._ids.forget(is_gone)

    def matches(self, prefix: PrefixDigest, text: str, start: int) -> list[str]:
        """The texts stored after this prefix that text[start:] starts with, longest first."""
        candidates = (text[start : start + length] for length in self._lengths.get(prefix.hexdigest()) or ())
        return [each for each in candidates if self.get(prefix, each) is not None]
