"""Jobs for the command line and for Python programs: submit, look, wait, cancel, preempt.

Everything here returns at once except `submit` (ships the code) and `Job.wait`. Errors: ControlError (errors.py),
JobDirError (runtime/jobdir.py), ProvisionError (provisioners/base.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .model import Attempt, Event, JobRow

if TYPE_CHECKING:
    from ..jobspecs.loader import LoadedSpec
    from ..jobspecs.models import JobSpec
    from ..jobspecs.plan import Offer, Plan
    from ..provisioners.base import Allocation
    from ..runtime.jobdir import JobDir
    from ..runtime.logs import LogReader
    from .report import Report

ProgressCallback = Callable[[str, int, int], None]
"""(what: "packing" | "uploading" | "submitting", done bytes or files, total or 0)"""


class Job:
    """A job in the store. The fields are those of the last `refresh()`; see model.JobRow for what they mean."""

    row: JobRow

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
        """Whether the state is final."""
        raise NotImplementedError

    @property
    def cause(self) -> str:
        """Why it is in this state, as a word for programs, e.g. "preempted", "duration", "capacity"; may be ""."""
        return self.row.cause

    @property
    def reason(self) -> str:
        """Why it is in this state, as a sentence for people; may be ""."""
        return self.row.reason

    @property
    def exit_code(self) -> int | None:
        """Of the user's program (negative: killed by that signal), once the job has ended by it."""
        return self.row.exit_code

    @property
    def created(self) -> float:
        """Epoch seconds."""
        return self.row.created

    @property
    def ended(self) -> float | None:
        return self.row.ended

    @property
    def job_dir(self) -> str:
        """URL of this job's own folder."""
        return self.row.job_dir

    @property
    def spec(self) -> JobSpec:
        """The job's spec; the values of `env` are not kept in the store and read as "***"."""
        raise NotImplementedError

    @property
    def offers(self) -> list[Offer]:
        """Those it was submitted with, in order of preference."""
        raise NotImplementedError

    @property
    def offer(self) -> Offer:
        """The one of the newest attempt, or else the best."""
        raise NotImplementedError

    def refresh(self) -> Job:
        """Read the row again; returns self."""
        raise NotImplementedError

    def attempts(self) -> list[Attempt]:
        raise NotImplementedError

    def events(self, after: int = 0) -> list[Event]:
        """In order, those with a sequence number greater than `after`."""
        raise NotImplementedError

    def cancel(self, reason: str = "") -> None:
        """Ask for the end: programs may save, then everything is terminated. Nothing happens if it ended already."""
        raise NotImplementedError

    def preempt(self, after_s: float, node: str | None = None) -> list[str]:
        """Give the machines a notice that they go in `after_s` seconds; returns the nodes. Raises NotRunningError."""
        raise NotImplementedError

    def wait(self, on_poll: Callable[[Job], None] | None = None, timeout_s: float | None = None) -> bool:
        """Wait until the job is done, calling back after every look (about 5 a second); False when time ran out."""
        raise NotImplementedError

    def open_dir(self) -> JobDir:
        raise NotImplementedError

    def logs(self) -> LogReader:
        raise NotImplementedError

    def report(self) -> Report:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """For `--json`: plain values."""
        raise NotImplementedError


def submit(
    loaded: LoadedSpec, plan: Plan, *, on_progress: ProgressCallback | None = None, supervise: bool = True
) -> Job:
    """Ship the code, store the job, and see to it that a supervisor runs. Raises SubmitError."""
    raise NotImplementedError


def get_job(ref: str) -> Job:
    """By id, unique beginning of an id, or name (of the only, or the only active, job so named). NoSuchJobError."""
    raise NotImplementedError


def list_jobs(active_only: bool = False, limit: int = 50) -> list[Job]:
    """Newest first."""
    raise NotImplementedError


def orphans() -> list[Allocation]:
    """Machines tagged as ours whose job has ended or is unknown."""
    raise NotImplementedError


def terminate_orphan(allocation: Allocation) -> None:
    """Terminate one of orphans(), after looking again that it is one."""
    raise NotImplementedError


def ensure_supervisor() -> None:
    """Wake the supervisor, or start one in the background if none runs."""
    raise NotImplementedError
