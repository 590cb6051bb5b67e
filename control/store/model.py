"""Rows of the store as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from ...jobspecs.plan import Offer
from ...jobspecs.targets import CLOUDS, info
from ...protocol.jobdir import Generation, Progress, Timeline
from ...provisioners.base import Allocation, NodeRequest

QUEUES = frozenset(name for name in CLOUDS if info(name).is_here)
"""Targets whose waiting jobs are a queue."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What of the job the supervisor acts upon, as plain values, fixed at submit."""

    failures: int
    """Number of restarts allowed after failures of the program."""
    preemptions: int | None = None
    """Number of restarts allowed after interruptions; None: no limit."""
    duration_s: int | None = None
    """From submit to end."""
    cost_usd: Decimal | None = None
    """All attempts together."""
    gpu_idle_s: int | None = None
    """While no GPU does anything."""
    price_usd: Decimal | None = None
    """Per hour of all machines together, when they are asked for."""
    capacity_s: int | None = None
    """How long machines are looked for, each time there are none; None: without limit."""
    least_nodes: int | None = None
    """With this many machines the program may go on; None: it needs all of them."""
    agents: dict[str, str] = field(default_factory=dict)
    """The agent files in the job dir: architecture -> sha256; empty: this machine needs none."""
    reads: list[str] = field(default_factory=list)
    """URLs that the machines must be able to read, besides the job dir."""
    reads_on: dict[str, list[str]] = field(default_factory=dict)
    """Cloud -> the same, where they differ; empty: it is `reads` for all."""
    images: dict[str, str] = field(default_factory=dict)
    """Role -> container image, of roles that have one."""
    grouped: bool = False
    """The machines of each attempt are a group of their own, which replaces lost ones (`recover: fleet`)."""
    job_dirs: dict[str, str] = field(default_factory=dict)
    """Cloud -> URL of the job's folder there, where each has its own; empty: JobRow.job_dir is that of all."""
    priority: int = 0
    """In the queue of a target: higher first; from 0 to 100."""
    accounts: dict[str, str] = field(default_factory=dict)
    """Cloud -> the account of its submitter's credentials (provisioners/shared/accounts.py), where that is known."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. Times are epoch seconds."""

    id: str
    name: str
    state: str
    """See states.py."""
    goal: str
    """What the user wants: "run" or "cancel"."""
    cause: str
    """Why it is in this state: a word for programs."""
    reason: str
    """Why it is in this state: a sentence for people."""
    exit_code: int | None
    spec: dict[str, Any]
    """The stored form; values of `env` masked."""
    policy: Policy
    offers: tuple[Offer, ...]
    """In order of preference; at least one."""
    job_dir: str
    """URL of the job's folder, as it was submitted; see dir_on()."""
    job_sha256: str
    owner: str
    """Tag of everything this store's jobs create."""
    attempt: int
    """Number of the newest attempt; 0: none yet."""
    round: int
    """How often the newest attempt's offer was refused since machines were last got."""
    waits: int
    """Tries in place since machines were last got or asked for elsewhere."""
    not_before: float
    """The next try to get machines is not earlier."""
    spent: Decimal | None
    """US dollars of all ended attempts; None: unknown."""
    created: float
    updated: float
    ended: float | None
    lease_owner: str | None
    lease_beat: int
    waiting_since: float | None = None
    """Epoch seconds of the first of these `waits`; of no meaning without any."""

    def dir_on(self, cloud: str) -> str:
        """URL of the job's folder that machines of a cloud work with."""
        return self.policy.job_dirs.get(cloud, self.job_dir)

    def reads_on(self, cloud: str) -> list[str]:
        """URLs that machines of a cloud must be able to read, besides the job dir."""
        return self.policy.reads_on.get(cloud, self.policy.reads)


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest heartbeat of an attempt that the supervisor has read."""

    time: float
    """Epoch seconds, by the machine's clock."""
    step: int | None = None
    """Steps done; None: the program reports none."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job on one offer. Times are epoch seconds."""

    job_id: str
    number: int
    """From 1."""
    state: str
    """See states.py."""
    round: int
    offer: Offer
    price: Decimal | None
    """US dollars per hour of the whole attempt, frozen when it was made; None: unknown."""
    token: str
    allocation: Allocation | None
    """The machines, once launch() has answered."""
    cause: str
    """Why it stops: a key of decisions.GRACE_S, or the class of the error that refused the launch, or "user": the
    program asks not to be run again."""
    scope: str
    """Scope of that error: "zone", "region", "market", "cloud"."""
    deadline: float | None
    """While stopping: when what still runs is terminated."""
    outcome: str
    """succeeded | failed | preempted | lost | stopped | error | refused; "" until it is known."""
    reason: str
    exit_code: int | None
    progress: Progress | None
    """That of the node that got furthest, when it ended."""
    created: float
    launched: float | None
    """When its machines were asked for: paid time begins."""
    ended: float | None
    """When all machines were seen to be gone: paid time ends."""
    cost: Decimal | None
    """US dollars, once it has ended; None: unknown."""
    generations: tuple[Generation, ...] = ()
    """One for each time its program was started again on the same machines."""
    timeline: Timeline | None = None
    """That of the node that got furthest, when it ended."""
    nodes: tuple[NodeRequest, ...] | None = None
    """The machines it shall have by now, in rank order; None: those of the offer, and a lost one is not replaced (there
    is one only, the target cannot, or an older version has begun it)."""
    hints: tuple[str, ...] = ()
    """Zones that the refusal of its launch named as worth a try."""
    account: str | None = None
    """The account of its machines (provisioners/shared/accounts.py), written before the first call. "": the target has
    none; None: not known yet, or an older version has begun it."""
    seen: Seen | None = None
    """None: no heartbeat was read."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    seq: int
    job_id: str
    attempt: int | None
    time: float
    kind: str
    """Kebab-case, e.g. "submitted", "state", "launch-refused"."""
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A place that had no machines when it was asked."""

    offer: Offer
    kind: str
    """The class of the error: a key of REACTIONS."""
    scope: str
    """Scope of the error: "zone", "region", "market", "cloud" or "attempt" (provisioners/base.py)."""
    reason: str
    """The provider's words."""
    time: float
    """Epoch seconds."""
    hints: tuple[str, ...] = ()
    """Zones that the provider named as having capacity, as offers spell them."""
    job_id: str = ""
    """The job that asked."""

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
    """A job that waits, as the store lists it."""

    job_id: str
    needs: Mapping[str, int]
    """Accelerator -> GPUs of all nodes together; CPU -> nodes of a job without GPUs."""
    priority: int = 0
    """Higher first."""
