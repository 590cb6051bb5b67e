"""Context of a step: the job and its attempt as they were read, the store, the target, the job dir, the clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ....jobspecs.targets import info
from ....protocol.jobdir import JobDir
from ....provisioners.base import Provisioner
from ....provisioners.shared.clock import Clock
from ...clock import JobTime
from ...secrets.vault import Vault
from ...store.model import Attempt, JobRow
from ...store.store import Change, Store
from .. import login_hints
from ..decisions import GRACE_S, backoff, jitter
from ..node_observation import AttemptCache
from ..observed_state import ObservationBuffer
from ..queue import Queue

log = logging.getLogger("cloudgpu.supervisor")


@dataclass(slots=True)
class Memory:
    """A supervisor's memory of a job between ticks: caches and pauses only; no decision depends on it."""

    time: JobTime
    watches: AttemptCache = field(default_factory=lambda: AttemptCache(0))
    job_dirs: dict[str, JobDir] = field(default_factory=dict)
    """URL -> the opened job dir."""
    moving: int = 0
    """Number of the attempt for which a job that has trained moves to another job dir; 0: none."""
    copying: int = 0
    """Number of the attempt for which this process has logged that a checkpoint is being copied."""
    copied: float = 0.0
    """Monotonic time when an object was last copied to another job dir."""
    stop_written_for: int = 0
    """Number of the attempt whose stop.json this process has written."""
    queued: bool = False
    """True if all machines of the attempt were in the provider's queue at the last poll."""
    queue: str = ""
    """Provider's message about its queue: the position, or why there is no machine."""
    saw_unknown_node: bool = False
    """A machine of the attempt runs a node that the attempt's row does not list: the nodes may have been replaced."""
    machines_gone: bool = False
    """True if all machines of the attempt were gone at the last poll."""
    first_launch_of: int = 0
    """Number of the attempt for which this process sends the first launch request."""
    pause_s: float = 0.0
    """Seconds until the job's next poll while it waits in its target's queue; 0: it does not wait."""
    sent_secrets: dict[str, float] = field(default_factory=dict)
    """Public key of an agent -> monotonic time when secrets were last encrypted to it."""
    refused_keys: set[str] = field(default_factory=set)
    """Public keys without a valid proof, which an event has named."""
    is_passed: bool = False
    """The job waits for its secrets, so others of the target's queue pass it."""
    started: int = 0
    """Number of the attempt whose launch() reported that machines were started before others were refused."""

    def reopen_dirs(self) -> None:
        """Drop the opened job dirs, so that they are reopened with the current credentials."""
        for job_dir in self.job_dirs.values():
            job_dir.renew()
        self.job_dirs.clear()


@dataclass(slots=True)
class Tools:
    """Dependencies that the steps of all jobs share; injected so that tests can replace them."""

    store: Store
    clock: Clock
    owner: str
    """Owner of the lease."""
    provisioner: Callable[[str], Provisioner]
    open_dir: Callable[[str], JobDir]
    seen: ObservationBuffer = field(default_factory=ObservationBuffer)
    queue: Queue = field(init=False)
    vault: Vault = field(default_factory=Vault)
    watched: int = 1
    """Number of jobs that the supervisor watches."""

    def __post_init__(self) -> None:
        self.queue = Queue(self.store, self.clock)


