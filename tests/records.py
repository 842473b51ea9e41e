"""Records for tests of the bank: small, different from each other, and hung on a real chain."""

from __future__ import annotations

import random

from forerun.state.record import SEGMENT_TOKENS, Chain, Identity, Kind, Record

IDENTITY = Identity("weights", "mtp", "tokenizer", "template", "float32", "1")
CHAIN = Chain(b"secret", "", IDENTITY)


def record(kind: Kind = "segment", *, tokens: list[int] | None = None, num_bytes: int = 1000, before: list[int] | None = None) -> Record:
    """A record after the tokens `before` (whole blocks), with a payload that follows from its tokens."""
    tokens, before = tokens if tokens is not None else [1, 2, 3], before or []
    assert len(before) % SEGMENT_TOKENS == 0
    parent = CHAIN.nodes(before)[-1]
    payload = memoryview(random.Random(f"{kind}{tokens}{before}").randbytes(num_bytes))
    return Record(kind, CHAIN.key(kind, parent, tokens), CHAIN.root, parent, len(before), tuple(tokens), payload)
