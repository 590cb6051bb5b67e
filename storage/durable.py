"""Write files whole: all functions but write() make them survive a power cut. Every function raises OSError."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

NO_LINKS = (
    "this file system has no hard links, without which no file can be created exactly once (buckets mounted as folders "
    "have none, nor do some network shares): give the bucket's own URL (s3://, gs://, az://), or another folder"
)
NO_LINK_CODES = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""Error codes of link(2) there."""
WRITE = 8 << 20
"""Bytes per write(2)."""
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def flush_folder(folder: Path) -> None:
    """Make what was created, renamed and removed in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_file(path: Path) -> None:
    """Make what was written into a file by others survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a small file, replacing what is there: atomic, not durable.

    Readers see the old content or the new one, also when the writer is killed. After a power cut, the file may be old
    or empty: create() makes sure that it is not. `mode`: permissions of the file, less the umask.
    """
    with _temporary(path, data, mode, flush=False) as temporary:
        temporary.replace(path)


def create(path: Path, data: bytes, *, replace: bool) -> bool:
    """Write a small file: atomic and durable. Return False if it is there and may not be replaced."""
    with _temporary(path, data, 0o666, flush=True) as temporary:
        if replace:
            temporary.replace(path)
        elif not _link(temporary, path):
            return False
    flush_folder(path.parent)
    return True


@contextlib.contextmanager
def _temporary(path: Path, data: bytes, mode: int, *, flush: bool) -> Iterator[Path]:
    """Write a file beside the one that it will replace, and remove it in the end if it is still there.

    Its name is unique, also among other machines, and one that a listing of the job dir passes over.
    """
    temporary = path.with_name(f"{path.name}#{int.from_bytes(os.urandom(6))}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    """Give a file its name, unless it is taken: return False then."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINK_CODES:
            raise OSError(error.errno, NO_LINKS) from error
        raise
    return True


def write_data(path: Path, view: memoryview, each: Callable[[memoryview], None]) -> None:
    """Write a large file and flush it; `each` sees every WRITE bytes, in order, while they are in the CPU's cache.

    What a killed writer left there is no part of it: the file is a new one. One that fails is removed.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _allocate(descriptor, len(view))
        for at in range(0, len(view), WRITE):
            piece = view[at : at + WRITE]
            each(piece)
            _write_all(descriptor, piece, at)
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, piece: memoryview, at: int) -> None:
    while piece:
        written = os.pwrite(descriptor, piece, at)
        piece, at = piece[written:], at + written


def _allocate(descriptor: int, size: int) -> None:
    """Reserve the room, so that a full disk is known at once; nothing where the file system cannot.

    Not os.posix_fallocate(): the C library's stand-in for file systems that cannot writes into every block.
    """
    if not size:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    if libc.fallocate(descriptor, 0, offset(0), offset(size)) == 0:
        return
    code = ctypes.get_errno()
    if code not in _NO_FALLOCATE:
        raise OSError(code, os.strerror(code))
