"""How much memory this process may still take. Beyond it, Linux gives none of it back as an error: it kills."""

from __future__ import annotations

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes that can be had without a process being killed for it; None if the kernel does not say."""
    limits = [limit for limit in (_of_machine(), _of_cgroup()) if limit is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_cgroup() -> int | None:
    """The tightest limit of the control groups (version 2) that we are in: a container's, or a batch system's."""
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
        # File pages that nobody has used lately are dropped rather than anybody killed.
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
