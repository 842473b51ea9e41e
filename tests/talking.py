"""Turns of a conversation on a bank, as the engine takes them, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from tests import tiny
from tests.running import logits, read

from forerun.bank import policy
from forerun.bank.bank import Bank, FinishedTurn
from forerun.bank.restore import RestoredState
from forerun.bank.tier.disk import DiskTier
from forerun.bank.tier.folder import hold, secret
from forerun.decode.compiled import StepTable
from forerun.decode.depth import DepthPolicy
from forerun.decode.generate import Generation
from forerun.decode.prefill import prefill
from forerun.models.base import Family
from forerun.models.load import DEMO_MODEL
from forerun.state.cache import Cache
from forerun.state.layout import Contiguous
from forerun.state.record import Identity
from forerun.text.answer import Answer
from forerun.text.tokenizer import Tokenizer
from forerun.values import NEUTRAL

TINY = tiny.family()
CONTIGUOUS = Contiguous()
IDENTITY = Identity("weights", "mtp1", "tokenizer", "template", "float32", "exact")
SEEDED = replace(NEUTRAL, seed=7)
SUFFIX = 5  # tokens at the end of a prompt that the next turn may render differently


def opened(
    folder: Path | None,
    *,
    family: Family = TINY,
    ram_limit_bytes: int = 1 << 30,
    disk_limit_bytes: int = 1 << 30,
    identity: Identity = IDENTITY,
) -> Bank:
    """A bank of the family's conversations, on disk in `folder` if one is given."""
    spec = family.spec
    if folder is None:
        return Bank(spec, identity, disk=None, secret=b"secret", ram_limit_bytes=ram_limit_bytes)
    index = hold(folder)
    disk = DiskTier(folder, limit_bytes=disk_limit_bytes, daily_limit_bytes=1 << 62, index=index)
    return Bank(spec, identity, disk=disk, secret=secret(folder), ram_limit_bytes=ram_limit_bytes)


@cache
def tokenizer() -> Tokenizer:
    """The bundled model's: the tiny model's tokens are its first ones."""
    return Tokenizer.load(DEMO_MODEL)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A finished turn. stored: the tokens of its state. logits [vocab]: those after the prompt."""

    restored: RestoredState[Any]
    stored: list[int]
    logits: mx.array


def generation(family: Family, cache: Cache[Any], prompt: Sequence[int], **other: Any) -> Generation:
    """An answer to the prompt that `cache` holds: 20 seeded tokens without drafts, unless `other` changes that."""
    given: dict[str, Any] = {"sampling": SEEDED, "max_tokens": 20, "stop_ids": frozenset(), "stop": (), "depth": 0, **other}
    answer, policy = Answer(tokenizer(), given.pop("stop"), ""), DepthPolicy((given.pop("depth"),))
    return Generation(StepTable(family, eager_reason="test"), cache, prompt, given.pop("sampling"), answer, policy=policy, **given)


def turn(
    bank: Bank,
    prompt: Sequence[int],
    *,
    family: Family = TINY,
    tenant: str = "",
    session: str | None = None,
    layout: Any = CONTIGUOUS,
    borders: Sequence[int] = (),
    **other: Any,
) -> TurnResult:
    """One turn: restore, prefill, answer, remember. borders: between parts of the first message."""
    message_end = max(1, len(prompt) - SUFFIX)
    restored = bank.restore(prompt, tenant=tenant, session=session, layout=layout, headroom_tokens=20)
    snapshots, num_old = list(restored.snapshots), len(restored.snapshots)
    reuse = policy.Reuse(restored.reused_tokens, restored.miss_reason.shared_tokens, family.spec.snapshot_tokens)
    positions = policy.snapshot_positions(prompt, message_end, frozenset({tiny.END}), reuse, borders)
    for new in prefill(family, restored.cache, prompt, positions):
        snapshots += new
    found = logits(family, restored.cache)
    answer = generation(family, restored.cache, prompt, **other)
    for _ in answer:
        pass
    stored = answer.store()
    snapshots.append(restored.cache.snapshot())
    head = policy.first_message_end(prompt, message_end, frozenset({tiny.END}))
    num_new, turns = len(snapshots) - num_old, restored.turns + 1
    finished = FinishedTurn(restored.session, tenant, turns, message_end, num_new, None, restored.unsaved, head, running=restored.running)
    bank.remember(restored.cache, stored, snapshots, finished)
    return TurnResult(restored, stored, found)


@cache
def _cold(tokens: tuple[int, ...]) -> Cache[Contiguous]:
    return read(TINY, tokens)


def cold(tokens: Sequence[int]) -> Cache[Contiguous]:
    """The tiny model's state after a prefill of these tokens. Shared: not to be modified."""
    return _cold(tuple(tokens))
