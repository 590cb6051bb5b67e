"""Memory that this process can still allocate before Linux's OOM killer, or a cgroup's, ends a process."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Return the bytes that can be allocated without an OOM kill; None if the kernel does not report them."""
    limits = [limit for limit in (_of_machine(), _of_cgroup()) if limit is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_cgroup() -> int | None:
    """Return the fewest bytes that are left in any cgroup (version 2) of this process; None if there is no limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = _CGROUPS / own.lstrip("/")
    folders = [folder, *folder.parents]
    left = [_left_in(group) for group in folders if group.is_relative_to(_CGROUPS)]
    return min((each for each in left if each is not None), default=None)


def _left_in(group: Path) -> int | None:
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        if limit == "max":
            return None
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Inactive file pages are reclaimed before the OOM killer acts.
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
