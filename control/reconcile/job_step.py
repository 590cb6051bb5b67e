"""What every step works with: the job and its attempt as they were read, the machines, the job dir, the store."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...jobspecs.catalog.targets import targets
from ...jobspecs.plan import Offer
from ...protocol.jobdir import Generation, JobDir
from ...provisioners.base import Allocation, LaunchRequest, NodeRequest, NodeState, Owner, Provisioner
from ...provisioners.shared.clock import Clock
from ..accounting import cost
from ..clock import JobTime
from ..store.model import Attempt, JobRow
from ..store.store import Change, Store
from ..submit.shipping import agent_for
from . import logins
from .decisions import GRACE_S, backoff, jitter
from .last_words import LastWords
from .members import every_node
from .nodes import Watches, look, new_generation
from .outcomes import NodeView
from .queue import Queue
from .sightings import Sightings

log = logging.getLogger("cloudgpu.supervisor")

LATE_S = 5.0
"""After the deadline of a stop: nodes that kill their program at the deadline have so long to say so."""
LONGEST_S = 30 * 86_400.0
"""A machine in a cloud ends itself after so long in any case: nobody may be left to end it. A job that lives goes on
with another."""
EXPIRY_S = 3_600.0
"""What was made for machines may be removed by anybody so long after they have ended themselves."""
QUEUE_S = {"flex-start": 86_400.0}
"""Market -> how long its machines may be in the provider's queue, at most: they begin to live after it."""


@dataclass(slots=True)
class Memory:
    """What a supervisor remembers of a job between ticks: caches and pauses only, nothing that decides."""

    time: JobTime
    watches: Watches = field(default_factory=lambda: Watches(0))
    job_dirs: dict[str, JobDir] = field(default_factory=dict)
    """By URL."""
    moving: int = 0
    """The attempt before which the job, having trained, moves to another job dir."""
    copying: int = 0
    """The attempt of which this process has told that a checkpoint is being copied for it."""
    copied: float = 0.0
    """Steady time when an object had come over to another job dir, the last time."""
    told: int = 0
    """The attempt whose stop.json this process has written."""
    queued: bool = False
    """All machines of the attempt were in the provider's queue, when they were last looked at."""
    queue: str = ""
    """What the provider said then of what waits in it: whose turn comes first, or why there is no machine."""
    strangers: bool = False
    """A machine of the attempt ran as a node of which its row does not tell: there may be a new generation."""
    machines_gone: bool = False
    """All machines of the attempt, when they were last looked at."""
    unasked: int = 0
    """The attempt that this process is going to be the first to ask machines for."""
    pause_s: float = 0.0
    """Until the job's next look, while it waits in the queue of its target; 0: it does not."""
    started: int = 0
    """The attempt of which launch() has said that some machines were started before others were refused."""

    def reopen_dirs(self) -> None:
        """Open the job dirs anew: their credentials were read when they were opened, and there may be new ones."""
        for job_dir in self.job_dirs.values():
            job_dir.renew()
        self.job_dirs.clear()


@dataclass(slots=True)
class Tools:
    """What a step works with; handed in, so that tests can put their own in place."""

    store: Store
    clock: Clock
    owner: str
    """Of the lease."""
    provisioner: Callable[[str], Provisioner]
    open_dir: Callable[[str], JobDir]
    seen: Sightings = field(default_factory=Sightings)
    queue: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = Queue(self.store, self.clock)


