"""Files that survive a power cut: written under a temporary name, synced, renamed, the folder synced. Also the lock, and sizes.

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
    """Make the folder with mode 0700 unless it exists; durable on return. Raises OSError."""
    if path.is_dir():
        return
    path.mkdir(0o700)
    try:
        sync_folder(path.parent)
    except BaseException:
        path.rmdir()
        raise


def publish(path: Path, chunks: Iterable[Buffer]) -> None:
    """Write `chunks` to a new file, mode 0600. It appears whole or not at all, and is durable on return. Raises OSError."""
    try:
        with opened(temporary(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for chunk in chunks:
                _write(file, memoryview(chunk))
            _sync(file)
        temporary(path).replace(path)
        sync_folder(path.parent)
    except BaseException:
        # If this fails too: the file is counted, and removed when the folder is next opened.
        with suppress(OSError):
            temporary(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        raise


def temporary(path: Path) -> Path:
    """The name under which `publish` writes before it renames. A folder has one writer, so one name is enough."""
    return path.with_name(f"{path.name}.tmp")


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A file descriptor; symbolic links are refused."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """Make what was renamed, made or removed in the folder durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        _sync(folder)


def remove(path: Path) -> None:
    """Remove the file or folder, with all in it, if it exists. Raises OSError."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Move the file or folder to `to`, whose previous content is removed. Raises OSError."""
    remove(to)
    path.replace(to)


def read(file: int, start: int, num_bytes: int) -> memoryview:
    """`num_bytes` bytes of an open file from `start`, in a new read-only buffer; fewer at the end of the file."""
    buffer, done = np.empty(num_bytes, np.uint8).data, 0
    while done < num_bytes:
        got = os.preadv(file, [buffer[done:]], start + done)
        if got == 0:
            break
        done += got
    return buffer[:done].toreadonly()


def read_ahead(file: int) -> None:
    """Advise the kernel that the file will be read sequentially."""
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
    """Lock it, retrying for `limit_s`: `locked_by` in another process holds the lock for a moment. Raises OSError."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise
            time.sleep(limit_s / 20)


def locked_by(path: Path) -> str | None:
    """What the holder of `path` wrote into it, None if nobody holds it. Raises OSError."""
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
    """Replace the content of an open file in place."""
    os.ftruncate(file, 0)
    os.pwrite(file, content, 0)


def sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every file under the folder, with its length in bytes."""
    for path in folder.rglob("*"):
        num_bytes = size(path)
        if num_bytes is not None:
            yield path, num_bytes


def size(path: Path) -> int | None:
    """Length of a file in bytes, None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else found.st_size


def occupied(path: Path) -> int:
    """Bytes of the file, or of all files under the folder; 0 if neither exists."""
    return sum(num_bytes for _, num_bytes in sizes(path)) if _is_folder(path) else size(path) or 0


def is_file(path: Path) -> bool:
    """Whether the path is a regular file, not a link. Raises FileNotFoundError."""
    return stat.S_ISREG(path.lstat().st_mode)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an OSError into a BankError that names what failed; a full disk into a BankFullError."""
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
        # 64 MiB at a time: some systems refuse 2 GiB in one call.
        done += os.write(file, chunk[done : done + (64 << 20)])


def _sync(file: int) -> None:
    if sys.platform == "darwin":
        # There fsync alone leaves the bytes in the drive's cache.
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)
