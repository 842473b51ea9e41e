"""A stored conversation into an archive, and out of one into the chains of another bank. Knows no cache and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

from forerun.bank import retain, stored
from forerun.bank.archive import MOST_SNAPSHOTS, Archive, ArchiveMember, Manifest, chunks
from forerun.bank.eviction import EvictingDisk
from forerun.bank.stored import UsablePrefix, usable
from forerun.bank.tier.base import Tier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.errors import BadRequestError, UnknownSessionError
from forerun.state.record import SEGMENT_TOKENS, Identity, Kind, PrefixHasher, Record, RecordInfo, token_bytes


def pack(tier: Tier, session: Session, key: bytes, *, with_state: bool) -> Iterator[bytes | memoryview]:
    """The archive of as much of a conversation as can be taken up, signed if there is a key. Raises BadRequestError, BankError;
    now, and while it is read, UnknownSessionError if it goes meanwhile.
    """
    place = usable(tier.index, session)
    identity = tier.index.identity(place.infos[0].root) if place.infos else None
    if identity is None:
        raise BadRequestError(f"nothing of the conversation {session.id!r} is on disk that could be exported")
    tokens, is_whole = _tokens(place, session)
    if with_state and not (key and is_whole):
        reason = "its end is stored as part of another conversation only" if key else "state goes into signed archives only"
        raise BadRequestError(reason, hint="leave the state out (it is read anew where it is imported), or set archive_key_file")
    known = [info for info in tier.index.find(session.keys).values() if info.kind == "snapshot" and info.stop <= place.position]
    snapshots = sorted(known, key=lambda info: info.stop)[-MOST_SNAPSHOTS:]
    infos = (*place.infos[:-1], *snapshots) if with_state else ()
    manifest = Manifest(
        id=session.id,
        name=session.name,
        turns=session.turns,
        num_tokens=len(tokens),
        tokens_sha256=sha256(token_bytes(tokens)).hexdigest(),
        snapshots=tuple(snapshot.stop for snapshot in snapshots),
        identity=Identity(**identity),
        parts=tuple(_part(_payload(tier, session, info)) for info in infos),
    )
    return chunks(manifest.signed(key) if key else manifest, tokens, (_payload(tier, session, info) for info in infos))


def _payload(tier: Tier, session: Session, info: RecordInfo) -> memoryview:
    try:
        return tier.get(info.key).payload
    except KeyError as error:
        raise UnknownSessionError(session.id) from error


def _part(payload: memoryview) -> ArchiveMember:
    return ArchiveMember(num_bytes=payload.nbytes, sha256=sha256(payload).hexdigest())


def _tokens(place: UsablePrefix, session: Session) -> tuple[tuple[int, ...], bool]:
    """The tokens of the conversation's segments, and whether these are its own: the rest of another's is no part of it."""
    *segments, _ = place.infos
    is_whole = all(info.key in session.keys for info in segments)
    tokens = tuple(token for info in segments for token in info.tokens)
    return (tokens if is_whole else tokens[: place.position]), is_whole


def unpack(archive: Archive, hasher: PrefixHasher, put: Callable[[Record], object]) -> tuple[str, ...]:
    """Put the records of an archive that holds state, along `chain`. Returns their keys. Raises BadRequestError, and what `put` raises."""
    manifest, tokens = archive.manifest, archive.tokens
    nodes, starts = hasher.nodes(tokens), range(0, len(tokens), SEGMENT_TOKENS)
    places: list[tuple[Kind, int, int]] = [("segment", start, min(start + SEGMENT_TOKENS, len(tokens))) for start in starts]
    places += [("snapshot", snapshot - snapshot % SEGMENT_TOKENS, snapshot) for snapshot in manifest.snapshots]
    if len(places) != len(manifest.parts):
        raise BadRequestError(f"an archive of {len(tokens)} tokens has {len(places)} records, this one {len(manifest.parts)}")
    keys = []
    for (kind, start, stop), payload in zip(places, archive.payloads(), strict=True):
        node, own = nodes[start // SEGMENT_TOKENS], tokens[start:stop]
        keys.append(hasher.key(kind, node, own))
        put(Record(kind, keys[-1], hasher.root, node, start, own, payload))
    return tuple(keys)


def keep(room: EvictingDisk, archive: Archive, hasher: PrefixHasher, tenant: str, id: str, now_s: float) -> None:
    """Keep an archive's conversation on disk, with its state. What is cut off leaves nothing behind. Raises BadRequestError, BankError."""
    manifest, disk = archive.manifest, room.disk
    label = RecordLabel(id, tenant, now_s, retain.rank_s(now_s, manifest.turns, 1.0))
    try:
        keys = unpack(archive, hasher, lambda record: room.put(record, label))
    except BaseException:
        stored.remove(disk, tenant, id, ())
        raise
    disk.index.note_identity(hasher.root, tenant, hasher.identity.fields, now_s)
    disk.index.note_session(Session(tenant, id, manifest.name, now_s, manifest.turns, manifest.num_tokens, False, keys))
