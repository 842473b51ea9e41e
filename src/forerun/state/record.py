"""The stored form of state: Segment (keys and values of a span) and Mark (the fixed-size rest at one position). No layout field exists.

A record is bytes and the chain of tokens it belongs to. Knows nothing of tiers, files or MLX.

Chain: the tokens before every multiple of SEGMENT_TOKENS have a node key, `node(identity root, blocks...)`. A record names the node it
hangs from (`parent`) and its own tokens after it (`tokens`, at most SEGMENT_TOKENS): a Segment holds the rows of exactly these tokens, a
Mark the state after them. A full segment leads to the next node; a shorter one is the tail of a conversation.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

SEGMENT_TOKENS = 1024

Kind = Literal["segment", "snapshot"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that state depends on besides the tokens. Two states are comparable only if all of it is equal; no wildcards."""

    weights: str
    mtp_head: str
    tokenizer: str
    template: str
    kv_dtype: str
    numerics: str

    @property
    def fields(self) -> dict[str, str]:
        """All of it, by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def differing(self, other: Identity) -> tuple[str, ...]:
        """Names of the fields in which two identities differ."""
        return tuple(name for name in self.__slots__ if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class Record:
    """A Segment or a Mark.

    key: hex name, a function of kind, parent and tokens. root: hex key of the chain's root, that is of tenant and identity. parent: hex
    node key. tokens: after the parent's. start: tokens before the parent node (a multiple of SEGMENT_TOKENS). payload: raw little-endian
    arrays in the order of the StateSpec: for a segment for each attention layer (trunk, then draft) keys then values, each
    [kv_heads, len(tokens), head_dim]; for a mark `spec.snapshot_arrays`.
    """

    kind: Kind
    key: str
    root: str
    parent: str
    start: int
    tokens: tuple[int, ...]
    payload: memoryview

    @property
    def stop(self) -> int:
        """Position after this record's last token."""
        return self.start + len(self.tokens)

    @property
    def info(self) -> RecordInfo:
        """All but the payload."""
        return RecordInfo(self.kind, self.key, self.root, self.parent, self.start, self.tokens, self.payload.nbytes)


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """What an index keeps of a record: all but the payload, of which it keeps the size."""

    kind: Kind
    key: str
    root: str
    parent: str
    start: int
    tokens: tuple[int, ...]
    num_bytes: int

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32, the form that is hashed and stored."""
    return array("I", tokens).tobytes()


def tokens_of(data: bytes) -> tuple[int, ...]:
    """The token ids that `token_bytes` made these bytes of."""
    return tuple(array("I", data))


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    num = min(len(one), len(other))
    if one[:num] == other[:num]:
        return num
    return next(i for i in range(num) if one[i] != other[i])


class PrefixHasher:
    """Node and record keys of one tenant under one identity. Keyed with the bank's secret: names reveal nothing about the tokens."""

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

    def key(self, kind: Kind, parent: str, tokens: Sequence[int]) -> str:
        """Name of the record of this kind that hangs from `parent` with these tokens."""
        return self._hash(kind.encode(), bytes.fromhex(parent) + token_bytes(tokens))

    def _hash(self, purpose: bytes, data: bytes) -> str:
        return blake2b(data, key=self._secret, person=purpose.ljust(16, b"\0"), digest_size=16).hexdigest()
