"""Download one large file. It resumes an earlier attempt, also that of another process, and is checked before it gets its name.
Knows HTTP and hashes; nothing of models or of the hub.

huggingface_hub restarts a broken download from zero (its issue 4196, open at 2.4), which at 5 GB a file loses too much.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from forerun.errors import ForerunError
from forerun.network import uses_proxy

# Attempts without a single new byte before giving up; the pause doubles from one second.
ATTEMPTS = 5
TIMEOUT_S = 30.0
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file is, and its expected size and hash. sha256: hex."""

    url: str
    headers: Mapping[str, str]
    num_bytes: int
    sha256: str


def part_of(target: Path) -> Path:
    """The path of the unfinished file."""
    return target.with_name(f"{target.name}.forerun-part")


def fetch(source: Source, target: Path, progress: Callable[[int], None]) -> None:
    """Download to `target`, complete and checked. progress: called with the bytes present after each block, fetched now or found on disk.

    Raises ForerunError if the server refuses, is silent for too long, or sends other content; all but the last leave the partial file.
    """
    with _locked(part_of(target)) as part:
        digest = hashlib.sha256()
        for block in iter(lambda: part.read(_BLOCK_BYTES), b""):
            digest.update(block)
            progress(part.tell())
        for block in _rest(source, part.tell()):
            part.write(block)
            digest.update(block)
            progress(part.tell())
        if digest.hexdigest() != source.sha256:
            part_of(target).unlink()
            raise ForerunError(f"{source.url}: the content does not match the hub's checksum", hint="it was removed; pull again")
        part.flush()
        part_of(target).replace(target)


def _rest(source: Source, start: int) -> Iterator[bytes]:
    """The bytes from `start`, over as many connections as it takes."""
    at, failures = start, 0
    while at < source.num_bytes:
        before = at
        try:
            for block in _blocks(source, at):
                at += len(block)
                yield block
            if at < source.num_bytes:
                raise httpx.RemoteProtocolError("the server ended early")
        except httpx.TransportError as error:
            failures = failures + 1 if at == before else 0
            if failures == ATTEMPTS:
                what = f"{source.url}: {at:,} of {source.num_bytes:,} bytes: {error or type(error).__name__}"
                raise ForerunError(what, hint="the partial file is kept; pull again to resume") from error
            time.sleep(2.0**failures)


def _blocks(source: Source, start: int) -> Iterator[bytes]:
    """The file from byte `start` over one connection, in blocks as received: a partly gathered larger block would be lost at a break."""
    headers = dict(source.headers) | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    client = httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, trust_env=uses_proxy(source.url))
    with client, client.stream("GET", source.url, headers=headers) as response:
        if response.status_code >= 500 or response.status_code == 429:
            raise httpx.RemoteProtocolError(f"HTTP {response.status_code}")
        if response.status_code not in (200, 206):
            hint = "the partial file is kept; pull again to resume"
            raise ForerunError(f"{source.url}: HTTP {response.status_code} to a request for bytes from {start:,}", hint=hint)
        skip = start if response.status_code == 200 else 0  # a server may ignore the range
        for block in response.iter_raw():
            yield block[skip:]
            skip = max(0, skip - len(block))


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading what is there and appending to it, locked against other processes.

    Before the lock is taken another process may rename or remove the file that was opened; then it is opened again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ForerunError(f"{path.name} is being fetched by another process", hint="wait for it, or end it") from error
            if path.exists() and os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                stream.seek(0)
                yield stream
                return
