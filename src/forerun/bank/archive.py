"""A conversation in one file: a tar archive with a manifest, the token ids, and, if it is signed, the records of its state.

Reading trusts nothing: members come in a fixed order under fixed names (which are never used as paths), as plain files only, and every size
is checked before its bytes are read. Knows no tier and no chain.
"""

from __future__ import annotations

import hmac
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forerun.errors import BadRequestError
from forerun.state.record import SEGMENT_TOKENS, Identity, token_bytes, tokens_of
from forerun.values import SESSION_ID

MOST_TOKENS = 1 << 24
MOST_SNAPSHOTS = 16
MOST_MANIFEST_BYTES = 4 << 20
MOST_RECORD_BYTES = 4 << 30
MANIFEST, TOKENS = "manifest.json", "tokens"
_BLOCK = tarfile.BLOCKSIZE
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ArchiveMember(BaseModel):
    """A record's payload."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    num_bytes: int = Field(ge=0, le=MOST_RECORD_BYTES)
    sha256: Digest


class Manifest(BaseModel):
    """What the archive holds. snapshots: positions at which the conversation can be resumed. parts: the segments of all tokens in order,
    then these snapshots; empty: no state. signature: HMAC-SHA256 of everything else, "" for none.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal["forerun session 2"] = "forerun session 2"
    id: str = Field(min_length=1, max_length=200, pattern=SESSION_ID)
    name: str = Field(max_length=200)
    turns: int = Field(ge=0)
    num_tokens: int = Field(ge=1, le=MOST_TOKENS)
    tokens_sha256: Digest
    snapshots: tuple[int, ...] = Field(min_length=1, max_length=MOST_SNAPSHOTS, strict=False)
    identity: Identity
    parts: tuple[ArchiveMember, ...] = Field(max_length=MOST_TOKENS // SEGMENT_TOKENS + 1 + MOST_SNAPSHOTS, strict=False)
    signature: str = Field(default="", max_length=64)

    def signed(self, key: bytes) -> Manifest:
        """The manifest, signed with this key."""
        return self.model_copy(update={"signature": self._signature(key)})

    def is_signed_by(self, key: bytes) -> bool:
        """Whether it is signed with this key; never with an empty key."""
        return bool(key) and hmac.compare_digest(self._signature(key).encode(), self.signature.encode())

    def _signature(self, key: bytes) -> str:
        unsigned = self.model_copy(update={"signature": ""}).model_dump_json()
        return hmac.new(key, unsigned.encode(), "sha256").hexdigest()


def chunks(manifest: Manifest, tokens: tuple[int, ...], payloads: Iterable[memoryview]) -> Iterator[bytes | memoryview]:
    """The archive's bytes."""
    yield from _member(MANIFEST, manifest.model_dump_json(indent=1).encode())
    yield from _member(TOKENS, token_bytes(tokens))
    for number, payload in enumerate(payloads):
        yield from _member(f"records/{number}", payload.cast("B"))
    yield bytes(2 * _BLOCK)


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive whose payloads are read from `stream` on demand."""

    manifest: Manifest
    tokens: tuple[int, ...]
    stream: BinaryIO

    @classmethod
    def read(cls, stream: BinaryIO) -> Archive:
        """Read manifest and tokens; the payloads follow in the stream. Raises BadRequestError."""
        try:
            manifest = Manifest.model_validate_json(_read(stream, MANIFEST, MOST_MANIFEST_BYTES))
        except ValidationError as error:
            first = error.errors()[0]
            raise _refused(f"{MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if not all(before < snapshot for before, snapshot in pairwise((0, *manifest.snapshots, manifest.num_tokens + 1))):
            raise _refused(f"{MANIFEST}: snapshots at {manifest.snapshots} of {manifest.num_tokens} tokens")
        data = _read(stream, TOKENS, 4 * manifest.num_tokens)
        _expect(TOKENS, ArchiveMember(num_bytes=4 * manifest.num_tokens, sha256=manifest.tokens_sha256), data)
        return cls(manifest, tokens_of(data), stream)

    def payloads(self) -> Iterator[memoryview]:
        """The records' payloads, each checked against the manifest. Raises BadRequestError, also for data after the last one."""
        for number, part in enumerate(self.manifest.parts):
            data = _read(self.stream, f"records/{number}", part.num_bytes)
            _expect(f"records/{number}", part, data)
            yield memoryview(data)
        if any(_exactly(self.stream, _BLOCK)):
            raise _refused("it holds more than its manifest lists")


def _member(name: str, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(data), 0o600
    yield header.tobuf(tarfile.USTAR_FORMAT)
    yield data
    yield bytes(-len(data) % _BLOCK)


def _read(stream: BinaryIO, name: str, limit_bytes: int) -> bytes:
    """The content of the next member, which must be a plain file of this name. Raises BadRequestError."""
    try:
        header = tarfile.TarInfo.frombuf(_exactly(stream, _BLOCK), "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise _refused(f"{name} was expected: {error}") from error
    if header.type != tarfile.REGTYPE or header.name != name:
        raise _refused(f"{name} was expected, found {header.name[:100]!r} of type {header.type!r}")
    if not 0 <= header.size <= limit_bytes:
        raise _refused(f"{name} has {header.size} bytes, at most {limit_bytes} were expected")
    data = _exactly(stream, header.size)
    _exactly(stream, -header.size % _BLOCK)
    return data


def _exactly(stream: BinaryIO, num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise _refused("it is truncated")
    return data


def _expect(name: str, part: ArchiveMember, data: bytes) -> None:
    if len(data) != part.num_bytes or sha256(data).hexdigest() != part.sha256:
        raise _refused(f"{name} does not match the manifest")


def _refused(reason: str) -> BadRequestError:
    return BadRequestError(f"not a valid conversation archive: {reason}", hint="`forerun bank export` writes one")
