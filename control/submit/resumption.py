"""A further run of an ended job, in the same job dir: from its newest checkpoint or, with `start_over`, without it.

Everything is written before the job's row, under names of its content: what a killed command leaves is harmless, and
the same command can be given again. The row is changed last, in one transaction.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...jobspecs.targets import CLUSTER, info
from ...protocol.jobdir import JOB_KEY, JobDir, JobDirError, JobRecord, RecordError, read_job, run_key
from ...protocol.logs.format import attempt_numbers
from ...storage.urls import local_folder
from ..errors import NotEndedError, ResumeError
from ..reconcile.steps.migration import used_job_dirs
from ..secrets.sources import files_of
from ..store.model import Run
from .submission import (
    bucket_of,
    from_this_shell,
    job_dir_url,
    job_record,
    masked,
    policy_of,
    program_of,
    submitted_sources,
)
from .upload import Uploader

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec, Overrides
    from ...jobspecs.loading.overrides import Override
    from ...jobspecs.models import JobSpec
    from ...jobspecs.plan import Offer
    from ...runtime.checkpoint_copy import Saved
    from ..store.model import Attempt, JobRow
    from .upload import ProgressCallback

_SHOWN_STEPS = 5
"""Maximum number of steps that a message lists."""
_FIXED = {
    "name": "the job keeps its name, which its id and folder contain",
    "job_dir": "the job stays in its folder; `cloudgpu submit FILE --from JOB` starts a new job elsewhere from a copy",
    "code": "the job keeps its code, unless --code names the folder to ship instead",
}
"""Keys of the job file that a further run cannot change, and why."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A further run of a job, as asked for. Nothing has been written yet."""

    row: JobRow
    attempts: tuple[Attempt, ...]
    loaded: LoadedSpec
    """The job with its changes; its job_dir is that of the job's folder, as a URL."""
    record: JobRecord
    """Record of the last run."""
    code: Path | None
    """Folder to ship; None: the job keeps its code."""
    start_over: bool
    saved: Saved
    """Checkpoints from which it could go on."""
    cluster: str | None
    """Cluster of the last run, on which this one belongs too; None: there is none, or the changes name a cloud."""

    @property
    def spec(self) -> JobSpec:
        return self.loaded.spec

    @property
    def step(self) -> int | None:
        """Step of the newest checkpoint, from which the training goes on; None: it begins with step 0."""
        return self.saved.steps[0] if self.saved.steps and not self.start_over else None

    @property
    def sources(self) -> dict[str, str]:
        """Sources of secrets that only this computer can read, with absolute paths. Raises SubmitError.

        An unchanged source keeps the path of the first submission; a changed one begins in the working directory.
        """
        before, now = self.row.spec.get("secrets") or {}, submitted_sources(self.loaded)
        known = self.row.policy.secrets
        unchanged = {name for name in known if before.get(name) == self.spec.secrets.get(name)}
        return {name: known[name] if name in unchanged else source for name, source in now.items()}

    @property
    def folder(self) -> str:
        """URL of the job's folder that its newest machines used."""
        return used_job_dirs(self.row, self.attempts)[0]

    def describe_start(self) -> str:
        """Return where the training begins, as a sentence."""
        if self.step is not None:
            return f"goes on from the checkpoint of step {self.step:,}"
        if self.saved.steps:
            return f"starts over, without the {self._dropped()}"
        return "starts from the beginning: it has saved no checkpoint"

    def describe_loss(self) -> str:
        """Return what becomes of the checkpoints that `start_over` drops; "": there are none."""
        if not self.start_over or not self.saved.steps:
            return ""
        return (
            f"the {self._dropped()} ({self.saved.size / 1e6:,.1f} MB) will never be restored again, and are removed as "
            f"new ones take their place; to keep one, first: cloudgpu submit FILE --from {self.row.id}@STEP"
        )

    def _dropped(self) -> str:
        steps = [f"{step:,}" for step in reversed(self.saved.steps)]
        listed = ", ".join(steps) if len(steps) <= _SHOWN_STEPS else f"{steps[0]} to {steps[-1]}"
        return f"checkpoint{'s' * (len(steps) != 1)} of step {listed}"


