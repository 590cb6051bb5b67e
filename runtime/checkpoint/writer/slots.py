"""Memory that trainer and writer share: anonymous, so that nothing is left of it when both are dead.

A memfd has no name; where the kernel has none, an unlinked temporary file stands in. Its pages are made once and used
again for every save: the first touch of a fresh page costs fourteen times the copy into one that is there.
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
"""Bytes made at once: whoever waits for the address space meanwhile, such as a malloc(), waits for so many only."""
_ALLOCATE = 64 << 20
"""Bytes taken at once: another process may take as many at the same time, and they are not seen in each other's sum."""
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python knows no name for it yet
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def anonymous_file(name: str, size: int = 0) -> int:
    """The descriptor of a file in memory that no other process can find. Raises OSError."""
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
    """An anonymous file that holds `content`, to be handed to another process."""
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
    """What content_file() put there; closes the descriptor."""
    with open(descriptor, "rb", buffering=0) as file:
        file.seek(0)
        return file.read()


class Slot:
    """One piece of shared memory, mapped when it is first looked at. It goes when the last reference does."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls, size: int) -> Slot:
        """Of at least `size` bytes; memory is taken when it is allocated or written to."""
        page = mmap.PAGESIZE
        return cls(anonymous_file("cloudgpu-slot", max(1, -(-size // page)) * page))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Views that are still in use keep the memory."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._map = None

    @property
    def view(self) -> memoryview:
        """The memory, writable."""
        return memoryview(self._mapped())

    def private_view(self, size: int) -> memoryview:
        """Its first `size` bytes as they are; what is written into the view stays there, and nobody else sees it."""
        if not size:
            return memoryview(bytearray())
        mapped = mmap.mmap(self.descriptor, size, access=mmap.ACCESS_COPY)
        mapped.madvise(mmap.MADV_DONTFORK)
        return memoryview(mapped)

    def leave_to_parent(self) -> None:
        """In a forked child: close it, and never unmap it. The child does not have the mapping (see _mapped()): where
        it was, memory of the child's own may be by now.
        """
        if self._map is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
        self.close()

    def allocate(self) -> None:
        """Have memory for all of it. Raises OSError if there is too little: some process would be killed for it.

        Several slots may be at it at once. Those of this process count what the others still have to take; what other
        processes take is seen piece by piece. What it has got when it fails is kept until give_back().
        """
        try:
            for at in range(0, self.size, _ALLOCATE):
                self._claim()
                os.posix_fallocate(self.descriptor, at, min(_ALLOCATE, self.size - at))
        finally:
            with _CLAIMS:
                _CLAIMING.discard(self)

    def _claim(self) -> None:
        """Raises OSError if there is not enough for this slot and for those which were there before."""
        with _CLAIMS:
            missing, left = self.missing, memory_limit.available()
            others = sum(slot.missing for slot in _CLAIMING if slot is not self)
            if missing and left is not None and missing > left - others:
                reason = f"a slot needs {missing >> 20} MiB more, {max(0, left - others) >> 20} MiB are left"
                raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {reason}")
            _CLAIMING.add(self)

    def give_back(self) -> None:
        """Take no memory any more, whoever else has it; what is in it is gone. Nobody may write to it meanwhile."""
        os.ftruncate(self.descriptor, 0)
        os.ftruncate(self.descriptor, self.size)

    @property
    def missing(self) -> int:
        """Bytes of memory that it does not take yet."""
        return max(0, self.size - self.allocated)

    @property
    def allocated(self) -> int:
        """Bytes of memory that it takes now."""
        return os.fstat(self.descriptor).st_blocks * 512

    def prefault(self) -> None:
        """Map all pages into this process; a kernel that cannot does so page by page, when they are written to."""
        mapped = self._mapped()
        anchor = ctypes.c_char.from_buffer(mapped)
        start = ctypes.addressof(anchor)
        for at in range(0, self.size, _PREFAULT):
            length = min(_PREFAULT, self.size - at)
            # Not mmap.madvise(), which holds Python's lock meanwhile.
            if _libc().madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
                code = ctypes.get_errno()
                if code in _UNSUPPORTED:
                    return
                raise OSError(code, os.strerror(code))

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, self.size)
            # A forked worker of the trainer has no business here, and would keep the memory.
            self._map.madvise(mmap.MADV_DONTFORK)
        return self._map


_CLAIMS = threading.Lock()
_CLAIMING: set[Slot] = set()
"""Slots of this process that are being allocated."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
