"""Shared memory of trainer and writer, which is anonymous, so that the kernel frees it when both have exited.

A slot is a memfd, or an unlinked temporary file if memfds are not available. Its pages are allocated once and reused
for every save: the first write to a new page takes fourteen times as long as the copy into an existing one.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import threading
from functools import cache

from . import memory_limit

_PREFAULT = 4 << 20
"""Bytes prefaulted per call of madvise(), which blocks other users of the address space, such as malloc()."""
_ALLOCATE = 64 << 20
"""Bytes allocated between two checks of the available memory."""
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module yet
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def anonymous_file(name: str, size: int = 0) -> int:
    """Return the descriptor of a new anonymous file in memory. Raises OSError."""
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        with tempfile.TemporaryFile(prefix=name) as file:  # some containers forbid memfd_create(2)
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def content_file(name: str, content: bytes) -> int:
    """Return the descriptor of a new anonymous file that holds `content`, to pass to another process."""
    descriptor = anonymous_file(name)
    view, at = memoryview(content), 0
    try:
        while at < len(view):
            at += os.pwrite(descriptor, view[at:], at)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_content(descriptor: int) -> bytes:
    """Return the content of a content_file(), and close the descriptor."""
    with open(descriptor, "rb", buffering=0) as file:
        file.seek(0)
        return file.read()


class Slot:
    """A block of shared memory, mapped on first access and freed with the last reference."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls, size: int) -> Slot:
        """Create a slot of at least `size` bytes; memory is allocated by allocate() or on first write."""
        page = mmap.PAGESIZE
        return cls(anonymous_file("cloudgpu-slot", max(1, -(-size // page)) * page))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; the memory stays until views in use are released."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._map = None

    @property
    def view(self) -> memoryview:
        """Writable view of the memory."""
        return memoryview(self._mapped())

    def private_view(self, size: int) -> memoryview:
        """Return a copy-on-write view of the first `size` bytes; changes are private."""
        if not size:
            return memoryview(bytearray())
        mapped = mmap.mmap(self.descriptor, size, access=mmap.ACCESS_COPY)
        mapped.madvise(mmap.MADV_DONTFORK)
        return memoryview(mapped)

    def leave_to_parent(self) -> None:
        """Close the slot in a forked child without unmapping its memory.

        The child has no such mapping (see _mapped()); other memory of the child may be at its address by now.
        """
        if self._map is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
        self.close()

    def allocate(self) -> None:
        """Allocate all of the memory. Raises OSError if less is available, because its use would cause an OOM kill.

        Thread-safe: slots that this process allocates concurrently do not count the same memory as available. The
        available memory is checked again after every _ALLOCATE bytes, because of other processes. After an error, the
        part that was allocated stays so until give_back().
        """
        try:
            for at in range(0, self.size, _ALLOCATE):
                self._claim()
                os.posix_fallocate(self.descriptor, at, min(_ALLOCATE, self.size - at))
        finally:
            with _CLAIMS:
                _CLAIMING.discard(self)

    def _claim(self) -> None:
        """Raise OSError unless there is memory for this slot and the others that this process is allocating."""
        with _CLAIMS:
            missing, left = self.missing, memory_limit.available()
            others = sum(slot.missing for slot in _CLAIMING if slot is not self)
            if missing and left is not None and missing > left - others:
                reason = f"a slot needs {missing >> 20} MiB more, {max(0, left - others) >> 20} MiB are left"
                raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {reason}")
            _CLAIMING.add(self)

    def give_back(self) -> None:
        """Free the memory in all processes; its content is lost. No process may be writing to it."""
        os.ftruncate(self.descriptor, 0)
        os.ftruncate(self.descriptor, self.size)

    @property
    def missing(self) -> int:
        """Bytes of memory that are not allocated yet."""
        return max(0, self.size - self.allocated)

    @property
    def allocated(self) -> int:
        """Bytes of memory that are allocated."""
        return os.fstat(self.descriptor).st_blocks * 512

    def prefault(self) -> None:
        """Map all pages into this process; on kernels without support, they are mapped on first write."""
        mapped = self._mapped()
        anchor = ctypes.c_char.from_buffer(mapped)
        start = ctypes.addressof(anchor)
        for at in range(0, self.size, _PREFAULT):
            length = min(_PREFAULT, self.size - at)
            # mmap.madvise() would hold the GIL.
            if _libc().madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
                code = ctypes.get_errno()
                if code in _UNSUPPORTED:
                    return
                raise OSError(code, os.strerror(code))

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, self.size)
            # A forked child does not need the mapping, and would keep the memory.
            self._map.madvise(mmap.MADV_DONTFORK)
        return self._map


_CLAIMS = threading.Lock()
_CLAIMING: set[Slot] = set()
"""Slots of this process that are being allocated."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