def draft(
    row: JobRow,
    attempts: Sequence[Attempt],
    overrides: Overrides = (),
    *,
    code: Path | None = None,
    start_over: bool = False,
) -> Resumption:
    """Return a further run of an ended job, with changes. Raises NotEndedError, ResumeError, JobDirError, SpecError."""
    from ...jobspecs.loading.overrides import parse_overrides

    if row.ended is None:
        raise NotEndedError(f"{row.id} is {row.state}: only a job that has ended can be resumed")
    if row.is_removed:
        raise ResumeError(f"the files of {row.id} are removed: there is nothing to go on with")
    folder = used_job_dirs(row, attempts)[0]
    job_dir = JobDir(folder, make=False)
    record = _read_record(row, job_dir)
    changes = parse_overrides(overrides)
    loaded = _load(row, record, changes, code)
    saved = _survey(row, job_dir)
    _check_nodes(row, loaded.spec, saved, start_over=start_over)
    if row.spent is None and loaded.spec.limits.cost is not None:
        raise ResumeError(f"limits.cost cannot be kept: what {row.id} has cost so far is unknown")
    cluster = None if any(map(_names_cloud, changes)) else row.cluster
    return Resumption(row, tuple(attempts), loaded, record, code, start_over, saved, cluster)


def _names_cloud(change: Override) -> bool:
    """Return whether a change says on which clouds the job may run."""
    if change.path == ("resources",):
        return isinstance(change.value, Mapping) and "cloud" in change.value
    return change.path[:2] == ("resources", "cloud")


def _read_record(row: JobRow, job_dir: JobDir) -> JobRecord:
    """Return the record of the last run. Raises ResumeError, JobDirError."""
    try:
        found = read_job(job_dir, row.job_sha256)
        if found is None:
            raise ResumeError(f"the job dir of {row.id} is gone: there is no {job_dir.url}/{JOB_KEY}")
        if hashlib.sha256(found).hexdigest() != row.job_sha256:
            raise ResumeError(f"{job_dir.url}/{JOB_KEY} is not the one that was submitted: {row.id} cannot go on")
        return JobRecord.from_bytes(found)
    except RecordError as error:
        raise ResumeError(f"{row.id} cannot go on: {error}") from error


def _survey(row: JobRow, job_dir: JobDir) -> Saved:
    """Return what the job has saved. Raises ResumeError if its folder was used by something else, JobDirError."""
    from ...runtime.checkpoint_copy import survey

    saved = survey(job_dir, row.run.progress_since)
    newest = max([saved.newest_attempt, *attempt_numbers(job_dir)])
    if newest > row.attempt:
        raise ResumeError(
            f"{job_dir.url} is in use elsewhere: it has an attempt {newest}, and here {row.id} had {row.attempt}. It "
            "belongs to the store, or the training, that began it"
        )
    return saved


def _check_nodes(row: JobRow, spec: JobSpec, saved: Saved, *, start_over: bool) -> None:
    """Raise ResumeError if machines that train separately, each with its own checkpoints, would change in number."""
    from ...jobspecs.models import JobSpec

    def counts(of: JobSpec) -> dict[str, int]:
        return {str(name): role.nodes for name, role in of.effective_roles().items()}

    before = JobSpec.from_stored(row.spec)
    if saved.trainings > 1 and not start_over and counts(spec) != counts(before):
        raise ResumeError(
            f"the {saved.trainings} nodes of {row.id} train separately, each from its own checkpoint: their number "
            "cannot change, except with --start-over"
        )


# -- the job with its changes


def _load(row: JobRow, record: JobRecord, changes: Sequence[Override], code: Path | None) -> LoadedSpec:
    """Return the job of the last run with the changes, validated like a job file. Raises ResumeError, SpecError."""
    from ...jobspecs.job_file import to_text
    from ...jobspecs.loading.loader import load_text
    from ...jobspecs.loading.overrides import Override
    from ...jobspecs.models import JobSpec

    _refuse_fixed(row, changes)
    stored = {**row.spec, **({"env": record.env} if record.env else {})}  # the store masks the values
    before = JobSpec.from_stored(stored)
    if code is not None:
        changes = [*changes, Override(("code",), str(code.absolute()), "--code")]
    base = before.model_copy(update={"code": None, "job_dir": _job_dirs(row, before)})
    loaded = load_text(to_text(base), row.id, changes)
    return loaded if code is not None else loaded._replace(spec=loaded.spec.model_copy(update={"code": before.code}))


def _refuse_fixed(row: JobRow, changes: Sequence[Override]) -> None:
    for change in changes:
        key = str(change.path[0])
        if key in _FIXED and change.value != row.spec.get(key):
            raise ResumeError(f"{change.label}: {key} cannot be changed: {_FIXED[key]}")


