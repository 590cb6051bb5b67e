"""Migration of a job to another cloud: its state is copied into the job dir there before machines are requested.

Without the copy, the program would restart from scratch because its machines cannot reach the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import StoreError
from ...store.model import Attempt, JobRow
from ..decisions import wanted_end
from .context import AttemptContext

if TYPE_CHECKING:
    from ....runtime.migration import Moved, Transferred

log = logging.getLogger("cloudgpu.supervisor")

LOOK_S = 5.0
"""Minimum seconds between two checks, while copying, whether the job should still continue."""


def used_job_dirs(job: JobRow, attempts: Sequence[Attempt]) -> list[str]:
    """Return the URLs of the job's folders for which machines were requested, newest first. The first has the newest
    checkpoint, metrics and outputs. Before the first request, return the folder of the submission.

    `attempts`: in order. Attempts that requested no machines are ignored: their folders have only copies.
    """
    ran = [job.dir_on(one.offer.cloud) for one in reversed(attempts) if one.launched is not None]
    return list(dict.fromkeys(ran)) or [job.job_dir]


class CloudMigrator:
    """Copies the job's state into the job dir that the attempt about to begin will use."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def left_dir(self) -> str:
        """Return the URL of the job dir that the job used before this attempt, which is its own if it does not move."""
        return used_job_dirs(self._context.job, self._earlier())[0]

    def move_in(self) -> str | None:
        """Copy the job's state into the attempt's job dir and return the event's message, "" for none.

        None: copying was interrupted because the job must end or belongs to another supervisor. Raises JobDirError,
        AllDamagedError.
        """
        context, earlier = self._context, self._earlier()
        worked, here = used_job_dirs(context.job, earlier), context.job.dir_on(context.attempt.offer.cloud)
        left = worked[0]
        if left == here:
            return ""
        has_trained = any(one.launched is not None for one in earlier)
        context.memory.moving = context.attempt.number if has_trained else 0
        moved = self._copy(worked, here)
        if moved is None:
            return None
        if has_trained:
            message = _describe(moved, left, here)
            if moved.damaged:
                log.warning("%s: %s", context.job.id, message)
            return message
        return f"code copied from {left} to {here}" if moved.copied_job else ""

    def _copy(self, worked: Sequence[str], here: str) -> Moved | None:
        """Copy from the first of `worked` that has the needed objects; None: copying was interrupted."""
        from ....runtime.migration import InterruptedCopyError, move

        context, memory, number = self._context, self._context.memory, self._context.attempt.number

        def begin(checkpoint: Transferred) -> None:
            if memory.copying == number:
                return
            memory.copying = number
            what = f"the checkpoint of step {checkpoint.step}, {_size(checkpoint.size)}"
            message = f"copying {what}, from {checkpoint.source} to {here}"
            log.info("%s: %s", context.job.id, message)
            context.tools.store.add_event(context.job, "moving", message, context.time())

        def copied() -> None:
            memory.copied = context.tools.clock.monotonic()

        try:
            return move(
                [context.open_dir(url) for url in worked],
                context.open_dir(here),
                number,
                keep_going=self._is_wanted(),
                on_begin=begin,
                on_copied=copied,
            )
        except InterruptedCopyError:
            return None

    def _is_wanted(self) -> Callable[[], bool]:
        """Return a predicate that is False once the attempt should not continue. It queries the store every LOOK_S,
        because copying may take hours."""
        context, clock = self._context, self._context.tools.clock
        looked = clock.monotonic()

        def is_wanted() -> bool:
            nonlocal looked
            if clock.monotonic() - looked < LOOK_S:
                return True
            looked = clock.monotonic()
            try:
                job = context.tools.store.job(context.job.id)
            # Continue: if the store stays down, the next write fails. A concurrent copy writes equal objects.
            except StoreError:
                return True
            mine = job is not None and job.lease_owner == context.tools.owner
            return job is not None and mine and wanted_end(job, context.attempt, context.time()) is None

        return is_wanted

    def _earlier(self) -> list[Attempt]:
        return [one for one in self._context.attempts() if one.number < self._context.attempt.number]


def _describe(moved: Moved, left: str, here: str) -> str:
    """Return an event's message about what was copied."""
    passed_over = f"; skipped as damaged: {', '.join(moved.damaged)}" if moved.damaged else ""
    if not moved.checkpoints and moved.damaged:
        return f"every checkpoint is damaged: the program starts over in {here}{passed_over}"
    if not moved.checkpoints:
        return f"no checkpoint in {left}: the program starts over in {here}{passed_over}"
    steps = sorted({one.step for one in moved.checkpoints})
    of = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    many = len(moved.checkpoints)
    what = f"checkpoint of {of}" if many == 1 else f"{many} nodes' checkpoints of {of}"
    size = _size(sum(one.size for one in moved.checkpoints))
    if not any(one.copied for one in moved.checkpoints):
        return f"{what}, {size}, {'is' if many == 1 else 'are'} in {here} already{passed_over}"
    return f"{what} copied from {moved.checkpoints[0].source} to {here}, {size}{passed_over}"


def _size(size: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, bytes_in_it in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_in_it:
            return f"{size / bytes_in_it:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
