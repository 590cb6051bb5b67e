"""Disk space for checkpoints: check it, report it, and remove old checkpoints when it is short.

Object stores count as unlimited. Standard library and xxhash only, since the writer imports this module.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...protocol.checkpoint_names import Name
from ...protocol.jobdir import JobDirError
from .errors import FencedError, TransientError, UnusableError, logger
from .format.manifest import RankManifest, chunk_hash
from .restore.loading import Files
from .restore.verified_reads import open_data, retry_if_damaged
from .store import CheckpointStore, Condition

if TYPE_CHECKING:
    from .ranks import Ranks

MIN_CHECKPOINTS = 2
"""Number of checkpoints that must fit on the disk: the newest one is kept until the next is committed."""


def check_room(store: CheckpointStore, ranks: Ranks, size: int, keep: int) -> None:
    """Warn if `keep` checkpoints and the next save do not fit on the disk. Collective.

    size  bytes that this rank writes per save

    Raises TransientError if fewer than MIN_CHECKPOINTS fit.
    """
    if store.job_dir.folder is None:
        return
    total = sum(ranks.gather(size))
    warning = ranks.from_first(lambda: _warning(store, total, keep))
    if warning and ranks.rank == 0:
        logger().warning(warning)


def _warning(store: CheckpointStore, size: int, keep: int) -> str:
    """Return a warning if `keep` checkpoints and the next save do not fit, else "". `size`: bytes of a checkpoint.

    Raises TransientError if fewer than MIN_CHECKPOINTS fit.
    """
    try:
        free, good = _free(store), store.in_condition(Condition.GOOD)
        fit = (free + sum(map(store.size, good))) // max(size, 1)
        if fit > keep:
            return ""
        figures = f"a checkpoint takes {_text(size)}, and {_text(free)} are free{_others(store, good)}"
    except (JobDirError, OSError):
        return ""  # reported by the first save
    if fit < MIN_CHECKPOINTS:
        raise TransientError(
            f"{store}: the disk is too small to save to: {figures}. There must be room for {MIN_CHECKPOINTS}, since "
            "the newest is kept until the next is complete: free some, or give a folder on a larger disk"
        )
    return (
        f"{store}: {figures}. keep={keep} needs room for {keep + 1}; there is room for {fit}, so "
        f"only {fit - 1} will be kept"
    )


def make_room(store: CheckpointStore, coming: Name, size: int) -> bool:
    """Remove the oldest checkpoint to make space for a save of `size` bytes; return whether it was removed.

    A newer checkpoint is verified completely first. Nothing is removed if that fails, if all older checkpoints together
    would not free enough space, or if a newer attempt has begun.
    """
    try:
        good = store.in_condition(Condition.GOOD)
        if len(good) < MIN_CHECKPOINTS or good[0].age > coming.age:
            return False
        if _free(store) + sum(map(store.size, good[1:])) < size:
            return False
        store.check_fence(coming.attempt)
        if not any(_is_whole(store, name) for name in good[:-1]):
            return False
        store.discard(good[-1])
    except (JobDirError, FencedError, OSError):
        return False
    return True


def describe_shortage(store: CheckpointStore, size: int) -> str:
    """Return a message with the bytes that a save needs, the free space, and the checkpoints that take space."""
    try:
        good = store.in_condition(Condition.GOOD)
        stands = ". The newest checkpoint is kept until the next is complete" if good else ""
        return f"{_text(size)} are needed, and {_text(_free(store))} are free{_others(store, good)}{stands}"
    except (JobDirError, OSError):
        return f"{_text(size)} are needed"


def _others(store: CheckpointStore, good: list[Name]) -> str:
    """Return the end of a message: the number of checkpoints, and the space that damaged ones take.

    Damaged checkpoints are never removed automatically.
    """
    damaged = store.damaged()
    parts = [f" besides {len(good)} checkpoint{'s' if len(good) > 1 else ''}"] if good else []
    if damaged:
        size = _text(sum(map(store.size, damaged)))
        ones, take, them = ("one", "takes", "it") if len(damaged) == 1 else ("ones", "take", "them")
        parts.append(
            f"; {len(damaged)} damaged {ones}, kept for you to look at, {take} {size}: remove {them} when you have"
        )
    return "".join(parts)


def _free(store: CheckpointStore) -> int:
    """Return the number of bytes that this user may still write to the disk."""
    place = store.job_dir.folder
    while place is not None and not place.is_dir() and place != place.parent:
        place = place.parent
    status = os.statvfs(place or "/")
    return status.f_bavail * status.f_frsize


def _is_whole(store: CheckpointStore, name: Name) -> bool:
    """Read a whole checkpoint and return whether every byte matches its checksum."""
    try:
        files = Files(store, name, store.read_commit(name))
        for rank in range(files.world):
            _verify_data(store, name, files.manifest(rank))
    except UnusableError:
        return False
    return True


def _verify_data(store: CheckpointStore, name: Name, manifest: RankManifest) -> None:
    """Raise UnusableError if a rank's data file does not match its manifest; needs memory for one chunk."""
    data = open_data(store, name, manifest.rank, manifest.size)
    buffer = memoryview(bytearray(min(manifest.chunk_size, manifest.size)))

    def verify(number: int) -> None:
        start = number * manifest.chunk_size
        view = buffer[: manifest.size - start]
        data.read(start, [view])
        if chunk_hash(view) != manifest.chunks[number]:
            raise UnusableError(f"rank {manifest.rank}'s data differs from byte {start}", damaged=True)

    try:
        for number in range(len(manifest.chunks)):
            retry_if_damaged(lambda number=number: verify(number), data.path)  # type: ignore[misc]
    finally:
        data.close()


def _text(size: int) -> str:
    """Format a number of bytes with a decimal unit: `3.2 GB`."""
    value, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.3g} {units[0]}"