def _job_dirs(row: JobRow, spec: JobSpec) -> str | dict[str, str]:
    """Return the job_dir whose folder of this job is the existing one; of several clouds, also those not used yet."""
    known = _known_dirs(row)
    if not known:
        return _parent(row.job_dir)
    others = spec.job_dir if isinstance(spec.job_dir, Mapping) else {}
    # A job file names no clusters: on one, a job uses the folder of the cluster's cloud.
    return {**others, **{cloud: _parent(url) for cloud, url in known.items() if cloud != CLUSTER}}


def _known_dirs(row: JobRow) -> dict[str, str]:
    """Return cloud -> URL of the job's folder there; empty: it has one folder for all clouds."""
    if row.policy.job_dirs or not isinstance(row.spec.get("job_dir"), Mapping):
        return row.policy.job_dirs
    return {offer.cloud: row.job_dir for offer in row.offers}  # several were named, and one was used so far


def _parent(url: str) -> str:
    folder = local_folder(url)
    return url.rpartition("/")[0] if folder is None else folder.parent.as_uri()


# -- writing


def prepare(resumption: Resumption, offers: list[Offer], on_progress: ProgressCallback) -> JobRow:
    """Upload what the run needs; return the job's row for it, which is not stored yet.

    Raises ResumeError, JobDirError, StoreError.
    """
    row, loaded = resumption.row, resumption.loaded
    clouds = list(dict.fromkeys(offer.cloud for offer in offers))
    urls = {cloud: _url(row, loaded, cloud) for cloud in clouds}
    url = resumption.folder
    bucket = bucket_of(url)
    try:
        for other in set(urls.values()) - {url}:
            JobDir(other).list("code")  # detect a missing bucket now, before machines run
        uploader = Uploader(url, on_progress, bucket, make=False)  # a folder that was removed is not made again
        sources = resumption.sources
        code = resumption.record.code if resumption.code is None else uploader.code(resumption.code, files_of(sources))
        agents = uploader.agents(offers)
        on_progress("submitting", 0, 0)
        data = _record(resumption, offers, code).to_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        JobDir(url, make=False, bucket=bucket).put(run_key(sha256), data)
    except JobDirError:
        if bucket is not None:
            bucket.reconnect()  # the next submission reads the credentials again
        raise
    policy = policy_of(loaded.spec, offers, urls, agents, sources)
    job_dirs = {**_known_dirs(row), **urls}
    if row.policy.job_dirs or len(set(job_dirs.values())) > 1:
        policy = dataclasses.replace(policy, job_dirs=job_dirs)
    now = max(time.time(), row.updated)
    return dataclasses.replace(
        row,
        state="queued",
        goal="run",
        cause="",
        reason="",
        exit_code=None,
        spec=masked(loaded.spec.to_stored()),
        policy=policy,
        offers=tuple(offers),
        job_sha256=sha256,
        round=0,
        waits=0,
        waiting_since=None,
        not_before=0.0,
        updated=now,
        ended=None,
        run=_next_run(resumption, now),
    )


def _next_run(resumption: Resumption, now: float) -> Run:
    row = resumption.row
    return Run(
        number=row.run.number + 1,
        begun=now,
        after_attempt=row.attempt,
        spent_before=row.run.spent_before if row.spent is None else row.spent,
        progress_since=row.attempt + 1 if resumption.start_over else row.run.progress_since,
    )


def _record(resumption: Resumption, offers: Sequence[Offer], code: str | None) -> JobRecord:
    """Return the run's record. On this machine the job keeps the variables of the shell that submitted it."""
    row, spec, before = resumption.row, resumption.spec, resumption.record
    record = job_record(row.id, spec, program_of(spec), code)
    shell: dict[str, Any] = {"search_path": before.search_path, "submitter_env": before.submitter_env}
    if before.search_path is None and any(info(offer.cloud).is_here for offer in offers):
        shell = from_this_shell(spec)
    return dataclasses.replace(record, **shell, source=before.source, run_number=row.run.number + 1)


def _url(row: JobRow, loaded: LoadedSpec, cloud: str) -> str:
    """Return the URL of the job's folder for a cloud; of several, that of a cloud not used yet is new."""
    known = _known_dirs(row)
    if not known:
        return row.job_dir
    return known.get(cloud) or job_dir_url(loaded, loaded.spec.job_dir_on(cloud), row.id)
