"""Atomic writes of files. All but write() are also durable across a power failure. All functions raise OSError."""

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
"""Error codes of link(2) on such file systems."""
WRITE = 8 << 20
"""Bytes per write(2)."""
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def flush_folder(folder: Path) -> None:
    """Make entries created, renamed and removed in a folder durable across a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_file(path: Path) -> None:
    """Make the content of a file, which other code has written, durable across a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a small file, replacing an existing one: atomic, not durable.

    Readers see the old or the new content, even if the writer is killed. After a power failure the file may be old
    or empty; create() prevents this. `mode`: permissions of the file, without the umask's bits.
    """
    with _temporary(path, data, mode, flush=False) as temporary:
        temporary.replace(path)


def create(path: Path, data: bytes, *, replace: bool) -> bool:
    """Write a small file: atomic and durable. Return False if it exists and `replace` is false."""
    with _temporary(path, data, 0o666, flush=True) as temporary:
        if replace:
            temporary.replace(path)
        elif not _link(temporary, path):
            return False
    flush_folder(path.parent)
    return True


@contextlib.contextmanager
def _temporary(path: Path, data: bytes, mode: int, *, flush: bool) -> Iterator[Path]:
    """Write a temporary file beside its final path; on exit, remove it if it still exists (context manager).

    Its name is unique, even across machines, and is skipped by listings of the job dir.
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
    """Link a file to its final name; return False if that exists."""
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
    """Write a large file and flush it. `each` is called with every WRITE bytes, in order, while they are in the CPU's
    cache.

    The file is always created anew, without remains of a killed writer. It is removed on failure.
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
    """Reserve disk space, so that a full disk is detected at once; no-op if the file system does not support it.

    os.posix_fallocate() is not used: on such file systems the C library emulates it by writing into every block.
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
