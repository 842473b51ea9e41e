"""What a bank's folder holds besides records: `lock`, held by its one writer; `secret`, the key of all names in it; and the index.

Knows nothing of records.
"""

from __future__ import annotations

import logging
import os
import secrets
from functools import partial
from pathlib import Path

from forerun.bank.tier import database, files
from forerun.bank.tier.index import Index
from forerun.errors import BankError
from forerun.state.record import Identity, PrefixHasher

LOCK, RECORDS, QUARANTINE = "lock", "records", "quarantine"
log = logging.getLogger(__name__)
_INDEX, _SECRET = "index.db", "secret"


def hold(folder: Path) -> Index:
    """The index of a folder of records, created if missing; this process alone holds the folder until the index is closed. Raises
    BankLockedError, BankError.
    """
    with files.explained(f"cannot open {folder}"):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if files.size(folder / LOCK) is None and any(folder.iterdir()):
            raise BankError(f"{folder} holds something else", hint="give --bank-dir a new or empty folder")
        folder.chmod(0o700)
        lock = files.lock(folder / LOCK)
    try:
        with files.explained(f"cannot open {folder}"):
            files.rewrite(lock, b"")  # the last holder's address
            return Index(database.writable(folder / _INDEX, partial(_set_aside, folder)), folder / _INDEX, lock)
    except BaseException:
        os.close(lock)
        raise


def _set_aside(folder: Path, version: int) -> None:
    """Move the records of an earlier format to quarantine, where they are counted, and removed like damaged ones. Raises OSError."""
    records, aside = folder / RECORDS, folder / QUARANTINE / f"format-{version}"
    if records.is_dir():  # if not, this was interrupted before
        files.make_folder(folder / QUARANTINE)
        files.move(records, aside)
    if aside.is_dir():
        log.warning(
            "the conversations in %s are in format %d, which this version of forerun cannot read; it reads %d. They were moved to %s:"
            " there they count towards the disk quota until it is reached, or until `forerun bank wipe` or `prune` removes them",
            *(folder, version, database.VERSION, aside),
        )


def view(folder: Path) -> Index:
    """The index of a folder, read-only; another process may hold the folder. Raises BankError."""
    path = folder / _INDEX
    with files.explained(f"cannot open {folder}"):
        if files.size(path) is None:
            raise BankError(f"no conversations are stored in {folder}", hint="name the folder with --bank-dir; `forerun serve` makes it")
    return Index(database.readable(path), path, None)


def holder(folder: Path) -> str | None:
    """Address of the server that holds the folder: "" if it wrote none yet, None if nobody holds it. Raises BankError."""
    with files.explained(f"cannot open {folder}"):
        return files.locked_by(folder / LOCK)


def secret(folder: Path) -> bytes:
    """The 32 random bytes that key all names in the folder, created by the first call. The caller holds the folder. Raises BankError."""
    path = folder / _SECRET
    with files.explained(f"cannot open {path}"):
        if files.size(path) is None:
            files.publish(path, [secrets.token_bytes(32)])
        found = path.read_bytes()
    if len(found) != 32:
        raise BankError(
            f"{path}: expected 32 bytes, found {len(found)}", hint="without it nothing in the folder can be found: delete the folder"
        )
    return found


def check_secret(folder: Path, index: Index) -> None:
    """Raises BankError if the secret is not the one that keyed the stored records: none of them would be found."""
    files.temporary(folder / _SECRET).unlink(missing_ok=True)
    found, last = secret(folder), index.last_root()
    if last is None:
        return
    root, tenant, fields = last
    if PrefixHasher(found, tenant, Identity(**fields)).root != root:
        text = f"{folder / _SECRET} is not the secret with which the stored conversations were named"
        raise BankError(text, hint="restore the old file; if it is lost, nothing in the folder can be found: delete the folder")
