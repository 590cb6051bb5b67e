"""Jobs, for the command line and Python programs: submit, resume, query, wait, cancel, preempt, remove.

All calls return at once except `submit` and `resume` (they upload the code) and `Job.wait`. Errors: ControlError
(errors.py), JobDirError (protocol/jobdir.py), ProvisionError (provisioners/base.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..jobspecs.unit_text import format_duration
from .accounting import cost
from .errors import NoSuchJobError, NotRunningError, ResumeError
from .reconcile.queue import SOON_S, places
from .reconcile.steps.migration import used_job_dirs
from .store import states
from .store.model import Attempt, Event, JobRow
from .store.store import Store, open_store
from .supervisor.spawn import ensure_supervisor

if TYPE_CHECKING:
    from ..jobspecs.loading.draft import LoadedSpec, Overrides
    from ..jobspecs.models import JobSpec
    from ..jobspecs.plan import Offer, Plan
    from ..protocol.attempt_signal import WatchMark
    from ..protocol.jobdir import JobDir
    from ..protocol.logs.reader import LogReader
    from ..protocol.outputs import Outputs
    from .accounting.report import Report
    from .reconcile.node_observation import Reported
    from .submit.origin import Origin
    from .submit.resumption import Resumption
    from .submit.upload import ProgressCallback

__all__ = [
    "Job",
    "count_jobs",
    "ensure_supervisor",
    "get_job",
    "list_jobs",
    "resume",
    "submit",
]

_POLL_S = 0.2
_ENSURE_S = 3.0


class Job:
    """A job in the store. Its fields have the values of the last `refresh()`; see model.JobRow for their meaning."""

    def __init__(self, store: Store, row: JobRow, attempts: list[Attempt] | None = None) -> None:
        """Create a job from its row. `attempts`: if given, used until refresh() instead of reading the store."""
        self._store = store
        self.row = row
        self._watch_mark: WatchMark | None = None
        self._attempts = attempts
        self._found_step: int | None = None

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def state(self) -> str:
        """queued | starting | running | recovering | stopping | succeeded | failed | cancelled | stopped."""
        return self.row.state

    @property
    def done(self) -> bool:
        """True if the state is final."""
        return self.row.state in states.JOB_END

    @property
    def cause(self) -> str:
        """Cause of the state, a word for programs, e.g. "cancel", "duration", "failed", "capacity"; may be ""."""
        return self.row.cause

    @property
    def reason(self) -> str:
        """Reason for the state, a sentence for users; may be ""."""
        return self.row.reason

    @property
    def exit_code(self) -> int | None:
        """Exit code of the user's program (negative: killed by that signal); None: the job did not end by it."""
        return self.row.exit_code

    @property
    def created(self) -> float:
        """Epoch seconds."""
        return self.row.created

    @property
    def ended(self) -> float | None:
        return self.row.ended

    @property
    def next_try(self) -> float | None:
        """Epoch seconds of the next try to get machines; None: the job is not between two tries."""
        waits = not self.done and self.row.not_before > time.time()
        return self.row.not_before if waits else None

    @property
    def queue_place(self) -> int | None:
        """Position, from 1, among the waiting jobs on this machine that want the same GPUs (or none); None: not
        queued. Raises StoreError."""
        if self.row.state not in ("queued", "recovering"):
            return None
        place = places(self._store.waiting(time.time() + SOON_S)).get(self.id)
        return None if place is None else place.number

    @property
    def job_dir(self) -> str:
        """URL of this job's folder. If there are several, the one that its newest machines use; see job_dir_of()."""
        return used_job_dirs(self.row, self.attempts())[0] if self.row.policy.job_dirs else self.row.job_dir

    def job_dir_of(self, attempt: Attempt) -> str:
        """Return the URL of the job folder that an attempt's machines use; their logs are in it."""
        return self.row.dir_on(attempt.offer.cloud)

    @property
    def spec(self) -> JobSpec:
        """The job's spec. The store does not keep the values of `env`; they read as "***"."""
        from ..jobspecs.models import JobSpec

        return JobSpec.from_stored(self.row.spec)

    @property
    def is_removed(self) -> bool:
        """True if the job's files are deleted or being deleted."""
        return self.row.is_removed

    @property
    def labels(self) -> dict[str, str]:
        """The user's own keys and values."""
        return dict(self.row.spec.get("labels") or {})

    @property
    def offers(self) -> list[Offer]:
        """Offers with which the job was submitted, in order of preference."""
        return list(self.row.offers)

    @property
    def offer(self) -> Offer:
        """Offer of the newest attempt, or the best offer if there is no attempt."""
        current = self._current()
        return self.row.offers[0] if current is None else current.offer

    @property
    def cost(self) -> Decimal | None:
        """US dollars spent until now; None: unknown."""
        return cost.spent(self.row, self._current(), time.time())

    @property
    def saved_step(self) -> int | None:
        """Step of the newest checkpoint that the program reported, or that look_for_checkpoint() found; None: none."""
        from .reconcile.decisions import saved_step

        steps = [saved_step(attempt) for attempt in self.row.with_progress(self.attempts())]
        return max(steps, default=0) or self._found_step

    @property
    def resume_command(self) -> str | None:
        """Command with which the job goes on from its checkpoint; None: it has not ended, or has saved nothing."""
        if not self.done or self.row.is_removed or self.saved_step is None:
            return None
        cluster = "" if self.row.cluster is None else f" --cluster {self.row.cluster}"
        return f"cloudgpu resume {self.id}{cluster}{_limit_option(self.row)}"

    def look_for_checkpoint(self) -> Job:
        """Read the newest checkpoint's step from the job dir if the job has ended and its program counted steps, but
        reported no save; return self. A program that dies may have saved more than it reported."""
        from ..protocol.jobdir import JobDirError
        from ..runtime.checkpoint_copy import survey

        counted = any(attempt.progress for attempt in self.row.with_progress(self.attempts()))
        if not self.done or not counted or self.saved_step is not None:
            return self
        with suppress(JobDirError):  # the report is all that is known then
            self._found_step = next(iter(survey(self.open_dir(), self.row.run.progress_since).steps), None)
        return self

    def refresh(self) -> Job:
        """Read the row again and return self. Raises NoSuchJobError."""
        row = self._store.job(self.id)
        if row is None:
            raise NoSuchJobError(f"{self.id} is no longer in the store")
        self.row, self._attempts, self._found_step = row, None, None
        return self

    def attempts(self) -> list[Attempt]:
        return self._store.attempts(self.id) if self._attempts is None else self._attempts

    def events(self, after: int = 0) -> list[Event]:
        """Return the events with a sequence number greater than `after`, in order."""
        return self._store.events(self.id, after)

    def cancel(self, reason: str = "") -> None:
        """Request the job's end: programs may save, then all machines are terminated. No-op if it has ended."""
        message = f"cancel: {reason}" if reason else "cancel"
        if self._store.set_goal(self.id, "cancel", message, time.time()):
            ensure_supervisor(self.id)
        self.refresh()

    def provide_secrets(self, changed: Mapping[str, str] | None = None) -> list[str]:
        """Read the job's secrets that only this computer can read, and give them to the supervisor; return their names.

        changed: name -> source to read it from this time, instead of the one it was submitted with
        Raises SubmitError if a value cannot be read here, NotRunningError if the job has ended or needs none.
        """
        from .secrets.providing import provide

        return provide(self.refresh().row, changed or {})

    def remove(self, *, keep_record: bool = False) -> None:
        """Delete this ended job's folders, and its row in the store unless `keep_record`.

        It is safe to repeat if it was interrupted. Raises RemovalError, JobDirError, StoreError.
        """
        from .removal.removing import remove

        if not self.done:
            self.refresh()
        remove(self._store, self.row, keep_record=keep_record)

    def preempt(self, after_s: float, node: str | None = None) -> list[str]:
        """Send the machines a notice of preemption in `after_s` seconds; return the nodes. Raises NotRunningError."""
        from .preemption import give_notice

        self.refresh()
        current = self._current()
        if current is None or current.state != "running" or current.allocation is None:
            raise NotRunningError(f"{self.id} is {self.state}: only machines that run can be given a notice")
        nodes = give_notice(self.open_dir(current), current, after_s, node)
        self._store.add_event(
            self.row, "notice", f"preemption notice for {', '.join(nodes)}: {after_s:g} s", time.time()
        )
        return nodes

    def draft_resumption(
        self, overrides: Overrides = (), *, code: str | Path | None = None, start_over: bool = False
    ) -> Resumption:
        """Return what resume() would do, for planning; writes nothing. Raises as resume() does."""
        from .submit import resumption

        self.refresh()
        folder = None if code is None else Path(code)
        return resumption.draft(self.row, self.attempts(), overrides, code=folder, start_over=start_over)

    def resume(
        self,
        overrides: Overrides = (),
        *,
        code: str | Path | None = None,
        start_over: bool = False,
        on_progress: ProgressCallback | None = None,
        supervise: bool = True,
    ) -> Job:
        """Begin a further run of this ended job from its newest checkpoint; return self.

        overrides   changes of the job, as for load(): {"limits.cost": "20 USD"}. Limits and retries count anew
        code        folder to ship instead of the job's code
        start_over  do not restore the checkpoints of earlier runs, now or later

        Raises NotEndedError, SubmitError (ResumeError if the job cannot go on so), SpecError, JobDirError.
        """
        from .submit.planning import plan_today

        draft = self.draft_resumption(overrides, code=code, start_over=start_over)
        if draft.cluster is not None:  # a plan of today's prices would leave it, and rent machines
            raise ResumeError(
                f"{self.id} ran on the cluster {draft.cluster}: `cloudgpu resume {self.id}` queues it there again; to "
                "leave the cluster, set resources.cloud"
            )
        return self.begin_run(draft, plan_today(draft.spec), on_progress=on_progress, supervise=supervise)

    def begin_run(
        self, draft: Resumption, plan: Plan, *, on_progress: ProgressCallback | None = None, supervise: bool = True
    ) -> Job:
        """Begin the run that was drafted, on the offers of its plan; return self.

        Raises SubmitError, NotEndedError, RemovalError, JobDirError.
        """
        from .submit.beginning import begin_run

        begin_run(self._store, draft, plan, on_progress=on_progress, supervise=supervise)
        return self.refresh()

    def wait(self, on_poll: Callable[[Job], None] | None = None, timeout_s: float | None = None) -> bool:
        """Wait until the job is done; return False on timeout. Calls `on_poll` after each poll (5 per second)."""
        begin = ensured = time.monotonic()
        ensure = True
        while True:
            self.refresh()
            if on_poll is not None:
                on_poll(self)
            if self.done:
                return True
            now = time.monotonic()
            if timeout_s is not None and now - begin >= timeout_s:
                return False
            if ensure or now - ensured >= _ENSURE_S:
                ensure_supervisor()
                ensure, ensured = False, now
            time.sleep(_POLL_S if timeout_s is None else min(_POLL_S, begin + timeout_s - now))

    def open_dir(self, attempt: Attempt | None = None) -> JobDir:
        """Open the job dir that an attempt uses; without an attempt, the one at `job_dir`."""
        from ..protocol.jobdir import JobDir

        return JobDir(self.job_dir if attempt is None else self.job_dir_of(attempt), make=False)

    def mark_watched(self) -> None:
        """Make the machines of a running job report at short intervals for a while. Call it every few seconds."""
        current = self._current()
        if current is None or current.state != "running":
            return
        if self._watch_mark is None:
            from ..protocol.attempt_signal import WatchMark

            self._watch_mark = WatchMark()
        self._watch_mark.renew(self.open_dir(current), current.number)

    def logs(self) -> LogReader:
        from ..protocol.logs.reader import LogReader

        return LogReader(self.open_dir(), self._attempt_dirs())

    def outputs(self) -> Outputs:
        """Return the files in outputs/, also while the job runs. Raises JobDirError."""
        from ..protocol.outputs import find_outputs

        places = self._attempt_dirs()
        return find_outputs(self.open_dir(), places and places())

    def missing_outputs(self) -> list[str]:
        """Return the job's `outputs` of which its last attempt found nothing. Raises JobDirError."""
        from ..protocol.outputs import missing_outputs
        from .reconcile.node_replacement import every_node

        current = self._current()
        if current is None or current.state != "ended" or not self.row.spec.get("outputs"):
            return []
        nodes = [request.node for request in every_node(current) if request.rank == 0]
        return missing_outputs(self.open_dir(current), current.number, nodes)

    def _attempt_dirs(self) -> Callable[[], dict[int, JobDir]] | None:
        """Return a function that returns attempt -> job dir, of the attempts that got machines; None: all have the same
        one."""
        if not self.row.policy.job_dirs:
            return None
        opened: dict[str, JobDir] = {}

        def places() -> dict[int, JobDir]:
            for attempt in (known := [one for one in self.attempts() if one.allocation is not None]):
                opened.setdefault(self.job_dir_of(attempt), self.open_dir(attempt))
            return {attempt.number: opened[self.job_dir_of(attempt)] for attempt in known}

        return places

    def report(self) -> Report:
        """Return the report as of now. Raises JobDirError if the job runs and its dir cannot be read."""
        from .accounting.report import make_report

        attempts = self.attempts()
        running = bool(attempts) and attempts[-1].state in ("running", "stopping")
        report = self._furthest(attempts[-1]) if running else None
        return make_report(attempts, time.time(), *(report or ()))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        row = self.row
        spent = self.cost
        return {
            "id": row.id,
            "name": row.name,
            "state": row.state,
            "cause": row.cause,
            "reason": row.reason,
            "exit_code": row.exit_code,
            "created": row.created,
            "ended": row.ended,
            "next_try": self.next_try,
            "attempt": row.attempt,
            "run": row.run.number,
            "source": None if row.source is None else asdict(row.source),
            "saved_step": self.saved_step,
            "resume_command": self.resume_command,
            "job_dir": self.job_dir,
            "cost_usd": None if spent is None else str(spent),
            "offer": self.offer.to_json(),
            "spec": row.spec,
        }

    def _current(self) -> Attempt | None:
        if self._attempts is None:
            return self._store.current_attempts([self.row]).get(self.id)
        return self._attempts[-1] if self._attempts else None

    def _furthest(self, attempt: Attempt) -> Reported | None:
        from .reconcile.node_observation import read_furthest

        return read_furthest(self.open_dir(attempt), attempt)


