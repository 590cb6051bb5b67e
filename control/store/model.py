"""Rows of the store as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from ...jobspecs.plan import Offer
from ...jobspecs.targets import CLOUDS, CLUSTER, info
from ...protocol.jobdir import Generation, Progress, Timeline
from ...provisioners.base import Allocation, NodeRequest

QUEUES = frozenset(name for name in CLOUDS if info(name).is_here)
"""Targets for which waiting jobs form a queue."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a job that the supervisor acts on, as plain values, fixed when a run begins."""

    failures: int
    """Number of restarts allowed after failures of the program."""
    preemptions: int | None = None
    """Number of restarts allowed after interruptions; None: no limit."""
    duration_s: int | None = None
    """Maximum seconds from the beginning of the run to its end."""
    cost_usd: Decimal | None = None
    """Maximum US dollars for all attempts of the run together."""
    gpu_idle_s: int | None = None
    """Seconds without GPU activity after which the job is stopped."""
    price_usd: Decimal | None = None
    """Maximum US dollars per hour of all machines together, when they are requested."""
    capacity_s: int | None = None
    """Timeout in seconds for each search for machines; None: no timeout."""
    least_nodes: int | None = None
    """Minimum number of machines with which the program may continue; None: all."""
    agents: dict[str, str] = field(default_factory=dict)
    """Agent files in the job dir: architecture -> sha256; empty: this machine needs none."""
    reads: list[str] = field(default_factory=list)
    """URLs that the machines must be able to read, besides the job dir."""
    reads_on: dict[str, list[str]] = field(default_factory=dict)
    """Cloud -> URLs as in `reads`, if they differ between clouds; empty: `reads` is for all clouds."""
    images: dict[str, str] = field(default_factory=dict)
    """Role -> container image, for roles that have one."""
    grouped: bool = False
    """True if each attempt has a dedicated machine group, which replaces lost machines (`recover: fleet`)."""
    job_dirs: dict[str, str] = field(default_factory=dict)
    """Cloud -> URL of the job's folder there, if each has a separate one; empty: JobRow.job_dir is for all clouds."""
    priority: int = 0
    """Priority in a target's queue, from 0 to 100; higher values go first."""
    accounts: dict[str, str] = field(default_factory=dict)
    """Cloud -> account of its submitter's credentials (provisioners/shared/accounts.py), if known."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Secrets that only the submitter's computer can read: variable -> source, never a value."""
    references: list[str] = field(default_factory=list)
    """References to the secrets that the machines read from secret managers themselves."""
    secrets_from: str = ""
    """Host and user whose files the sources of `secrets` name, see vault.this_computer()."""
    secrets_pass: str = field(default="", repr=False)
    """With it the job's machines prove that they may have these secrets (protocol/sealed_secrets.py); "": there are
    none."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, from its submission or a `cloudgpu resume` to an end. Limits and retries count per run."""

    number: int = 1
    begun: float | None = None
    """Epoch seconds of the resume; None: the first run, which began when the job was created."""
    after_attempt: int = 0
    """Number of the last attempt of the earlier runs."""
    spent_before: Decimal = Decimal(0)
    """US dollars of the earlier runs."""
    progress_since: int = 0
    """Number of the first attempt whose checkpoints may be restored, as the job has started over; 0: all may be."""


@dataclass(frozen=True, slots=True)
class Source:
    """The job from whose checkpoint another one was started. It is not removed while that is in the store with its
    files, although these hold a copy of the checkpoint: they say where it came from."""

    job: str
    """Id."""
    job_dir: str
    """URL of the folder that holds the checkpoint."""
    step: int