class JobContext:
    """A job and its newest attempt as they were read when the step began."""

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt | None) -> None:
        self.tools = tools
        self.memory = memory
        self.job = job
        self.attempt = attempt
        self.now = memory.time.now()
        """Job's time (see JobTime) when the step began."""

    def time(self) -> float:
        """Return the job's current time."""
        return self.memory.time.now()

    def attempts(self) -> list[Attempt]:
        """Read all attempts of the job, in order."""
        return self.tools.store.attempts(self.job.id)

    def check_account(self, target: str, account: str | None) -> None:
        """Raise ProvisionError if the credentials are not for the account of the machines."""
        if account:
            self.tools.provisioner(target).check_account(account)

    def open_dir(self, url: str) -> JobDir:
        """Return the opened job dir, from the cache if it was opened before."""
        if url not in self.memory.job_dirs:
            self.memory.job_dirs[url] = self.tools.open_dir(url)
        return self.memory.job_dirs[url]

    def write(
        self,
        kind: str,
        message: str,
        *,
        job: JobRow | None = None,
        attempt: Attempt | None = None,
        new_attempt: Attempt | None = None,
    ) -> bool:
        """Write the new rows of the job and the attempt, and an event unless `message` is empty; return True."""
        change = Change(self.job, kind, message, self.time(), self.attempt, job, attempt, new_attempt)
        self.tools.store.apply(change, self.tools.owner)
        if message:
            log.info("%s: %s", self.job.id, message)
        return True

    def note_login(self, trouble: str) -> bool:
        """Put the line about credentials into the job's reason; remove it if `trouble` is "". Return True on change."""
        reason = login_hints.with_hint(self.job.reason, trouble) if trouble else login_hints.plain(self.job.reason)
        return reason != self.job.reason and self.write("", "", job=replace(self.job, reason=reason))


class AttemptContext(JobContext):
    """A job with an attempt that has not ended."""

    attempt: Attempt

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt) -> None:
        super().__init__(tools, memory, job, attempt)

    @property
    def provisioner(self) -> Provisioner:
        """The provisioner of the attempt's target."""
        return self.tools.provisioner(self.attempt.offer.cloud)

    @property
    def job_dir(self) -> JobDir:
        """The job dir that the attempt's machines use."""
        return self.open_dir(self.job.dir_on(self.attempt.offer.cloud))

    @property
    def is_group(self) -> bool:
        """True if the attempt has a dedicated machine group (recover: fleet), unlike a cluster, which outlives it."""
        return self.job.policy.grouped and bool(info(self.attempt.offer.cloud).groups)

    @property
    def secrets_pass(self) -> str:
        """Proof of the attempt's machines that they are the job's; "": they get none at their launch, as a group's or a
        cluster's machines get their work from the fleet's folder."""
        if self.is_group or info(self.attempt.offer.cloud).outlives_jobs:
            return ""
        return self.job.policy.secrets_pass

    @property
    def heals_itself(self) -> bool:
        """True if the target replaces lost machines itself, so that the supervisor must not."""
        return self.is_group or info(self.attempt.offer.cloud).heals

    @property
    def waited_s(self) -> float:
        """Seconds since the first of the consecutive calls of wait(), less the pauses with `counts=False`."""
        since = self.job.waiting_since
        return self.now - since if self.job.waits and since is not None else 0.0

    def wait(
        self,
        kind: str,
        reason: str,
        attempt: Attempt | None = None,
        pause: str = "wait",
        *,
        at_least_s: float = 0.0,
        counts: bool = True,
    ) -> bool:
        """Schedule a retry with the same offer and token. Returns True.

        kind: cause to write into the job's row
        pause: kind of decisions.backoff
        counts: whether the pause is included in `waited_s`
        """
        job, now = self.job, self.time()
        tries = job.waits + 1
        pause_s = max(backoff(pause, tries), at_least_s)
        pause_s += jitter(pause_s / 4, job.id, tries)
        since = now if not job.waits or job.waiting_since is None else job.waiting_since
        # Every try is written, but a repeated reason makes no new event.
        message = f"waiting: {reason}" if login_hints.plain(job.reason) != reason else ""
        waiting = replace(
            job,
            waits=tries,
            waiting_since=since if counts else since + pause_s,
            not_before=now + pause_s,
            cause=kind,
            reason=reason,
        )
        return self.write("waiting", message, job=waiting, attempt=attempt)

    def begin_stop(self, cause: str, reason: str) -> bool:
        """Stop the attempt: its programs have GRACE_S[cause] to save and end. After "peer" the job continues."""
        job = self.job if cause == "peer" else replace(self.job, state="stopping", cause=cause, reason=reason)
        grace = GRACE_S[cause] if self.attempt.allocation is not None else 0.0
        attempt = replace(self.attempt, state="stopping", cause=cause, deadline=self.time() + grace)
        return self.write("stopping", reason, job=job, attempt=attempt)
