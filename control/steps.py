"""One step of one job towards its goal. Each is idempotent: a supervisor killed before, in or after it loses nothing.

The order of effects within a step is what makes it so: what is going to be done is written down first (the attempt's
row with its token), then done (launch, terminate: repeatable), then what came of it is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..jobspecs.catalog_targets import targets
from ..jobspecs.plan import Offer
from ..provisioners.base import Allocation, LaunchRequest, NodeRequest, Owner, Provisioner, ProvisionError, launch_token
from ..runtime.jobdir import (
    JOB_KEY,
    AttemptRecord,
    Generation,
    JobDir,
    JobDirError,
    Stop,
    StopReason,
    attempt_key,
    generation_key,
)
from . import cost, states
from .clock import Clock, JobTime
from .decisions import (
    GRACE_S,
    WAITS_IN_PLACE,
    End,
    Later,
    Start,
    backoff,
    decide,
    idle_end,
    jitter,
    left_in_place,
    wanted_end,
)
from .failover import DRY_S
from .members import (
    Regroup,
    Replace,
    Wait,
    cure,
    every_node,
    member_names,
    newest_saved,
    node_records,
    stored,
    used,
    wanted_nodes,
)
from .model import Attempt, JobRow
from .nodes import Watches, look, new_generation
from .outcomes import NodeView, Verdict, judge, must_stop_peers
from .shipping import agent_for
from .store import Change, Store
from .tried import place

log = logging.getLogger("cloudgpu.supervisor")

LATE_S = 5.0
"""After the deadline of a stop: nodes that kill their program at the deadline have so long to say so."""


EXPIRY_S = 3_600.0
"""What was made for machines may be removed by anybody so long after they have ended themselves."""


@dataclass(slots=True)
class Memory:
    """What a supervisor remembers of a job between ticks: caches and pauses only, nothing that decides."""

    time: JobTime
    watches: Watches = field(default_factory=lambda: Watches(0))
    job_dir: JobDir | None = None
    told: int = 0
    """The attempt whose stop.json this process has written."""
    machines_gone: bool = False
    """All machines of the attempt, when they were last looked at."""


@dataclass(slots=True)
class Tools:
    """What a step works with; handed in, so that tests can put their own in place."""

    store: Store
    clock: Clock
    owner: str
    """Of the lease."""
    provisioner: Callable[[str], Provisioner]
    open_dir: Callable[[str], JobDir]


class Step:
    """A job as it was read at the beginning of a tick, and what to do about it. take() is called once."""

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt | None) -> None:
        self._tools = tools
        self._memory = memory
        self._job = job
        self._attempt = attempt
        self._now = memory.time.now()

    def take(self) -> bool:
        """Do what is next; whether anything changed. Raises LostRaceError, JobDirError, ProvisionError, StoreError."""
        if self._attempt is None or self._attempt.state in states.ATTEMPT_END:
            return self._next()
        action = {
            "launching": self._launch,
            "running": self._watch,
            "stopping": self._stop,
            "terminating": self._terminate,
        }[self._attempt.state]
        return action(self._attempt)

    def give_up(self, reason: str) -> bool:
        """The job dir stays unusable: end the attempt, and with it the job."""
        attempt = self._attempt
        if attempt is None or attempt.state in ("terminating", "ended"):
            return False
        return self._conclude(attempt, Verdict("error", reason, None, None))

    # -- between two attempts

    def _next(self) -> bool:
        job, store = self._job, self._tools.store
        if self._now < job.not_before and wanted_end(job, self._attempt, self._now) is None:
            return False
        elsewhere = store.dry_places(job, self._now - DRY_S)
        decision = decide(job, store.attempts(job.id), self._now, elsewhere)
        if isinstance(decision, End):
            return self._end(decision)
        return self._put_off(decision) if isinstance(decision, Later) else self._begin(decision)

    def _put_off(self, later: Later) -> bool:
        """Wait without an attempt: what is tried then, and where, is decided then."""
        values = {
            "state": "recovering" if self._job.state in ("starting", "running") else self._job.state,
            "cause": "capacity",
            "reason": later.reason,
            "not_before": later.until,
        }
        return self._write("waiting", _headline(later.reason), job=values)

    def _end(self, end: End) -> bool:
        values = {
            "state": end.state,
            "cause": end.cause,
            "reason": end.reason,
            "exit_code": end.exit_code,
            "ended": self._now,
        }
        return self._write("state", f"{end.state}: {_headline(end.reason)}" if end.reason else end.state, job=values)

    def _begin(self, start: Start) -> bool:
        job, number = self._job, self._job.attempt + 1
        attempt = Attempt(
            job_id=job.id,
            number=number,
            state="launching",
            round=start.round,
            offer=start.offer.to_json(),
            price=start.offer.price,
            token=launch_token(job.id, number, start.offer.region, start.offer.zone),
            allocation=None,
            cause="",
            scope="",
            deadline=None,
            outcome="",
            reason="",
            exit_code=None,
            progress=None,
            created=self._now,
            launched=None,
            ended=None,
            cost=None,
        )
        values = {
            "state": "recovering" if job.state in ("starting", "running") else job.state,
            "attempt": number,
            "round": start.round,
            "waits": 0,
            "not_before": self._now + start.pause_s if start.pause_s else 0.0,
            "reason": start.reason,
        }
        message = f"attempt {number} on {place(start.offer)}"
        if start.pause_s:
            message += f" in {start.pause_s:.0f} s"
        if start.reason:
            message += f" ({start.reason})"
        return self._write("attempt", message, job=values, new_attempt=attempt)

    # -- launching

    def _launch(self, attempt: Attempt) -> bool:
        end = wanted_end(self._job, attempt, self._now)
        if end is not None:
            return self._begin_stop(attempt, end.cause, end.reason)
        if self._now < self._job.not_before:
            return False
        if attempt.launched is None:
            return self._prepare(attempt)
        offer = Offer.from_json(attempt.offer)
        try:
            allocation = self._provisioner(attempt).launch(self._request(attempt, offer, wanted_nodes(attempt)))
        except ProvisionError as error:
            return self._refused(attempt, error)
        values = {"state": "starting", "round": 0, "waits": 0, "not_before": 0.0, "cause": "", "reason": ""}
        changes = {"state": "running", "allocation": allocation.to_json()}
        return self._write("launched", f"got its machines: {place(offer)}", job=values, attempt=changes)

    def _prepare(self, attempt: Attempt) -> bool:
        """What a machine will read, then that machines are about to be asked for: from here on time is paid."""
        job_dir, offer = self._job_dir(), Offer.from_json(attempt.offer)
        found = job_dir.find(JOB_KEY)
        if found is None or hashlib.sha256(found).hexdigest() != self._job.job_sha256:
            state = "is missing" if found is None else "is not the one that was submitted"
            return self._conclude(attempt, Verdict("error", f"{self._job.job_dir}/{JOB_KEY} {state}", None, None))
        nodes = [dataclasses.asdict(record) for record in node_records(wanted_nodes(attempt))]
        left = left_in_place(self._job.policy, self._tools.store.attempts(self._job.id))
        heals = len(nodes) > 1 and targets()[offer.cloud].replaces_nodes
        record = AttemptRecord(attempt.number, attempt.offer, nodes, left.failures, left.interruptions, heals)
        if not job_dir.create(attempt_key(attempt.number), record.to_bytes()):
            reason = f"{attempt_key(attempt.number)} was written by somebody else"
            return self._conclude(attempt, Verdict("error", reason, None, None))
        price = self._provisioner(attempt).price(offer)
        if price is None or price == attempt.price:
            return self._write("", "", attempt={"launched": self._now})
        planned = "unknown" if attempt.price is None else f"{attempt.price} USD/h"
        message = f"attempt {attempt.number} costs {price} USD/h now; planned: {planned}"
        return self._write("price", message, attempt={"launched": self._now, "price": price})

    def _request(self, attempt: Attempt, offer: Offer, nodes: tuple[NodeRequest, ...]) -> LaunchRequest:
        job, lifetime = self._job, self._lifetime(attempt)
        return LaunchRequest(
            job_id=job.id,
            attempt=attempt.number,
            token=attempt.token,
            owner=Owner(job.owner),
            job_dir=job.job_dir,
            job_sha256=job.job_sha256,
            region=offer.region,
            zone=offer.zone,
            market=offer.market,
            disk_gb=offer.disk_gb,
            nodes=nodes,
            lifetime_s=lifetime,
            expires=None if lifetime is None or attempt.launched is None else attempt.launched + lifetime + EXPIRY_S,
            agent=agent_for(offer, job.policy.agents or {}),
        )

    def _lifetime(self, attempt: Attempt) -> int | None:
        """After so long the machine ends itself, should nobody be there to end it: the limits, and time to stop.

        It is the same however often the launch is repeated: a provider that knows its token refuses another request.
        """
        policy = self._job.policy
        begun = attempt.created if attempt.launched is None else attempt.launched
        lives: list[float] = []
        if policy.duration_s is not None:
            lives.append(self._job.created + policy.duration_s - begun + GRACE_S["duration"])
        if policy.cost_usd is not None and attempt.price is not None and self._job.spent is not None:
            left = cost.seconds_left(policy.cost_usd, self._job.spent, attempt.price)
            lives += [] if left is None else [left]
        return max(1, round(min(lives) + LATE_S)) if lives else None

    def _refused(self, attempt: Attempt, error: ProvisionError) -> bool:
        """The reaction to each class of error: another try here, another place, or the end (see decisions.py)."""
        kind, reason = error.error_class, str(error)
        alone = len(self._job.offers) == 1
        if kind in ("throttled", "transient") and (alone or self._job.waits < WAITS_IN_PLACE):
            return self._wait(kind, reason, {}, at_least_s=error.retry_after or 0.0)
        if kind == "capacity" and alone and self._is_queue(attempt):
            return self._wait(kind, reason, {"launched": None})  # nothing was got: this waiting costs nothing
        changes = {"cause": kind, "scope": error.scope, "hints": list(error.hints)}
        return self._conclude(attempt, Verdict("refused", reason, None, None), changes)

    def _is_queue(self, attempt: Attempt) -> bool:
        """This machine is waited for within one attempt: its GPUs come free one by one, and it costs nothing to ask."""
        patience = self._job.policy.capacity_s
        over = patience is not None and self._now - attempt.created >= patience
        return attempt.offer["cloud"] == "local" and not over and self._allocation(attempt) is None

    def _wait(
        self,
        kind: str,
        reason: str,
        changes: Mapping[str, Any],
        pause: str = "wait",
        *,
        at_least_s: float = 0.0,
    ) -> bool:
        """Another try in place, with the same token, after a pause of that kind (see decisions.backoff)."""
        tries = self._job.waits + 1
        pause_s = max(backoff(pause, tries), at_least_s)
        values = {
            "waits": tries,
            "not_before": self._now + pause_s + jitter(pause_s / 4, self._job.id, tries),
            "cause": kind,
            "reason": reason,
        }
        # The same reason again and again is one event, though every try is written.
        message = f"waiting: {reason}" if self._job.reason != reason else ""
        return self._write("waiting", message, job=values, attempt=changes)

    # -- running

    def _watch(self, attempt: Attempt) -> bool:
        end = wanted_end(self._job, attempt, self._now)
        if end is not None:
            return self._begin_stop(attempt, end.cause, end.reason)
        seen = self._look(attempt, self._allocation(attempt))
        nodes = _members(attempt, seen)
        if self._job.state == "starting" and any(node.begun for node in nodes):
            return self._write("state", "running", job={"state": "running"})
        if self._take_generation(attempt, seen):
            return True
        if all(node.end is not None for node in nodes):
            return self._conclude(attempt, judge(nodes))
        healing = self._heal(attempt, seen)
        if healing is not None:
            return healing
        why = self._of_no_use(nodes)
        return why is not None and self._begin_stop(attempt, *why)

    def _of_no_use(self, nodes: Sequence[NodeView]) -> tuple[str, str] | None:
        """Cause and reason for ending nodes that are still there; None: go on."""
        ended = must_stop_peers(nodes)
        if ended is not None and ended.end is not None:
            return "peer", f"{ended.node} {ended.end.outcome}: {ended.end.reason}"
        idle = idle_end(self._job, nodes)
        return None if idle is None else (idle.cause, idle.reason)

    def _take_generation(self, attempt: Attempt, nodes: Sequence[NodeView], *, known: bool = False) -> bool:
        """Write down that the machines have started the program again by themselves; whether there was anything.

        `known`: there is a record. Else it is looked for only when a node's word or end says that there may be.
        """
        record = new_generation(self._job_dir(), attempt, None if known else nodes)
        return record is not None and self._write_generation(attempt, record)

    def _write_generation(self, attempt: Attempt, record: Generation) -> bool:
        whose = "" if record.kind == "members" else f"{record.node}: "
        message = f"{whose}{record.reason}; the program starts again in place (generation {record.generation})"
        known = [*(attempt.generations or []), dataclasses.asdict(record)]
        return self._write("restarted", message, attempt={"generations": known})

    # -- healing

    def _heal(self, attempt: Attempt, seen: Sequence[NodeView]) -> bool | None:
        """Replace what was lost, or do without it; whether anything changed. None: there is nothing to heal."""
        if not targets()[attempt.offer["cloud"]].replaces_nodes:
            return None
        policy, nodes = self._job.policy, {view.node: view for view in seen}
        left = left_in_place(policy, self._tools.store.attempts(self._job.id)).interruptions
        found = cure(attempt, nodes, policy.least_nodes, left)
        if isinstance(found, Replace):
            names = ", ".join(request.node for request in found.nodes if request not in wanted_nodes(attempt))
            message = f"{found.reason}; {names} is to take its place"
            return self._write("replacing", message, attempt={"nodes": stored(found.nodes)})
        if isinstance(found, Regroup):
            return self._regroup(attempt, found, nodes)
        return self._add_machines(attempt) or (False if isinstance(found, Wait) else None)

    def _regroup(self, attempt: Attempt, regroup: Regroup, nodes: Mapping[str, NodeView]) -> bool:
        """Tell the machines who goes on; if one of them has begun something else meanwhile, that is taken note of."""
        failures, interruptions = used(attempt, nodes, regroup)
        number = len(attempt.generations or []) + 2
        record = Generation(
            generation=number,
            kind="members",
            node=regroup.node,
            group=True,
            reason=regroup.reason,
            pause_s=0.0,
            failures=failures,
            interruptions=interruptions,
            time=self._tools.clock.now(),
            nonce=self._tools.owner,
            nodes=[dataclasses.asdict(one) for one in node_records(regroup.nodes)],
            grace_s=regroup.grace_s,
            saved_step=newest_saved(nodes.values()),
        )
        if self._job_dir().create(generation_key(attempt.number, number), record.to_bytes()):
            return self._write_generation(attempt, record)
        return self._take_generation(attempt, list(nodes.values()), known=True)

    def _add_machines(self, attempt: Attempt) -> bool | None:
        """Ask for the machines that the attempt shall have and has not; None: it has all, or it is not time to."""
        allocation = self._allocation(attempt)
        missing = tuple(node for node in wanted_nodes(attempt) if allocation and node.node not in allocation.machines)
        if allocation is None or not missing or self._now < self._job.not_before:
            return None
        names = ", ".join(node.node for node in missing)
        request = self._request(attempt, Offer.from_json(attempt.offer), missing)
        try:
            got = self._provisioner(attempt).launch(request)
        except ProvisionError as error:
            if error.error_class in ("throttled", "transient"):
                return self._wait(error.error_class, str(error), {})
            if self._job.policy.least_nodes is None:
                return self._begin_stop(attempt, "peer", f"{names} cannot be got: {error}")
            return self._wait(error.error_class, f"{names} cannot be got: {error}", {}, "round")
        merged = dataclasses.replace(
            got, machines={**allocation.machines, **got.machines}, details={**allocation.details, **got.details}
        )
        values = {"waits": 0, "not_before": 0.0, "cause": "", "reason": ""}
        return self._write("launched", f"got {names}", job=values, attempt={"allocation": merged.to_json()})

    # -- stopping

    def _begin_stop(self, attempt: Attempt, cause: str, reason: str) -> bool:
        values = {} if cause == "peer" else {"state": "stopping", "cause": cause, "reason": reason}
        grace = GRACE_S[cause] if attempt.allocation is not None else 0.0
        changes = {"state": "stopping", "cause": cause, "deadline": self._now + grace}
        return self._write("stopping", reason, job=values, attempt=changes)

    def _stop(self, attempt: Attempt) -> bool:
        """Tell the nodes; also those of an attempt that has none yet: a launch under way elsewhere must find it."""
        end = wanted_end(self._job, attempt, self._now)
        if end is not None and self._job.state != "stopping":  # its peers were being stopped when the user cancelled
            values = {"state": "stopping", "cause": end.cause, "reason": end.reason}
            return self._write("stopping", end.reason, job=values)
        deadline = attempt.deadline or 0.0
        try:
            self._tell(attempt, deadline)
            nodes = _members(attempt, self._look(attempt, self._allocation(attempt)))
            if self._take_generation(attempt, nodes):
                return True
        except JobDirError as error:
            if self._now < deadline:
                raise
            reason = f"terminated without being told, for the job dir cannot be used: {error}"
            return self._conclude(attempt, Verdict("stopped", reason, None, None))
        if all(node.end is not None for node in nodes) or self._now >= deadline + LATE_S:
            return self._conclude(attempt, judge(nodes))
        return False

    def _tell(self, attempt: Attempt, deadline: float) -> None:
        if self._memory.told != attempt.number:
            left = max(0.0, deadline - self._now)
            epoch = self._tools.clock.now() + left  # as the machines' clocks, not as this job's time
            stop = Stop(cast("StopReason", attempt.cause), epoch, left)
            self._job_dir().put(attempt_key(attempt.number, "stop.json"), stop.to_bytes())
            self._memory.told = attempt.number

    # -- terminating

    def _conclude(self, attempt: Attempt, verdict: Verdict, more: Mapping[str, Any] | None = None) -> bool:
        """Write how the attempt ended while its machines may still be there: what we end is not to be judged again."""
        changes = {
            "state": "terminating",
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "exit_code": verdict.exit_code,
            "progress": verdict.progress,
            "timeline": verdict.timeline,
            **({"cause": "user"} if verdict.final else {}),
            **(more or {}),
        }
        message = f"attempt {attempt.number} {verdict.outcome}"
        return self._write("outcome", f"{message}: {verdict.reason}" if verdict.reason else message, attempt=changes)

    def _terminate(self, attempt: Attempt) -> bool:
        if not self._release(attempt):
            return False
        paid = None if attempt.launched is None else self._now
        charged = cost.attempt_cost(attempt, self._now)
        before = self._job.spent
        spent = None if before is None or charged is None else before + charged
        changes = {"state": "ended", "ended": paid or self._now, "cost": charged}
        values = {"spent": spent, "not_before": 0.0}
        return self._write("ended", "all machines are gone", job=values, attempt=changes)

    def _release(self, attempt: Attempt) -> bool:
        """Terminate what there is of an attempt; whether it is all gone."""
        if attempt.launched is None:
            return True
        allocation = self._known_or_not(attempt)
        provisioner = self._provisioner(attempt)
        provisioner.terminate(allocation)
        return all(state.phase == "gone" for state in provisioner.observe(allocation))

    def _known_or_not(self, attempt: Attempt) -> Allocation:
        """To be ended. Of a launch whose answer nobody has, token and region tell enough: the whole account, with
        everything that its other jobs have, need not be looked through for each place that has no machines."""
        if attempt.allocation is not None:
            return Allocation.from_json(attempt.allocation)
        job, offer = self._job, attempt.offer
        details = {"region": offer["region"], "owner": job.owner}
        return Allocation(offer["cloud"], job.id, attempt.number, attempt.token, {}, details)

    # -- helpers

    def _allocation(self, attempt: Attempt) -> Allocation | None:
        """The attempt's machines: as written, or, if we died between launch() and writing, as the target knows them."""
        if attempt.allocation is not None:
            return Allocation.from_json(attempt.allocation)
        if attempt.launched is None:
            return None
        found = self._provisioner(attempt).find(Owner(self._job.owner))
        return next((allocation for allocation in found if allocation.token == attempt.token), None)

    def _look(self, attempt: Attempt, allocation: Allocation | None) -> Sequence[NodeView]:
        if allocation is None:
            return ()
        observed = {state.node: state for state in self._provisioner(attempt).observe(allocation)}
        self._memory.machines_gone = all(state.phase == "gone" for state in observed.values())
        if self._memory.watches.attempt != attempt.number:
            self._memory.watches = Watches(attempt.number)
        steady = self._tools.clock.monotonic()
        return look(self._job_dir(), self._memory.watches, every_node(attempt), observed, steady)

    def _provisioner(self, attempt: Attempt) -> Provisioner:
        return self._tools.provisioner(attempt.offer["cloud"])

    def _job_dir(self) -> JobDir:
        if self._memory.job_dir is None:
            self._memory.job_dir = self._tools.open_dir(self._job.job_dir)
        return self._memory.job_dir

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
            time=self._now,
            attempt=self._attempt,
            set_job=job or {},
            set_attempt=attempt or {},
            new_attempt=new_attempt,
        )
        self._tools.store.apply(change, self._tools.owner)
        if message:
            log.info("%s: %s", self._job.id, message)
        return True


def _members(attempt: Attempt, seen: Sequence[NodeView]) -> list[NodeView]:
    """Those that the program runs on: what becomes of others says nothing about the attempt."""
    names = member_names(attempt)
    return [view for view in seen if view.node in names]


def _headline(reason: str) -> str:
    """What of a reason stands in an event: `status` shows all of it."""
    return reason.partition("\n")[0]
