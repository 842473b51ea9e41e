"""Files that survive a power cut: written beside their place, synced, renamed, and the folder synced. Also the lock and the count of bytes.

Knows nothing of records.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from forerun.errors import BankError, BankFullError, BankLockedError

Buffer = bytes | memoryview
_HOLDER_BYTES, _LOOK_S = 1000, 0.1
_OTHER_FOLDER = "give --bank-dir a folder in which this user may write"
HINTS = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST), _OTHER_FOLDER)


def make_folder(path: Path) -> None:
    """Make the folder, for its owner alone, unless it is there; on return a power cut does not undo it. Raises OSError."""
    if path.is_dir():
        return
    path.mkdir(0o700)
    try:
        sync_folder(path.parent)
    except BaseException:
        path.rmdir()
        raise


def publish(path: Path, chunks: Iterable[Buffer]) -> None:
    """Make a file of `chunks`, mode 0600. It appears whole or not at all; on return a power cut does not undo it. Raises OSError."""
    try:
        with opened(temporary(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for chunk in chunks:
                _write(file, memoryview(chunk))
            _sync(file)
        temporary(path).replace(path)
        sync_folder(path.parent)
    except BaseException:
        # What cannot be removed now is counted, and removed when the folder is next opened.
        with suppress(OSError):
            temporary(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        raise


def temporary(path: Path) -> Path:
    """Where `publish` writes before it renames. A folder has one writer, so one name is enough."""
    return path.with_name(f"{path.name}.tmp")


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A file descriptor of a file that is no symbolic link."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """What was renamed, made or removed in the folder so far survives a power cut."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        _sync(folder)


def remove(path: Path) -> None:
    """Remove the file, or the folder that has taken its place with all in it. Raises OSError."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Move the file, or what has taken its place, and remove what is there. Raises OSError."""
    remove(to)
    path.replace(to)


def read(file: int, start: int, num_bytes: int) -> memoryview:
    """The bytes of an open file from `start` on, in a buffer of their own; fewer than `num_bytes` at the end of the file."""
    buffer, done = np.empty(num_bytes, np.uint8).data, 0
    while done < num_bytes:
        got = os.preadv(file, [buffer[done:]], start + done)
        if got == 0:
            break
        done += got
    return buffer[:done].toreadonly()


def read_ahead(file: int) -> None:
    """Tell the system that the file will be read from its start to its end."""
    if sys.platform == "linux":
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def lock(path: Path) -> int:
    """Hold `path` until the returned descriptor is closed or the process ends, however it ends. Raises BankLockedError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _lock_within(file, _LOOK_S)
    except OSError as error:
        os.close(file)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        hint = "stop that server, or give this one a folder of its own with --bank-dir"
        raise BankLockedError(f"{path.parent} belongs to another running server", hint=hint) from error
    return file


def _lock_within(file: int, limit_s: float) -> None:
    """Lock it. Who only looks whether it is locked (`locked_by`) holds it for a moment, and is waited for. Raises OSError."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise
            time.sleep(limit_s / 20)


def locked_by(path: Path) -> str | None:
    """What the holder of `path` has written there, None if nobody holds it. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return bytes(read(file, 0, _HOLDER_BYTES)).decode(errors="replace")
    finally:
        os.close(file)
    return None


def rewrite(file: int, content: bytes) -> None:
    """Make this the content of a file that is open, and stays the same file."""
    os.ftruncate(file, 0)
    os.pwrite(file, content, 0)


def sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every file under the folder and its length in bytes."""
    for path in folder.rglob("*"):
        num_bytes = size(path)
        if num_bytes is not None:
            yield path, num_bytes


def size(path: Path) -> int | None:
    """Length in bytes of a file, None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else found.st_size


def occupied(path: Path) -> int:
    """Bytes of the file, or of all files in the folder that has taken its place; 0 if nothing is there."""
    return sum(num_bytes for _, num_bytes in sizes(path)) if _is_folder(path) else size(path) or 0


def is_file(path: Path) -> bool:
    """Whether a file is there, and no link to one. Raises FileNotFoundError if nothing is."""
    return stat.S_ISREG(path.lstat().st_mode)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an OSError into a BankError that says what failed; a full disk into a BankFullError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BankFullError(f"{what}: {error}", reason="disk", hint="free some space on the disk") from error
        raise BankError(f"{what}: {error.strerror or error}", hint=HINTS.get(error.errno or 0, "")) from error


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write(file: int, chunk: memoryview) -> None:
    done = 0
    while done < len(chunk):
        # In pieces: some systems refuse 2 GiB in one call.
        done += os.write(file, chunk[done : done + (64 << 20)])


def _sync(file: int) -> None:
    if sys.platform == "darwin":
        # fsync alone leaves the bytes in the drive's cache there.
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)
