"""Slots of this machine: they limit the concurrent nodes of jobs without GPUs, for each state directory.

All agents of a launch hold the lock files of its slots; the kernel frees them when the last agent has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...jobspecs.home import private
from ..base import NodeRequest, ProvisionError
from ..shared.locks import try_lock

SLOTS_VARIABLE = "CLOUDGPU_LOCAL_SLOTS"
"""Environment variable with the number of slots; default: the cores that this process may use."""
_MOST_SLOTS = 1_000
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def cores(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Return the number of CPU cores that this process may use, at least 1, by its affinity and its cgroups' quotas."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *_quotas(membership, cgroups)])))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the process's cgroups and all above them, version 1 and 2 (cgroups(7))."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = membership.read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = cgroups / "cpu" if controllers else cgroups
        own = PurePosixPath(path.lstrip("/"))
        for part in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = _quota(mount / part, version=1 if controllers else 2)
                if quota > 0:
                    yield quota / period


def _quota(folder: Path, *, version: int) -> tuple[int, int]:
    """Return a cgroup's quota and period in microseconds. Raises OSError and ValueError if there is no quota."""
    if version == 1:
        return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota), int(period)


def slots() -> int:
    """Return the number of slots. Raises ProvisionError (invalid)."""
    text = os.environ.get(SLOTS_VARIABLE)
    if not text:
        return cores()
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= _MOST_SLOTS):
        expected = f"expected a whole number from 1 to {_MOST_SLOTS:,}"
        raise ProvisionError("invalid", f"{SLOTS_VARIABLE}={text}: {expected}", scope="cloud")
    return int(text)


def slots_of(nodes: Sequence[NodeRequest]) -> int:
    """Return the number of slots that a launch needs: one for each node, at most all; 0 with GPUs. Raises
    ProvisionError."""
    return 0 if any(node.accelerator for node in nodes) else min(len(nodes), slots())


def slot_shortage(nodes: Sequence[NodeRequest], ahead: int, folder: Path) -> str:
    """Return why the nodes cannot have their slots now, if `ahead` slots are kept for other jobs; "": they can.

    Raises ProvisionError, OSError.
    """
    count = slots_of(nodes)
    if not count:
        return ""
    free = _count_free(folder)
    if ahead and free - ahead < count:
        return f"{_wants(count)}; jobs ahead of it in the queue wait for slots as well"
    return f"{_wants(count)}, {free} are free" if free < count else ""


@contextlib.contextmanager
def hold_slots(count: int, folder: Path) -> Iterator[list[int]]:
    """Context manager: hold `count` slots, all or none; yield their descriptors. A process that inherits
    a descriptor keeps its slot.

    Raises ProvisionError (capacity), OSError.
    """
    held: list[int] = []
    try:
        if count:
            private(folder)
            with _turn(folder):
                for path in _files(folder):
                    if len(held) < count and (descriptor := try_lock(path)) is not None:
                        held.append(descriptor)
            if len(held) < count:
                raise ProvisionError("capacity", f"{_wants(count)}, {len(held)} are free")
        yield held
    finally:
        while held:
            os.close(held.pop())


def _wants(count: int) -> str:
    return f"needs {count} of this machine's {slots()} slots for jobs without GPUs"


def _files(folder: Path) -> list[Path]:
    return [folder / f"slot-{number}" for number in range(slots())]


def _count_free(folder: Path) -> int:
    if not folder.is_dir():
        return slots()
    with _turn(folder):
        return sum(_is_free(path) for path in _files(folder))


def _is_free(path: Path) -> bool:
    try:
        descriptor = try_lock(path, create=False)
    except FileNotFoundError:
        return True
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Context manager: serialize counting and locking of slots: two launches in parallel could each get too few."""
    with (folder / "lock").open("wb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
