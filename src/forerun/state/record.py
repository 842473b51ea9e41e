"""The stored form of state: segments (keys and values of a span of tokens) and snapshots (everything else, of fixed size, at one position).

A record is raw bytes plus its position in a prefix chain; it has no layout. Knows nothing of tiers, files or MLX.

Chain: every multiple of SEGMENT_TOKENS has a node key, the hash of the root (tenant and identity) and of all tokens before it. A record
names the node it hangs from (`parent`) and its own tokens after that node (`tokens`, at most SEGMENT_TOKENS): a segment holds the rows of
exactly these tokens, a snapshot the state after them. A full segment leads to the next node; a shorter one is the tail of a conversation.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

SEGMENT_TOKENS = 1024

Kind = Literal["segment", "snapshot"]


@dataclass(frozen=True, slots=True)
class Identity:
    """All that state depends on besides the tokens. State is reused only if every field is equal; there are no wildcards."""

    weights: str
    mtp_head: str
    tokenizer: str
    template: str
    kv_dtype: str
    numerics: str

    @property
    def fields(self) -> dict[str, str]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def differing(self, other: Identity) -> tuple[str, ...]:
        """Names of the fields that differ."""
        return tuple(name for name in self.__slots__ if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A record without its payload: what an index holds.

    key: hex name, a keyed hash of kind, parent and tokens. root: hex key of the chain's root. parent: hex key of the node that the record
    hangs from. start: tokens before that node, a multiple of SEGMENT_TOKENS. tokens: those after it. num_bytes: of the payload, 0 while
    there is none.
    """

    kind: Kind
    key: str
    root: str
    parent: str
    start: int
    tokens: tuple[int, ...]
    num_bytes: int = 0

    @property
    def stop(self) -> int:
        """Position after the record's last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Record:
    """A segment or a snapshot.

    payload: `info.num_bytes` of little-endian arrays in the order of the StateSpec. Of a segment, for each attention layer (target model,
    then draft head), keys then values, each [kv_heads, tokens, head_dim]; of a snapshot, `spec.snapshot_arrays`.
    """

    info: RecordInfo
    payload: memoryview

    @classmethod
    def of(cls, info: RecordInfo, payload: memoryview) -> Record:
        """The record that `info` describes, with this payload's size."""
        return cls(replace(info, num_bytes=payload.nbytes), payload)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32, the form that is hashed and stored."""
    return array("I", tokens).tobytes()


def tokens_of(data: bytes) -> tuple[int, ...]:
    """The token ids in the bytes that `token_bytes` returned. Raises ValueError if the length is not a multiple of 4."""
    return tuple(array("I", data))


class PrefixHasher:
    """Node and record keys of one tenant under one identity, keyed with the bank's secret so that names reveal nothing about the tokens."""

    def __init__(self, secret: bytes, tenant: str, identity: Identity) -> None:
        fields = "\0".join(f"{name}={value}" for name, value in identity.fields.items())
        salt = blake2b(tenant.encode(), key=secret, digest_size=32).digest()
        self._secret, self.tenant, self.identity = salt, tenant, identity
        self.root = self._hash(b"root", fields.encode())

    def nodes(self, tokens: Sequence[int]) -> list[str]:
        """Node keys at 0, SEGMENT_TOKENS, 2 * SEGMENT_TOKENS, ... up to the last full block of `tokens`."""
        nodes = [self.root]
        for start in range(0, len(tokens) - SEGMENT_TOKENS + 1, SEGMENT_TOKENS):
            nodes.append(self.child(nodes[-1], tokens[start : start + SEGMENT_TOKENS]))
        return nodes

    def child(self, node: str, block: Sequence[int]) -> str:
        """Node key after one more full block."""
        return self._hash(b"node", bytes.fromhex(node) + token_bytes(block))

    def info(self, kind: Kind, parent: str, start: int, tokens: tuple[int, ...]) -> RecordInfo:
        """The record of this kind that hangs from node `parent`, at position `start`, with these tokens; without a payload yet."""
        return RecordInfo(kind, self.key(kind, parent, tokens), self.root, parent, start, tokens)

    def key(self, kind: Kind, parent: str, tokens: Sequence[int]) -> str:
        """Key of the record of this kind that hangs from `parent` with these tokens."""
        return self._hash(kind.encode(), bytes.fromhex(parent) + token_bytes(tokens))

    def _hash(self, purpose: bytes, data: bytes) -> str:
        return blake2b(data, key=self._secret, person=purpose.ljust(16, b"\0"), digest_size=16).hexdigest()