def submit(
    loaded: LoadedSpec,
    plan: Plan,
    *,
    start_from: str | Origin | None = None,
    on_progress: ProgressCallback | None = None,
    supervise: bool = True,
) -> Job:
    """Upload the code, store the job and ensure that a supervisor runs. Raises SubmitError.

    `start_from`: JOB or JOB@STEP, from a copy of whose newest checkpoint, or that of a step, the training starts. JOB
    is an id or a name, or the URL of a job's folder; or what find_origin() returned for it.
    """
    from .submit.beginning import begin_job

    origin = find_origin(start_from) if isinstance(start_from, str) else start_from
    store = open_store()
    return Job(store, begin_job(store, loaded, plan, origin=origin, on_progress=on_progress, supervise=supervise))


def resume(
    ref: str,
    overrides: Overrides = (),
    *,
    code: str | Path | None = None,
    start_over: bool = False,
    on_progress: ProgressCallback | None = None,
) -> Job:
    """Begin a further run of an ended job, by id or name; see Job.resume()."""
    return get_job(ref).resume(overrides, code=code, start_over=start_over, on_progress=on_progress)


def find_origin(ref: str) -> Origin:
    """Return the job from whose checkpoint another one is to start; `ref`: JOB[@STEP]. Raises SubmitError,
    NoSuchJobError, JobDirError."""
    from .submit import origin

    job, step = origin.split_step(ref)
    if "://" in job:
        return origin.of_url(job, step)
    found = get_job(job)
    return origin.of_row(found.row, found.attempts(), step)


