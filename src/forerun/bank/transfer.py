"""Export of a stored conversation to an archive, and import into the chains of another bank. Knows no cache and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

from forerun.bank import policy, stored
from forerun.bank.archive import MOST_SNAPSHOTS, Archive, ArchiveMember, Manifest, chunks
from forerun.bank.eviction import EvictingDisk
from forerun.bank.stored import UsablePrefix, usable
from forerun.bank.tier.base import Tier
from forerun.bank.tier.history import Session
from forerun.bank.tier.index import RecordLabel
from forerun.errors import BadRequestError, UnknownSessionError
from forerun.state.record import SEGMENT_TOKENS, Identity, Kind, PrefixHasher, Record, RecordInfo, token_bytes


def pack(tier: Tier, session: Session, key: bytes, *, with_state: bool) -> Iterator[bytes | memoryview]:
    """The archive of the part of a conversation that can be resumed, signed if there is a key. Raises BadRequestError, BankError; also
    while it is iterated, UnknownSessionError if the conversation is removed meanwhile.
    """
    prefix = usable(tier.index, session)
    identity = tier.index.identity(prefix.infos[0].root) if prefix.infos else None
    if identity is None:
        raise BadRequestError(f"nothing of the conversation {session.id!r} is on disk that could be exported")
    tokens, is_whole = _tokens(prefix, session)
    if with_state and not (key and is_whole):
        reason = "its end is stored as part of another conversation only" if key else "state goes into signed archives only"
        raise BadRequestError(reason, hint="export without state (it is computed again at import), or set archive_key_file")
    within = [info for info in tier.index.find(session.keys).values() if info.kind == "snapshot" and info.stop <= prefix.position]
    snapshots = sorted(within, key=lambda info: info.stop)[-MOST_SNAPSHOTS:]
    infos = (*prefix.infos[:-1], *snapshots) if with_state else ()
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


def _tokens(prefix: UsablePrefix, session: Session) -> tuple[tuple[int, ...], bool]:
    """The conversation's tokens, and whether all its segments are its own: of another's longer tail the rest does not belong to it."""
    *segments, _ = prefix.infos
    is_whole = all(info.key in session.keys for info in segments)
    tokens = tuple(token for info in segments for token in info.tokens)
    return (tokens if is_whole else tokens[: prefix.position]), is_whole


def unpack(archive: Archive, hasher: PrefixHasher, put: Callable[[Record], object]) -> tuple[str, ...]:
    """Put the records of an archive with state into the chains of `hasher`. Returns their keys. Raises BadRequestError, and as `put`."""
    manifest, tokens = archive.manifest, archive.tokens
    nodes, starts = hasher.nodes(tokens), range(0, len(tokens), SEGMENT_TOKENS)
    spans: list[tuple[Kind, int, int]] = [("segment", start, min(start + SEGMENT_TOKENS, len(tokens))) for start in starts]
    spans += [("snapshot", snapshot - snapshot % SEGMENT_TOKENS, snapshot) for snapshot in manifest.snapshots]
    if len(spans) != len(manifest.parts):
        raise BadRequestError(f"an archive of {len(tokens)} tokens has {len(spans)} records, this one {len(manifest.parts)}")
    keys = []
    for (kind, start, stop), payload in zip(spans, archive.payloads(), strict=True):
        info = hasher.info(kind, nodes[start // SEGMENT_TOKENS], start, tokens[start:stop])
        keys.append(info.key)
        put(Record.of(info, payload))
    return tuple(keys)


def keep(
    evicting: EvictingDisk, archive: Archive, hasher: PrefixHasher, tenant: str, id: str, now_s: float, check: Callable[[], object]
) -> None:
    """Store an archive's conversation on disk, with its state. A failed import leaves nothing behind. check: called before each record; may
    raise. Raises BadRequestError, BankError.
    """
    manifest, disk = archive.manifest, evicting.disk
    label = RecordLabel(id, tenant, now_s, policy.rank_s(now_s, manifest.turns, 1.0))

    def put(record: Record) -> None:
        check()
        evicting.put(record, label)

    try:
        keys = unpack(archive, hasher, put)
    except BaseException:
        stored.remove(disk, tenant, id, ())
        raise
    disk.index.note_identity(hasher.root, tenant, hasher.identity.fields, now_s)
    disk.index.note_session(Session(tenant, id, manifest.name, now_s, manifest.turns, manifest.num_tokens, False, keys))
