"""A job that is about to go on in another cloud: what it has come to is copied into the job dir there, before any
machine is asked for. A program never begins anew because its checkpoint lies where its machines cannot reach it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..store.model import Attempt, JobRow
from .decisions import wanted_end
from .job_step import JobStep

if TYPE_CHECKING:
    from ...runtime.moving import Moved, Transferred

log = logging.getLogger("cloudgpu.supervisor")

LOOK_S = 5.0
"""So often it is looked, while copying, whether the job is to go on at all."""


def worked_dirs(job: JobRow, attempts: Sequence[Attempt]) -> list[str]:
    """URLs of the job's folders where machines were asked for, the newest first: there are its newest checkpoint,
    metrics and outputs. Before the first were, it is where the job was submitted to.

    `attempts`: in order. One that got nothing does not count, though all was copied for it: there it is as well.
    """
    ran = [job.dir_on(one.offer["cloud"]) for one in reversed(attempts) if one.launched is not None]
    return list(dict.fromkeys(ran)) or [job.job_dir]


class Moving(JobStep):
    """Moves the job in where its attempt is about to begin."""

    def _left_dir(self, attempt: Attempt) -> str:
        """Where the job comes from; the attempt's own job dir, if it does not move."""
        return worked_dirs(self._job, self._earlier(attempt))[0]

    def _move_in(self, attempt: Attempt) -> str | None:
        """Copy what the job has come to into the attempt's job dir, and return the event's message, "" for none.

        None: copying was broken off, for the job has something else to do. Raises JobDirError, AllDamagedError.
        """
        earlier = self._earlier(attempt)
        worked, here = worked_dirs(self._job, earlier), self._job.dir_on(attempt.offer["cloud"])
        left = worked[0]
        if left == here:
            return ""
        has_trained = any(one.launched is not None for one in earlier)
        self._memory.moving = attempt.number if has_trained else 0
        from ...runtime.moving import InterruptedCopyError, move

        def begin(checkpoint: Transferred) -> None:
            if self._memory.copying == attempt.number:
                return
            self._memory.copying = attempt.number
            what = f"the checkpoint of step {checkpoint.step}, {_size(checkpoint.size)}"
            message = f"copying {what}, from {checkpoint.source} to {here}"
            log.info("%s: %s", self._job.id, message)
            self._tools.store.add_event(self._job, "moving", message, self._memory.time.now())

        def copied() -> None:
            self._memory.copied = self._tools.clock.monotonic()

        try:
            moved = move(
                [self._open_dir(url) for url in worked],
                self._open_dir(here),
                attempt.number,
                keep_going=self._is_wanted(attempt),
                on_begin=begin,
                on_copied=copied,
            )
        except InterruptedCopyError:
            return None
        self._now = self._memory.time.now()  # hours may have passed; what is paid for begins now
        if has_trained:
            message = _describe(moved, left, here)
            if moved.damaged:
                log.warning("%s: %s", self._job.id, message)
            return message
        return f"code copied from {left} to {here}" if moved.furnished else ""

    def _is_wanted(self, attempt: Attempt) -> Callable[[], bool]:
        """Return whether the attempt is to go on; looked up now and then, for copying may take hours."""
        clock, looked = self._tools.clock, self._tools.clock.monotonic()

        def is_wanted() -> bool:
            nonlocal looked
            if clock.monotonic() - looked < LOOK_S:
                return True
            looked = clock.monotonic()
            try:
                job = self._tools.store.job(self._job.id)
            except StoreError:  # it answers again, or the next write says so; whoever else copies copies the same
                return True
            mine = job is not None and job.lease_owner == self._tools.owner
            return job is not None and mine and wanted_end(job, attempt, self._memory.time.now()) is None

        return is_wanted

    def _earlier(self, attempt: Attempt) -> list[Attempt]:
        return [one for one in self._tools.store.attempts(self._job.id) if one.number < attempt.number]


def _describe(moved: Moved, left: str, here: str) -> str:
    """Return an event's message about what was moved."""
    passed_over = f"; passed over as damaged: {', '.join(moved.damaged)}" if moved.damaged else ""
    if not moved.checkpoints and moved.damaged:
        return f"every checkpoint is damaged: the program begins anew in {here}{passed_over}"
    if not moved.checkpoints:
        return f"no checkpoint in {left}: the program begins anew in {here}{passed_over}"
    steps = sorted({one.step for one in moved.checkpoints})
    of = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    many = len(moved.checkpoints)
    what = f"checkpoint of {of}" if many == 1 else f"{many} nodes' checkpoints of {of}"
    size = _size(sum(one.size for one in moved.checkpoints))
    if not any(one.copied for one in moved.checkpoints):
        return f"{what}, {size}, {'is' if many == 1 else 'are'} in {here} already{passed_over}"
    return f"{what} copied from {moved.checkpoints[0].source} to {here}, {size}{passed_over}"


def _size(size: int) -> str:
    """Bytes as people read them."""
    for unit, bytes_in_it in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_in_it:
            return f"{size / bytes_in_it:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
