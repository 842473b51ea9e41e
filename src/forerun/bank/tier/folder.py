"""What a bank's folder has beside its records: who holds it (`lock`), what all names in it are keyed with (`secret`), and the index.

Knows nothing of records.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from forerun.bank.tier import database, files
from forerun.bank.tier.index import Index
from forerun.errors import BankError
from forerun.state.record import Identity, PrefixHasher

LOCK = "lock"
_INDEX, _SECRET = "index.db", "secret"


def hold(folder: Path) -> Index:
    """The index of a folder of records, made if it is not there, and the folder for this process alone, until the index is closed. Raises
    BankLockedError, BankError.
    """
    with files.explained(f"cannot open {folder}"):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if files.size(folder / LOCK) is None and any(folder.iterdir()):
            raise BankError(f"{folder} holds something else", hint="give --bank-dir a folder that is new or empty")
        folder.chmod(0o700)
        lock = files.lock(folder / LOCK)
    try:
        with files.explained(f"cannot open {folder}"):
            files.rewrite(lock, b"")  # who held it before may have written where it answers
            return Index(database.writable(folder / _INDEX), folder / _INDEX, lock)
    except BaseException:
        os.close(lock)
        raise


def view(folder: Path) -> Index:
    """The index of a folder that another process may hold, for looking only. Raises BankError."""
    path = folder / _INDEX
    with files.explained(f"cannot open {folder}"):
        if files.size(path) is None:
            raise BankError(f"no conversations are stored in {folder}", hint="name the folder with --bank-dir; `forerun serve` makes it")
    return Index(database.readable(path), path, None)


def holder(folder: Path) -> str | None:
    """Where the server answers that holds the folder: "" if it does not say, None if nobody holds it. Raises BankError."""
    with files.explained(f"cannot open {folder}"):
        return files.locked_by(folder / LOCK)


def secret(folder: Path) -> bytes:
    """The 32 random bytes that key all names in the folder, which the caller holds; made at the first call. Raises BankError."""
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
    """Raises BankError if it is another one than that with which the stored records were named: none of them would be found."""
    files.temporary(folder / _SECRET).unlink(missing_ok=True)
    found, known = secret(folder), index.last_root()
    if known is None:
        return
    root, tenant, fields = known
    if PrefixHasher(found, tenant, Identity(**fields)).root != root:
        told = f"{folder / _SECRET} is not the secret with which the stored conversations were named"
        raise BankError(told, hint="put the old file back; if it is lost, nothing in the folder can be found: delete the folder")