def _limit_option(row: JobRow) -> str:
    """Return the option that renews, or raises, the limit by which a job ended; "" if it ended otherwise."""
    if row.cause == "cost" and row.policy.cost_usd is not None:
        return f" --set limits.cost='{row.policy.cost_usd} USD'"
    if row.cause == "duration" and row.policy.duration_s is not None:
        return f" --set limits.duration={format_duration(row.policy.duration_s)}"
    return ""


def get_job(ref: str) -> Job:
    """Return the job by id, unique id prefix, or name (unique among all or active jobs). Raises NoSuchJobError."""
    store = open_store()
    found = store.find_jobs(ref) if ref else []
    exact = [row for row in found if row.id == ref]
    named = [row for row in found if row.name == ref]
    active = [row for row in named if row.state not in states.JOB_END]
    for candidates in (exact, named, active, found):
        if len(candidates) == 1:
            return Job(store, candidates[0])
    if not found:
        raise NoSuchJobError(f"no job is called {ref!r}, and no job's id begins so: `cloudgpu status` lists them")
    listed = ", ".join(row.id for row in found[:5]) + (", ..." if len(found) > 5 else "")
    raise NoSuchJobError(f"{ref!r} means {len(found)} jobs ({listed}): give an id")


def list_jobs(active_only: bool = False, limit: int | None = 50) -> list[Job]:
    """Return jobs with their attempts, newest first, with two queries in total.

    limit: maximum number of jobs; None: all
    """
    store = open_store()
    rows = store.list_jobs(active_only=active_only, limit=limit)
    attempts = store.attempts_of([row.id for row in rows])
    return [Job(store, row, attempts.get(row.id)) for row in rows]


def count_jobs(active_only: bool = False) -> int:
    """Return the number of stored jobs. Raises StoreError."""
    return open_store().count_jobs(active_only=active_only)
