"""The record file (docs/record-format.md): its bytes, and the check of every byte on reading.

Knows nothing of folders, quotas or the index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from xxhash import xxh3_64_intdigest

from forerun.bank.tier import files
from forerun.errors import DamagedRecordError
from forerun.state.record import SEGMENT_TOKENS, Kind, Record, RecordInfo, token_bytes, tokens_of

MAGIC = b"FORERUN\n"
VERSION = 2
ALIGN_BYTES = 4096

# magic, version, kind, key, root, parent, start, token count, zero, payload bytes, payload checksum
_FIELDS = Struct("<8sII16s16s16sQIIQQ")
_CHECKSUM = Struct("<Q")
_KINDS: dict[int, Kind] = {1: "segment", 2: "snapshot"}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def head_bytes(num_tokens: int) -> int:
    """Length of everything before the payload."""
    used = _FIELDS.size + 4 * num_tokens + _CHECKSUM.size
    return -(-used // ALIGN_BYTES) * ALIGN_BYTES


def file_bytes(info: RecordInfo) -> int:
    """Length of the record's file."""
    return head_bytes(len(info.tokens)) + info.num_bytes


def chunks(record: Record) -> tuple[bytes, memoryview]:
    """The record's file: head and payload. Raises ValueError for invalid keys or too many tokens."""
    info, payload = record.info, record.payload.cast("B")
    names = [bytes.fromhex(name) for name in (info.key, info.root, info.parent)]
    if any(len(name) != 16 for name in names) or len(info.tokens) > SEGMENT_TOKENS:
        raise ValueError(f"{info.kind} {info.key!r} with {len(info.tokens)} tokens is no record")
    sizes = (info.start, len(info.tokens), 0, payload.nbytes, xxh3_64_intdigest(payload))
    head = _FIELDS.pack(MAGIC, VERSION, _NUMBERS[info.kind], *names, *sizes) + token_bytes(info.tokens)
    head = head.ljust(head_bytes(len(info.tokens)) - _CHECKSUM.size, b"\0")
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head)), payload


def read(path: Path) -> Record:
    """The record in the file, every byte of it checked. Raises DamagedRecordError, OSError."""
    with _opened(path) as file:
        files.read_ahead(file)
        info, checksum = _read_head(file, path)
        payload = files.read(file, head_bytes(len(info.tokens)), info.num_bytes)
    _expect(path, "payload checksum", checksum, xxh3_64_intdigest(payload))
    return Record(info, payload)


def read_info(path: Path) -> RecordInfo:
    """The info in the file's head, checked; the payload is not read. Raises DamagedRecordError, OSError."""
    with _opened(path) as file:
        return _read_head(file, path)[0]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens regular files only: a pipe would block, and a link may lead outside the folder."""
    if not files.is_file(path):
        raise DamagedRecordError(f"{path} is not a regular file")
    with files.opened(path, os.O_RDONLY) as file:
        yield file


def _read_head(file: int, path: Path) -> tuple[RecordInfo, int]:
    """The record's info and its payload's checksum. The head's own checksum is verified before its fields are used."""
    raw = bytes(files.read(file, 0, head_bytes(SEGMENT_TOKENS)))
    if len(raw) < ALIGN_BYTES:
        raise DamagedRecordError(f"{path}: expected at least {ALIGN_BYTES} bytes, found {len(raw)}")
    magic, version, number, key, root, parent, start, num_tokens, zero, num_bytes, checksum = _FIELDS.unpack_from(raw)
    _expect(path, "magic", MAGIC, magic)
    _expect(path, "format version", VERSION, version)
    if num_tokens > SEGMENT_TOKENS:
        raise DamagedRecordError(f"{path}: expected at most {SEGMENT_TOKENS} tokens, found {num_tokens}")
    head = raw[: head_bytes(num_tokens)]
    _expect(path, "head checksum", xxh3_64_intdigest(head[: -_CHECKSUM.size]), *_CHECKSUM.unpack(head[-_CHECKSUM.size :]))
    if number not in _KINDS or zero != 0 or start % SEGMENT_TOKENS:
        raise DamagedRecordError(f"{path}: kind {number}, start {start}, reserved {zero} are invalid")
    _expect(path, "file bytes", len(head) + num_bytes, os.fstat(file).st_size)
    tokens = tokens_of(head[_FIELDS.size : _FIELDS.size + 4 * num_tokens])
    return RecordInfo(_KINDS[number], key.hex(), root.hex(), parent.hex(), start, tokens, num_bytes), checksum


def _expect(path: Path, what: str, expected: object, found: object) -> None:
    if found != expected:
        raise DamagedRecordError(f"{path}: {what}: expected {expected!r}, found {found!r}")
