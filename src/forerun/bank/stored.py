"""Conversations within one tier: what is stored of one, how far it can be resumed, and how it is removed.

Reads the tier's index, never a payload. Knows no cache, no other tier and no retention policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from forerun.bank.tier.base import Tier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import Index
from forerun.errors import BadRequestError
from forerun.state.record import SEGMENT_TOKENS, RecordInfo
from forerun.values import SessionInfo


@dataclass(frozen=True, slots=True)
class UsablePrefix:
    """The deepest position at which a conversation can be resumed, and the records needed for it: segments without a gap from 0, then the
    snapshot; none for position 0.
    """

    position: int
    infos: tuple[RecordInfo, ...]

    @property
    def keys(self) -> frozenset[str]:
        """Keys of these records."""
        return frozenset(info.key for info in self.infos)


def usable(index: Index, session: Session) -> UsablePrefix:
    """The prefix of the conversation that can be resumed."""
    found = index.find(session.keys).values()
    full = {info.start: info for info in found if info.kind == "segment" and len(info.tokens) == SEGMENT_TOKENS}
    for snapshot in sorted((info for info in found if info.kind == "snapshot"), key=lambda info: -info.stop):
        blocks = [full[start] for start in range(0, snapshot.start, SEGMENT_TOKENS) if start in full]
        tail = index.segment_over(snapshot.parent, snapshot.tokens) if snapshot.tokens else None
        if len(blocks) * SEGMENT_TOKENS == snapshot.start and (tail or not snapshot.tokens):
            return UsablePrefix(snapshot.stop, (*blocks, *([tail] if tail else []), snapshot))
    return UsablePrefix(0, ())


def usable_keys(index: Index, sessions: Iterable[Session]) -> frozenset[str]:
    """Keys of the records needed to resume these conversations."""
    return frozenset().union(*(usable(index, session).keys for session in sessions))


def session_info(index: Index, session: Session) -> SessionInfo:
    """The conversation as the index has it."""
    position = usable(index, session).position
    is_whole = position == session.num_tokens
    return SessionInfo(
        id=session.id,
        name=session.name,
        title=session.title,
        client=session.client,
        tenant=session.tenant,
        turns=session.turns,
        tokens=session.num_tokens,
        stored_tokens=position,
        ram_bytes=0,
        disk_bytes=index.bytes_of(session.keys),
        last_used_unix_s=session.used_s,
        pinned=session.is_pinned,
        state="ssd" if is_whole else "skipped",
        reason="" if is_whole else "the rest was evicted, or could not be written",
    )


def exclusive_records(index: Index, tenant: str, id: str, others: Collection[str]) -> list[RecordInfo]:
    """The records that only this conversation of the tenant needs, and not in the keys `others`: its own, those that it wrote in earlier
    turns, and intermediate snapshots.
    """

    def free(infos: Mapping[str, RecordInfo]) -> dict[str, RecordInfo]:
        needed = index.shared(infos, tenant, id).union(others)
        return {key: info for key, info in infos.items() if key not in needed}

    session = index.session(tenant, id)
    own = free({info.key: info for info in index.owned(tenant, id)} | index.find(session.keys if session else ()))
    segments = [info for info in own.values() if info.kind == "segment"]
    along = {snapshot.key: snapshot for each in segments for snapshot in index.along("snapshot", each.parent, each.tokens)}
    return list((own | free(along)).values())


def remove(tier: Tier, tenant: str, id: str, others: Collection[str]) -> list[RecordInfo]:
    """Remove a conversation with its `exclusive_records` and its responses. The conversation's row goes last, so that an interrupted
    removal can be repeated. Returns the removed records.
    """
    infos = exclusive_records(tier.index, tenant, id, others)
    for info in infos:
        tier.delete(info.key)
    tier.index.remove_responses_of(tenant, id)
    tier.index.remove_session(tenant, id)
    return infos


def wipe(tier: Tier, tenant: str, roots: Collection[str]) -> list[RecordInfo]:
    """Remove all of a tenant's records, also those without a conversation if their chain begins at one of `roots`; then its conversations
    and responses. Returns the removed records.
    """
    infos = tier.index.of_owner(tenant, roots)
    for info in infos:
        tier.delete(info.key)
    tier.index.forget_owner(tenant)
    return infos


def wipe_all(tier: Tier) -> list[RecordInfo]:
    """Remove all records, conversations and responses. Returns the records."""
    infos = tier.index.inventory()
    for info in infos:
        tier.delete(info.key)
    for owner in tier.index.owners():
        tier.index.forget_owner(owner)
    return infos


def id_taken(id: str) -> BadRequestError:
    """The error for an id that is already in use."""
    return BadRequestError(f"there is a conversation {id!r} already", param="id", hint="take another id")


def fork(index: Index, session: Session, id: str, name: str, now_s: float) -> None:
    """Add a second conversation of the same records; nothing is copied. Raises BadRequestError if the id is taken."""
    if index.session(session.tenant, id):
        raise id_taken(id)
    index.note_session(replace(session, id=id, name=name, used_s=now_s, is_pinned=False))