FIRST_RUN = Run()


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. Times are epoch seconds."""

    id: str
    name: str
    state: str
    """State of the job; see states.py."""
    goal: str
    """Goal that the user has set: "run" or "cancel"; for an ended job also "remove", while its files are deleted, and
    "removed", when they are and the row is kept."""
    cause: str
    """Cause of the state: a word for programs."""
    reason: str
    """Reason for the state: a sentence for users."""
    exit_code: int | None
    spec: dict[str, Any]
    """The spec in its stored form; values of `env` are masked."""
    policy: Policy
    offers: tuple[Offer, ...]
    """In order of preference; at least one."""
    job_dir: str
    """URL of the job's folder at submission; see dir_on()."""
    job_sha256: str
    owner: str
    """Tag of all resources that this store's jobs create."""
    attempt: int
    """Number of the newest attempt; 0: none yet."""
    round: int
    """Number of refusals of the newest attempt's offer since machines were last obtained."""
    waits: int
    """Number of retries in place since machines were last obtained, or requested in another place."""
    not_before: float
    """Epoch seconds before which machines are not requested again."""
    spent: Decimal | None
    """US dollars of all ended attempts of all runs; None: unknown."""
    created: float
    updated: float
    ended: float | None
    lease_owner: str | None
    lease_beat: int
    waiting_since: float | None = None
    """Epoch seconds of the first of the `waits`; not valid if `waits` is 0."""
    run: Run = FIRST_RUN
    """The current run, or the last one if the job has ended."""
    source: Source | None = None
    """None: the job was not started from another one."""

    @property
    def begun(self) -> float:
        """Epoch seconds when the current run began."""
        return self.created if self.run.begun is None else self.run.begun

    def in_run(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts of the current run."""
        return [attempt for attempt in attempts if attempt.number > self.run.after_attempt]

    def with_progress(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts whose checkpoints may be restored."""
        return [attempt for attempt in attempts if attempt.number >= self.run.progress_since]

    @property
    def cluster(self) -> str | None:
        """Name of the cluster on whose machines the current or last run is queued; None: it is on none."""
        best = self.offers[0]
        return best.region if best.cloud == CLUSTER else None

    @property
    def is_removed(self) -> bool:
        """True if the job's files are deleted or being deleted: nothing new may begin with it."""
        return self.goal in ("remove", "removed")

    @property
    def is_record(self) -> bool:
        """True if the job's files are deleted, and only its row is kept."""
        return self.goal == "removed"

    def dir_on(self, cloud: str) -> str:
        """Return the URL of the job's folder that machines of a cloud use."""
        return self.policy.job_dirs.get(cloud, self.job_dir)

    def reads_on(self, cloud: str) -> list[str]:
        """Return the URLs that machines of a cloud must be able to read, besides the job dir."""
        return self.policy.reads_on.get(cloud, self.policy.reads)


@dataclass(frozen=True, slots=True)
class Observation:
    """The newest heartbeat of an attempt that the supervisor has read."""

    time: float
    """Epoch seconds of the machine's clock."""
    step: int | None = None
    """Steps done; None: the program reports none."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job on one offer. Times are epoch seconds."""

    job_id: str
    number: int
    """Number of the attempt within its job, from 1."""
    state: str
    """State of the attempt; see states.py."""
    round: int
    offer: Offer
    price: Decimal | None
    """US dollars per hour of the whole attempt, fixed at its launch; None: unknown."""
    token: str
    allocation: Allocation | None
    """Machines of the attempt; None until launch() has returned."""
    cause: str
    """Why it stops: a key of decisions.GRACE_S, or the class of the error that refused the launch, or "user": the
    program asks not to be run again."""
    scope: str
    """Scope of that error: "zone", "region", "market", "cloud"."""
    deadline: float | None
    """While stopping: time at which machines that still run are terminated."""
    outcome: str
    """succeeded | failed | preempted | again | lost | stopped | error | refused; "" until it is known."""
    reason: str
    exit_code: int | None
    progress: Progress | None
    """Final progress of the node that had done the most steps."""
    created: float
    launched: float | None
    """Start of paid time: when the attempt's machines were requested."""
    ended: float | None
    """End of paid time: when all machines were observed to be gone."""
    cost: Decimal | None
    """Cost in US dollars, written when the attempt ends; None: unknown."""
    generations: tuple[Generation, ...] = ()
    """One record for each restart of the program on the same machines."""
    timeline: Timeline | None = None
    """Final timeline of the node that had done the most steps."""
    nodes: tuple[NodeRequest, ...] | None = None
    """The machines that it should have, in rank order; None: those of the offer, without replacement of lost ones (a
    single machine, a target without replacement, or an attempt begun by an older version)."""
    hints: tuple[str, ...] = ()
    """Zones that the provider suggested when it refused the launch."""
    account: str | None = None
    """Account of its machines (provisioners/shared/accounts.py), written before the first call. "": the target has
    none; None: not known yet, or begun by an older version."""
    seen: Observation | None = None
    """Newest heartbeat that the supervisor has read; None: none."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    seq: int
    job_id: str
    attempt: int | None
    time: float
    kind: str
    """Lower-case word, e.g. "submitted", "state", "launched"."""
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused request for machines of one place."""

    offer: Offer
    kind: str
    """Class of the error: a key of REACTIONS."""
    scope: str
    """Scope of the error: "zone", "region", "market", "cloud" or "attempt" (provisioners/base.py)."""
    reason: str
    """The provider's message."""
    time: float
    """Epoch seconds."""
    hints: tuple[str, ...] = ()
    """Zones that the provider named as having capacity, spelled as in offers."""
    job_id: str = ""
    """Id of the job that requested the machines."""

    @classmethod
    def of(cls, attempt: Attempt) -> Refused:
        """Return the refusal of an attempt whose outcome is `refused`."""
        return cls(
            offer=attempt.offer,
            kind=attempt.cause,
            scope=attempt.scope,
            reason=attempt.reason,
            time=attempt.created if attempt.ended is None else attempt.ended,
            hints=attempt.hints,
            job_id=attempt.job_id,
        )


class Waiting(NamedTuple):
    """A waiting job, as the store lists it."""

    job_id: str
    needs: Mapping[str, int]
    """Accelerator -> GPUs of all nodes together; CPU -> nodes of a job without GPUs."""
    priority: int = 0
    """Higher values go first."""
