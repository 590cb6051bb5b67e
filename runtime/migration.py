"""A job moves to another job dir, in another cloud say: what its next attempt needs there is copied.

First what any attempt needs (code, agent, job.json), then what the program goes on from: the newest checkpoint, its
metrics, the outputs so far. Where the job worked last none may be whole: then it is one that is left from before. Logs
and all else that only tells of earlier attempts stays where it was written. Each step may be repeated, and goes on
where it was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord
from ..protocol.metrics import trainings
from ..storage.copying import Copier, InterruptedCopyError
from .checkpoint.errors import AllDamagedError
from .checkpoint.restore.transfer import Damaged, Transferred, transfer

__all__ = ["AllDamagedError", "InterruptedCopyError", "Moved", "Transferred", "move"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What the program finds in the new job dir."""

    furnished: bool
    """Code, agent and job.json have been copied; False: they were there already."""
    checkpoints: tuple[Transferred, ...]
    """One, or one for each node where each trains for itself; empty: there is none to go on from."""
    damaged: tuple[str, ...]
    """Checkpoints that were passed over, and why; of those that were marked before, only where no other is whole."""


@dataclass(slots=True)
class _Training:
    """The checkpoints in one folder, in all job dirs where the job has worked."""

    found: Transferred | None = None
    damaged: Damaged = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """True where there are checkpoints, and none that was tried is whole."""
        return self.found is None and bool(self.damaged)

    def reasons(self) -> list[str]:
        return [f"{name}: {reason}" for (_, name), reason in self.damaged.items()]


def move(
    sources: Sequence[JobDir],
    target: JobDir,
    attempt: int,
    *,
    keep_going: Callable[[], bool],
    on_begin: Callable[[Transferred], None],
    on_copied: Callable[[], None],
) -> Moved:
    """Copy what the attempt needs to begin in `target` where the last one ended.

    `sources`: where the job has worked, the newest first; `target` may be one of them.
    `on_begin` is called with each checkpoint that is about to be copied; `on_copied` is called whenever an object has
    been copied. Raises JobDirError, InterruptedCopyError; AllDamagedError where every checkpoint of a training is
    damaged, unless the job's checkpoint.on_damage is "restart".
    """
    copiers = [Copier(source, target, keep_going, on_copied) for source in sources]
    furnished = _furnish(copiers[0])
    found = _transfer_each(copiers, attempt, on_begin)
    lost = {folder: one for folder, one in found.items() if one.is_lost}
    if lost and _on_damage(copiers[0].source) != "restart":
        places = dict.fromkeys(f"{url}/{folder}" for folder, one in lost.items() for url, _ in one.damaged)
        raise AllDamagedError(", ".join(places), [reason for one in lost.values() for reason in one.reasons()])
    _copy_outputs(copiers[0])
    checkpoints = tuple(one.found for one in found.values() if one.found is not None)
    return Moved(furnished, checkpoints, tuple(reason for one in found.values() for reason in one.reasons()))


def _transfer_each(
    copiers: Sequence[Copier], attempt: int, on_begin: Callable[[Transferred], None]
) -> dict[str, _Training]:
    """Copy the newest checkpoint of each training that is whole; return the trainings by folder."""
    found: dict[str, _Training] = {}
    for marked in (False, True):
        for copier in copiers:
            for folder in trainings(copier.source):
                one = found.setdefault(folder, _Training())
                if one.found is None:
                    one.found = transfer(folder, copier, attempt, one.damaged, on_begin, marked=marked)
            if any(one.found for one in found.values()) and not any(one.is_lost for one in found.values()):
                return found
    return found


def _furnish(copier: Copier) -> bool:
    """Return whether there was anything to do. job.json last: with it there, a machine can start."""
    described = copier.source.get(JOB_KEY, JobRecord.MOST_BYTES)
    if copier.target.find(JOB_KEY, JobRecord.MOST_BYTES) == described:
        return False
    for folder in ("code", "agent"):
        for entry in copier.source.entries(folder):
            copier.copy_new(entry)
    if not copier.target.create(JOB_KEY, described):
        raise JobDirError(f"{copier.target.url} holds another job already")
    return True


def _copy_outputs(copier: Copier) -> None:
    """Programs replace them: what is older there, or of another size, is copied again."""
    there = {entry.key: entry for entry in copier.target.entries("outputs")}
    for entry in copier.source.entries("outputs"):
        known = there.get(entry.key)
        if known is None or known.size != entry.size or known.modified < entry.modified:
            copier.copy(entry)


def _on_damage(job_dir: JobDir) -> str:
    """Return what the job wants done when every checkpoint is damaged. Raises JobDirError."""
    return JobRecord.from_bytes(job_dir.get(JOB_KEY, JobRecord.MOST_BYTES)).checkpoint_on_damage
