"""Migrate a job to another job dir, for example in another cloud: copy the files that its next attempt needs.

Code, agent and job.json are copied first, then the newest intact checkpoint, its metrics, and the outputs so far. If
the last job dir holds no intact checkpoint, one from an earlier job dir is copied. Logs and other records of earlier
attempts are not copied. Each step is idempotent, so an interrupted migration can be resumed.
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
    """Result of a migration."""

    copied_job: bool
    """True: code, agent and job.json have been copied; False: the new job dir had them already."""
    checkpoints: tuple[Transferred, ...]
    """Checkpoint of each training (several if each node trains separately); empty: there is none to resume from."""
    damaged: tuple[str, ...]
    """Reasons why damaged checkpoints were skipped, each with the checkpoint's name. A checkpoint that was marked as
    damaged before is tried, and listed here, only if there is no other intact checkpoint."""


@dataclass(slots=True)
class _Training:
    """The checkpoints of one training, over all job dirs of the job."""

    found: Transferred | None = None
    damaged: Damaged = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """True if there are checkpoints, and every one that was tried is damaged."""
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
    """Copy the files that the next attempt needs to resume the training to `target`.

    sources     job dirs of the earlier attempts, newest first; `target` may be one of them
    attempt     number of the attempt that will resume
    keep_going  polled during the copy; False: cancel with InterruptedCopyError
    on_begin    called with each checkpoint before it is copied
    on_copied   called after each object

    Raises JobDirError, InterruptedCopyError; AllDamagedError if every checkpoint of a training is damaged and the job's
    checkpoint.on_damage is not "restart".
    """
    copiers = [Copier(source, target, keep_going, on_copied) for source in sources]
    copied_job = _furnish(copiers[0])
    found = _transfer_each(copiers, attempt, on_begin)
    lost = {folder: one for folder, one in found.items() if one.is_lost}
    if lost and _on_damage(copiers[0].source) != "restart":
        places = dict.fromkeys(f"{url}/{folder}" for folder, one in lost.items() for url, _ in one.damaged)
        raise AllDamagedError(", ".join(places), [reason for one in lost.values() for reason in one.reasons()])
    _copy_outputs(copiers[0])
    checkpoints = tuple(one.found for one in found.values() if one.found is not None)
    return Moved(copied_job, checkpoints, tuple(reason for one in found.values() for reason in one.reasons()))


def _transfer_each(
    copiers: Sequence[Copier], attempt: int, on_begin: Callable[[Transferred], None]
) -> dict[str, _Training]:
    """Copy the newest intact checkpoint of each training; return the trainings by folder."""
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
    """Copy code and agent, then job.json, which marks them as complete; return False if the target has them already.

    Raises JobDirError if the target holds another job.
    """
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
    """Copy each output that is missing in the target, has another size there, or is newer in the source."""
    there = {entry.key: entry for entry in copier.target.entries("outputs")}
    for entry in copier.source.entries("outputs"):
        known = there.get(entry.key)
        if known is None or known.size != entry.size or known.modified < entry.modified:
            copier.copy(entry)


def _on_damage(job_dir: JobDir) -> str:
    """Return the job's checkpoint.on_damage: "stop" or "restart". Raises JobDirError."""
    return JobRecord.from_bytes(job_dir.get(JOB_KEY, JobRecord.MOST_BYTES)).checkpoint_on_damage
