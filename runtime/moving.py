"""A job moves to another job dir, in another cloud say: what its next attempt needs there is copied.

First what any attempt needs (code, agent, job.json), then what the program goes on from: the newest checkpoint, its
metrics, the outputs so far. Where the job worked last none may be whole: then it is one that is left from before. Logs
and all else that only tells of earlier attempts stays where it was written. Each step may be repeated, and goes on
where it was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .checkpoint.transfer import Transferred, transfer
from .copying import Copier, InterruptedCopyError
from .jobdir import JOB_KEY, JobDir, JobDirError
from .metrics import trainings

__all__ = ["InterruptedCopyError", "Moved", "Transferred", "move"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What the program finds in the new job dir."""

    furnished: bool
    """Code, agent and job.json have been copied; False: they were there already."""
    checkpoints: tuple[Transferred, ...]
    """One, or one for each node where each trains for itself; empty: there is none to go on from."""
    damaged: tuple[str, ...]
    """Checkpoints that were passed over, and why."""


def move(
    sources: Sequence[JobDir],
    target: JobDir,
    attempt: int,
    *,
    keep_going: Callable[[], bool],
    on_begin: Callable[[Transferred], None],
    on_copied: Callable[[], None],
) -> Moved:
    """See to it that the attempt can begin in `target` where the last one ended.

    `sources`: where the job has worked, the newest first; `target` may be one of them.
    `on_begin` is told of each checkpoint that is about to be copied; `on_copied` is called whenever an object has come
    over. Raises JobDirError, InterruptedCopyError.
    """
    copiers = [Copier(source, target, keep_going, on_copied) for source in sources]
    furnished = _furnish(copiers[0])
    checkpoints: list[Transferred] = []
    damaged: list[str] = []
    for copier in copiers:
        for folder in trainings(copier.source):
            found, passed_over = transfer(folder, copier, attempt, on_begin)
            checkpoints += [found] if found is not None else []
            damaged += passed_over
        if checkpoints:
            break
    _copy_outputs(copiers[0])
    return Moved(furnished, tuple(checkpoints), tuple(damaged))


def _furnish(copier: Copier) -> bool:
    """Whether there was anything to do. job.json last: with it there, a machine can start."""
    described = copier.source.get(JOB_KEY)
    if copier.target.find(JOB_KEY) == described:
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
