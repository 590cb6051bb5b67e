"""The job from whose checkpoint a new one starts: `cloudgpu submit FILE --from JOB[@STEP]`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobDirError, JobRecord, RecordError, attempt_key
from ...protocol.logs.format import attempt_numbers
from ..errors import SubmitError
from ..reconcile.steps.migration import used_job_dirs
from ..store.model import Source

if TYPE_CHECKING:
    from ..store.model import Attempt, JobRow
    from .upload import ProgressCallback

log = logging.getLogger("cloudgpu.submit")

_STEP = re.compile(r"(.+)@(\d{1,15})", re.ASCII | re.DOTALL)
_ID = re.compile("[a-z][a-z0-9-]{0,99}")
_SHOWN_STEPS = 8


@dataclass(frozen=True, slots=True)
class Origin:
    """A job with checkpoints, of which one is to be copied."""

    job: str
    """Id."""
    folders: tuple[JobDir, ...]
    """Its job dirs, that of the newest attempt first."""
    since: int
    """Number of the first attempt whose checkpoints may be restored; see Run.progress_since."""
    step: int | None
    """None: the newest."""

    def check(self) -> None:
        """Raise SubmitError if there is no such checkpoint. Called before anything is uploaded."""
        if self.step in self._steps() or (self.step is None and self._steps()):
            return
        raise SubmitError(self._missing())

    def copy_to(self, target: JobDir, on_progress: ProgressCallback) -> Source:
        """Copy the checkpoint into a new job's folder. Raises SubmitError if there is no intact one, JobDirError."""
        from ...runtime.checkpoint_copy import copy_checkpoints

        def on_bytes(done: int, total: int) -> None:
            on_progress("copying checkpoint", done, total)

        for folder in self.folders:
            found = copy_checkpoints(folder, target, step=self.step, since=self.since, on_bytes=on_bytes)
            if found is not None:
                for reason in found.skipped:
                    log.warning("passed over a damaged checkpoint: %s", reason)
                return Source(self.job, folder.url, found.step)
        raise SubmitError(f"every checkpoint of {self.job} is damaged, or was removed meanwhile: none was copied")

    def _steps(self) -> Sequence[int]:
        """Return the steps of the checkpoints, newest first."""
        from ...runtime.checkpoint_copy import survey

        found = [step for folder in self.folders for step in survey(folder, self.since).steps]
        return list(dict.fromkeys(found))

    def _missing(self) -> str:
        steps = self._steps()
        if not steps:
            return f"{self.job} has saved no checkpoint in {self.folders[0].url}: there is nothing to start from"
        shown = ", ".join(map(str, steps[:_SHOWN_STEPS])) + (", ..." if len(steps) > _SHOWN_STEPS else "")
        return f"{self.job} has no checkpoint of step {self.step}; it has: {shown}"


def split_step(text: str) -> tuple[str, int | None]:
    """Split JOB[@STEP]."""
    match = _STEP.fullmatch(text)
    return (match[1], int(match[2])) if match else (text, None)


def of_row(row: JobRow, attempts: Sequence[Attempt], step: int | None) -> Origin:
    """Return a job of the store as origin. Raises SubmitError."""
    if row.is_removed:
        raise SubmitError(f"the files of {row.id} are removed: there is nothing to start from")
    folders = tuple(JobDir(url, make=False) for url in used_job_dirs(row, attempts))
    return _checked(Origin(row.id, folders, row.run.progress_since, step))


def of_url(url: str, step: int | None) -> Origin:
    """Return the job of a folder as origin, without this computer's store. Raises SubmitError, JobDirError."""
    try:
        folder = JobDir(url, make=False)
    except JobDirError as error:
        raise SubmitError(f"--from: {error}") from error
    try:
        record = JobRecord.read(folder, JOB_KEY)
        numbers = attempt_numbers(folder)
        newest = AttemptRecord.read(folder, attempt_key(numbers[-1])) if numbers else None
    except RecordError as error:
        raise SubmitError(f"--from {url}: {error}") from error
    if record is None:
        raise SubmitError(f"{url} is no job's folder: there is no {JOB_KEY}")
    if not _ID.fullmatch(record.job_id):
        raise SubmitError(f"--from {url}: its {JOB_KEY} has an invalid job_id, {record.job_id!r:.80}")
    return _checked(Origin(record.job_id, (folder,), 0 if newest is None else newest.progress_since, step))


def _checked(origin: Origin) -> Origin:
    try:
        origin.check()
    except JobDirError as error:
        raise SubmitError(f"the checkpoints of {origin.job} cannot be read: {error}") from error
    return origin