class JobStep:
    """A job as it was read at the beginning of a tick, and what any step of it works with."""

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt | None) -> None:
        self._tools = tools
        self._memory = memory
        self._job = job
        self._attempt = attempt
        self._now = memory.time.now()

    def _time(self) -> float:
        """The job's time at this moment; `_now` is that at which the step began."""
        return self._memory.time.now()

    def _waited_s(self) -> float:
        """Seconds since the first of the waits in place, less those that do not count."""
        since = self._job.waiting_since
        return self._now - since if self._job.waits and since is not None else 0.0

    def _allocation(self, attempt: Attempt) -> Allocation | None:
        """The attempt's machines; None: launch() has not answered yet, or the answer was lost."""
        return None if attempt.allocation is None else Allocation.from_json(attempt.allocation)

    def _look(self, attempt: Attempt, allocation: Allocation | None) -> Sequence[NodeView]:
        if allocation is None:
            return ()
        provisioner = self._provisioner(attempt)
        observed = {state.node: state for state in provisioner.observe(allocation)}
        self._memory.machines_gone = all(state.phase == "gone" for state in observed.values())
        self._memory.queued = bool(observed) and all(state.queued for state in observed.values())
        self._memory.queue = next((state.detail for state in observed.values() if state.queued), "")
        if self._memory.watches.attempt != attempt.number:
            self._memory.watches = Watches(attempt.number)
        steady = self._tools.clock.monotonic()
        self._memory.watches.note_look(steady, gone=self._memory.machines_gone)
        last_words = LastWords(provisioner, allocation).of
        nodes = every_node(attempt)
        known = [node.node for node in nodes]
        self._memory.strangers = any(one.phase == "running" for name, one in observed.items() if name not in known)
        stopping = attempt.state == "stopping"
        views = look(
            self._job_dir(attempt), self._memory.watches, nodes, observed, steady, last_words, stopping=stopping
        )
        self._tools.seen.note(attempt, views)
        return _taken_in_stride(views, observed) if self._heals_itself(attempt) else views

    def _heals_itself(self, attempt: Attempt) -> bool:
        """Its machines take lost ones' places whether anybody looks or not: nobody else is to replace them."""
        return self._is_group(attempt) or targets()[attempt.offer["cloud"]].heals

    def _is_group(self, attempt: Attempt) -> bool:
        """Of its own: on a cluster the machines are one that stays."""
        return self._job.policy.grouped and bool(targets()[attempt.offer["cloud"]].groups)

    def _provisioner(self, attempt: Attempt) -> Provisioner:
        return self._tools.provisioner(attempt.offer["cloud"])

    def _check_account(self, target: str, account: str | None) -> None:
        """Raise ProvisionError if the credentials are not of the account that machines are in, or are to be in."""
        if account:
            self._tools.provisioner(target).check_account(account)

    def _job_dir(self, attempt: Attempt) -> JobDir:
        """Where the machines of an attempt are met."""
        return self._open_dir(self._job.dir_on(attempt.offer["cloud"]))

    def _open_dir(self, url: str) -> JobDir:
        if url not in self._memory.job_dirs:
            self._memory.job_dirs[url] = self._tools.open_dir(url)
        return self._memory.job_dirs[url]

    def _write(
        self,
        kind: str,
        message: str,
        *,
        job: Mapping[str, Any] | None = None,
        attempt: Mapping[str, Any] | None = None,
        new_attempt: Attempt | None = None,
    ) -> bool:
        change = Change(
            job=self._job,
            kind=kind,
            message=message,
            time=self._time(),
            attempt=self._attempt,
            set_job=job or {},
            set_attempt=attempt or {},
            new_attempt=new_attempt,
        )
        self._tools.store.apply(change, self._tools.owner)
        if message:
            log.info("%s: %s", self._job.id, message)
        return True

    def _request(
        self, attempt: Attempt, offer: Offer, nodes: tuple[NodeRequest, ...], *, replaces: bool = False
    ) -> LaunchRequest:
        """Return what a target is asked for. `replaces`: some of the nodes come in the place of lost ones."""
        job, lifetime = self._job, self._lifetime(attempt)
        return LaunchRequest(
            job_id=job.id,
            attempt=attempt.number,
            token=attempt.token,
            owner=Owner(job.owner),
            job_dir=job.dir_on(offer.cloud),
            job_sha256=job.job_sha256,
            region=offer.region,
            zone=offer.zone,
            market=offer.market,
            disk_gb=offer.disk_gb,
            nodes=nodes,
            lifetime_s=lifetime,
            expires=None if lifetime is None else self._expires(attempt, offer, lifetime, replaces=replaces),
            agent=agent_for(offer, job.policy.agents or {}),
            reads=tuple(job.reads_on(offer.cloud)),
            images=dict(job.policy.images or {}),
            grouped=self._is_group(attempt),
            account=attempt.account or "",
        )

    def _expires(self, attempt: Attempt, offer: Offer, lifetime_s: int, *, replaces: bool) -> float | None:
        """Return the time after which anybody may remove the machines: when the last of them has ended itself.

        A machine that replaces another one lives anew. Its time is rounded up to whole lifetimes since the attempt's
        launch, for it must be the same when the launch is repeated.
        """
        if (begun := attempt.launched) is None:
            return None
        lives = 2 + (self._now - begun) // lifetime_s if replaces else 1
        return begun + QUEUE_S.get(offer.market, 0.0) + lives * lifetime_s + EXPIRY_S

    def _lifetime(self, attempt: Attempt) -> int | None:
        """After so long the machine ends itself, should nobody be there to end it: the limits, and time to stop.

        It is the same however often the launch is repeated: a provider that knows its token refuses another request.
        """
        policy = self._job.policy
        begun = attempt.created if attempt.launched is None else attempt.launched
        lives = [] if attempt.offer["cloud"] == "local" else [LONGEST_S]
        if policy.duration_s is not None:
            lives.append(self._job.created + policy.duration_s - begun + GRACE_S["duration"])
        if policy.cost_usd is not None and attempt.price is not None and self._job.spent is not None:
            left = cost.seconds_left(policy.cost_usd, self._job.spent, attempt.price)
            lives += [] if left is None else [left]
        return max(1, round(min(lives) + LATE_S)) if lives else None

    def _wait(
        self,
        kind: str,
        reason: str,
        changes: Mapping[str, Any],
        pause: str = "wait",
        *,
        at_least_s: float = 0.0,
        counts: bool = True,
    ) -> bool:
        """Try again in place, with the same token, after a pause of that kind (see decisions.backoff). `counts`: the
        pause is a part of _waited_s()."""
        tries, now = self._job.waits + 1, self._time()
        pause_s = max(backoff(pause, tries), at_least_s)
        pause_s += jitter(pause_s / 4, self._job.id, tries)
        since = now if not self._job.waits or self._job.waiting_since is None else self._job.waiting_since
        values = {
            "waits": tries,
            "waiting_since": since if counts else since + pause_s,
            "not_before": now + pause_s,
            "cause": kind,
            "reason": reason,
        }
        # The same reason again and again is one event, though every try is written.
        message = f"waiting: {reason}" if logins.plain(self._job.reason) != reason else ""
        return self._write("waiting", message, job=values, attempt=changes)

    def note_login(self, trouble: str) -> bool:
        """Say in the job's reason what its credentials keep from being done; "": nothing any more. Return whether the
        reason has changed."""
        reason = logins.noted(self._job.reason, trouble) if trouble else logins.plain(self._job.reason)
        return reason != self._job.reason and self._write("", "", job={"reason": reason})

    def _begin_stop(self, attempt: Attempt, cause: str, reason: str) -> bool:
        values = {} if cause == "peer" else {"state": "stopping", "cause": cause, "reason": reason}
        grace = GRACE_S[cause] if attempt.allocation is not None else 0.0
        changes = {"state": "stopping", "cause": cause, "deadline": self._time() + grace}
        return self._write("stopping", reason, job=values, attempt=changes)

    def _take_generation(self, attempt: Attempt, nodes: Sequence[NodeView], *, known: bool = False) -> bool:
        """Write down that the machines have started the program again by themselves; whether there was anything.

        `known`: there is a record. Else it is looked for only when a node's word or end says that there may be.
        """
        record = new_generation(self._job_dir(attempt), attempt, None if known else nodes)
        return record is not None and self._write_generation(attempt, record)

    def _write_generation(self, attempt: Attempt, record: Generation) -> bool:
        whose = "" if record.kind == "members" else f"{record.node}: "
        message = f"{whose}{record.reason}; the program starts again in place (generation {record.generation})"
        known = [*(attempt.generations or []), dataclasses.asdict(record)]
        return self._write("restarted", message, attempt={"generations": known})


def _taken_in_stride(views: Sequence[NodeView], observed: Mapping[str, NodeState]) -> list[NodeView]:
    """Where machines take lost ones' places by themselves, a preempted one's word is no end as long as there is to be
    another: its target does not call it gone."""
    ended = [name for name, state in observed.items() if state.phase == "gone"]
    return [
        dataclasses.replace(view, end=None)
        if view.end is not None and view.end.outcome == "preempted" and view.node not in ended
        else view
        for view in views
    ]
