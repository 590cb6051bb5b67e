"""One step of one job towards its goal. Each is idempotent: a supervisor killed before, in or after it loses nothing.

The order of effects within a step is what makes it so: what is going to be done is written down first (the attempt's
row with its token), then done (launch, terminate: repeatable), then what came of it is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...jobspecs.catalog.targets import targets
from ...jobspecs.plan import Offer
from ...protocol.attempt_signal import send_signal
from ...protocol.jobdir import (
    JOB_KEY,
    AttemptRecord,
    JobDirError,
    JobRecord,
    RecordError,
    Stop,
    StopReason,
    attempt_key,
)
from ...provisioners.base import Allocation, Ended, NodeRequest, Provisioner, ProvisionError, Shared, launch_token
from ...provisioners.shared.accounts import OTHER_ACCOUNT
from ...provisioners.shared.calls import LaunchInterruptedError, attentive
from ...runtime.moving import AllDamagedError
from ..accounting import cost
from ..errors import StoreError
from ..store import states
from ..store.model import QUEUES, Attempt
from . import logins
from .decisions import IN_PLACE_S, End, Later, Start, decide, idle_end, left_in_place, patience_ends, wanted_end
from .earlier import earlier_history
from .failover import DRY_S
from .healing import Healing
from .job_step import LATE_S
from .members import forgiven, member_names, node_records, stored, wanted_nodes
from .moving import Moving
from .nodes import UNSEEN_S, read_whole_timeline
from .outcomes import AT_DEADLINE, NodeView, Verdict, judge, must_stop_peers

log = logging.getLogger("cloudgpu.supervisor")

FREE_S = 60.0
"""So much of an attempt's time in the provider's queue counts as paid, at most; it is written so often."""

_SHUT_OUT = frozenset({"auth", "expired", "invalid"})
"""Errors that the end of a launch may meet as well as its beginning: credentials, settings."""


class Step(Healing, Moving):
    """What to do next about a job. take() is called once."""

    def take(self) -> bool:
        """Do what is next; whether anything changed. Raises LostRaceError, JobDirError, ProvisionError, StoreError."""
        if self._attempt is None or self._attempt.state in states.ATTEMPT_END:
            return self._next()
        self._check_account(self._attempt.offer["cloud"], self._attempt.account)
        action = {
            "launching": self._launch,
            "running": self._watch,
            "stopping": self._stop,
            "terminating": self._terminate,
        }[self._attempt.state]
        return action(self._attempt)

    def give_up(self, reason: str) -> bool:
        """End the attempt, and with it the job, without a look at its job dir or its machines."""
        attempt = self._attempt
        if attempt is None or attempt.state == "ended":
            return self._end(wanted_end(self._job, attempt, self._now) or End("failed", "error", reason))
        if attempt.state == "terminating":
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
            "ended": self._time(),
        }
        return self._write("state", f"{end.state}: {_headline(end.reason)}" if end.reason else end.state, job=values)

    def _begin(self, start: Start) -> bool:
        job, number = self._job, self._job.attempt + 1
        account = (job.policy.accounts or {}).get(start.offer.cloud)
        self._check_account(start.offer.cloud, account)
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
            account=account,
        )
        values = {
            "state": "recovering" if job.state in ("starting", "running") else job.state,
            "attempt": number,
            "round": start.round,
            "waits": 0,
            "not_before": self._now + start.pause_s if start.pause_s else 0.0,
            "reason": start.reason,
        }
        message = f"attempt {number} on {start.offer.label}"
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
            waits = self._wait_for_turn(attempt)
            return self._prepare(attempt) if waits is None else waits
        offer = Offer.from_json(attempt.offer)
        first, self._memory.unasked = self._memory.unasked == attempt.number, 0
        try:
            request = dataclasses.replace(self._request(attempt, offer, wanted_nodes(attempt)), repeated=not first)
            with attentive(self._is_unwanted):
                allocation = self._provisioner(attempt).launch(request)
        except LaunchInterruptedError:
            return True  # the next step ends what was made
        except ProvisionError as error:
            if error.code == OTHER_ACCOUNT:
                raise
            return self._refused(attempt, error, first=first)
        values = {"state": "starting", "round": 0, "waits": 0, "not_before": 0.0, "cause": "", "reason": ""}
        changes: dict[str, Any] = {"state": "running", "allocation": allocation.to_json()}
        if self._job.waits and allocation.is_fresh:
            changes["launched"] = self._now  # what was waited before was without a machine
        group = ", as a group that replaces lost machines" if request.grouped else ""
        return self._write("launched", f"launched on {offer.label}{group}", job=values, attempt=changes)

    def _wait_for_turn(self, attempt: Attempt) -> bool | None:
        """Wait in the queue of the target, if it has one; None: it is the job's turn. Nothing is prepared before."""
        provisioner = self._provisioner(attempt)
        if not isinstance(provisioner, Shared):
            return None
        turn = self._tools.queue.place(self._job.id, self._now)
        short = provisioner.shortage(wanted_nodes(attempt), turn.ahead)
        if not short:
            return None
        if not self._waits_in_queue(attempt):
            return self._refused(attempt, ProvisionError("capacity", short), first=True)
        self._memory.pause_s = turn.pause_s
        if self._job.reason == short:
            return False
        return self._write("waiting", f"waiting: {short}", job={"cause": "capacity", "reason": short})

    def _is_unwanted(self) -> bool:
        """Return whether the job was cancelled, or reached a limit, since the step began. Called within launch()."""
        with contextlib.suppress(StoreError):
            job = self._tools.store.job(self._job.id)
            return job is not None and wanted_end(job, self._attempt, self._memory.time.now()) is not None
        return False

    def _prepare(self, attempt: Attempt) -> bool:
        """What a machine will read, then that machines are about to be asked for: from here on time is paid."""
        offer = Offer.from_json(attempt.offer)
        self._memory.unasked = attempt.number
        if self._reprice(attempt, offer):
            return True
        try:
            told = self._move_in(attempt)
        except AllDamagedError as error:
            return self._conclude(attempt, Verdict("error", str(error), None, None))
        if told is None or (told and self._reprice(attempt, offer)):  # copying may have taken hours
            return True
        job_dir, wanted = self._job_dir(attempt), wanted_nodes(attempt)
        try:
            found = job_dir.find(JOB_KEY, JobRecord.MOST_BYTES)
        except RecordError:  # something else lies there
            found = b""
        if found is None or hashlib.sha256(found).hexdigest() != self._job.job_sha256:
            state = "is missing" if found is None else "is not the one that was submitted"
            return self._conclude(attempt, Verdict("error", f"{job_dir.url}/{JOB_KEY} {state}", None, None))
        itself = self._heals_itself(attempt)
        replaces = not itself and len(wanted) > 1 and targets()[offer.cloud].replaces_nodes
        if (elsewhere := self._describe(attempt, wanted, heals=replaces or itself)) is not None:
            reason = f"{elsewhere} was written by somebody else"
            return self._conclude(attempt, Verdict("error", reason, None, None))
        return self._announce(attempt, told, stored(wanted) if replaces else None)

    def _announce(self, attempt: Attempt, message: str, nodes: list[dict[str, Any]] | None) -> bool:
        """Write that machines are going to be asked for, and in which account."""
        account = attempt.account
        if account is None:
            try:
                account = self._provisioner(attempt).account()
            except ProvisionError as error:
                return self._refused(attempt, error, first=True)
        return self._write("moved", message, attempt={"launched": self._now, "nodes": nodes, "account": account})

    def _reprice(self, attempt: Attempt, offer: Offer) -> bool:
        """Whether the price has changed since it was last looked at, for the first time when the plan was made."""
        price = self._provisioner(attempt).price(offer)
        if price is None or price == attempt.price:
            return False
        most = self._job.policy.price_usd
        if most is not None and price > most:
            message = f"{offer.label} costs {price} USD/h now, more than limits.price, {most} USD/h"
            return self._refused(attempt, ProvisionError("capacity", message), first=True)
        planned = "unknown" if attempt.price is None else f"{attempt.price} USD/h"
        message = f"attempt {attempt.number} costs {price} USD/h now; planned: {planned}"
        return self._write("price", message, attempt={"price": price})

    def _describe(self, attempt: Attempt, wanted: Sequence[NodeRequest], *, heals: bool) -> str | None:
        """Write attempt.json, also where the last attempt ran: what is left of it, or looks for it there, finds that
        the job has gone on. None; or the URL of one that somebody else has written."""
        left, here = self._left_dir(attempt), self._job_dir(attempt).url
        attempts = self._tools.store.attempts(self._job.id)
        tries = left_in_place(self._job.policy, attempts)
        record = AttemptRecord(
            attempt=attempt.number,
            offer=attempt.offer,
            nodes=[dataclasses.asdict(node) for node in node_records(wanted)],
            failures_left=tries.failures,
            interruptions_left=tries.interruptions,
            heals=heals,
            job_dir=here if left != here else "",
            earlier=earlier_history(attempts),
        )
        key, content = attempt_key(attempt.number), record.to_bytes()
        places = dict.fromkeys((left, here))
        return next((f"{url}/{key}" for url in places if not self._open_dir(url).create(key, content)), None)

    def _refused(self, attempt: Attempt, error: ProvisionError, *, first: bool) -> bool:
        """The reaction to each class of error: another try here, another place, or the end (see decisions.py).

        `first`: nobody had asked for these machines before.
        """
        kind, reason = error.error_class, str(error)
        if error.has_started:
            self._memory.started = attempt.number
        nothing = {"launched": None} if first and not error.may_have_created else {}
        if self._waits_for_login(attempt, error, may_exist=not nothing):
            return self._wait("expired", logins.words(error), nothing, "login")
        alone = len(self._job.offers) == 1
        if kind in ("throttled", "transient") and not self._has_waited(alone=alone):
            return self._wait(kind, reason, {}, at_least_s=error.retry_after or 0.0, counts=not error.is_unsent)
        if kind == "capacity" and self._waits_in_queue(attempt):
            return self._wait(kind, reason, {"launched": None}, "queue")  # nothing was got: this waiting costs nothing
        changes: dict[str, Any] = {"cause": kind, "scope": error.scope, "hints": list(error.hints)}
        if kind in _SHUT_OUT:
            changes |= nothing  # so nothing of it runs: see _release()
        return self._conclude(attempt, Verdict("refused", reason, None, None), changes)

    def _waits_for_login(self, attempt: Attempt, error: ProvisionError, *, may_exist: bool) -> bool:
        """Return whether the launch waits for renewed credentials, within retry.capacity.

        What may have been made can only be found with them. Credentials that never worked are no reason to wait, nor
        are those of one cloud where the job may go to another.
        """
        if not error.is_login or self._now >= self._patience_ends():
            return False
        elsewhere = any(offer["cloud"] != attempt.offer["cloud"] for offer in self._job.offers)
        worked = error.error_class == "expired" or self._job.state == "recovering"
        return may_exist or (worked and not elsewhere)

    def _has_waited(self, *, alone: bool) -> bool:
        """Return whether to leave a place that does not answer: after IN_PLACE_S, or, if there is no other place, at
        the end of retry.capacity."""
        return self._now >= self._patience_ends() if alone else self._waited_s() >= IN_PLACE_S

    def _patience_ends(self) -> float:
        return patience_ends(self._job, self._tools.store.attempts(self._job.id))

    def _waits_in_queue(self, attempt: Attempt) -> bool:
        """Return whether this machine is waited for within one attempt: asking it costs nothing.

        A job that needs GPUs and may run elsewhere does not wait here. One that needs none waits for cores: they come
        free soon, and other machines may cost money.
        """
        patience = self._job.policy.capacity_s
        over = patience is not None and self._now - attempt.created >= patience
        if attempt.offer["cloud"] not in QUEUES or over or self._allocation(attempt) is not None:
            return False
        waits_for_cores = not any(node.accelerator for node in wanted_nodes(attempt))
        return len(self._job.offers) == 1 or (waits_for_cores and isinstance(self._provisioner(attempt), Shared))

    # -- running

    def _watch(self, attempt: Attempt) -> bool:
        end = wanted_end(self._job, attempt, self._now)
        seen = self._look_before(end, attempt)
        nodes = _members(attempt, seen)
        if end is not None and (not nodes or any(node.end is None for node in nodes)):
            return self._begin_stop(attempt, end.cause, end.reason)
        if self._note_begun(nodes):
            return True
        if self._note_queue(attempt, seen) or self._take_generation(attempt, seen, known=self._memory.strangers):
            return True
        if (over := self._over(attempt, nodes)) is not None:
            return over
        healing = self._heal(attempt, seen)
        if healing is not None:
            return healing
        why = self._of_no_use(nodes)
        return why is not None and self._begin_stop(attempt, *why)

    def _look_before(self, end: End | None, attempt: Attempt) -> Sequence[NodeView]:
        """Look at the nodes; () if the attempt shall end whatever is seen, for the machines must learn that at once.

        Before limits.cost ends it they are looked at: machines that went while no supervisor ran have cost less. If
        they cannot be looked at, the limit holds.
        """
        if end is not None and end.cause != "cost":
            return ()
        try:
            return self._look(attempt, self._allocation(attempt))
        except (ProvisionError, JobDirError):
            if end is None:
                raise
            return ()

    def _note_begun(self, nodes: Sequence[NodeView]) -> bool:
        """Write down that the program runs, at last; also if peers are being stopped: they may yet succeed."""
        if self._job.state != "starting" or not any(node.begun for node in nodes):
            return False
        return self._write("state", "running", job={"state": "running", "reason": ""})

    def _note_queue(self, attempt: Attempt, nodes: Sequence[NodeView]) -> bool:
        """Of a job that waits in the provider's queue: what that says is the job's reason, and it is not paid for;
        whether that was written down. Once it had a machine, what waits has been paid for before."""
        if self._job.state != "starting":
            return False
        if self._memory.queue != self._job.reason:
            return self._write("", "", job={"reason": self._memory.queue})
        if not self._is_only_queued(nodes):
            return False
        if attempt.launched is None or self._now - attempt.launched < FREE_S:
            return False
        return self._write("", "", attempt={"launched": self._now})

    def _over(self, attempt: Attempt, nodes: Sequence[NodeView]) -> bool | None:
        """What to say of an attempt that never began after all, or whose nodes have all ended; None: it goes on."""
        refusal = next((node.end.refused for node in nodes if node.end is not None and node.end.refused), None)
        if refusal is not None:
            return self._refused(attempt, refusal, first=False)
        return self._judge(attempt, nodes) if all(node.end is not None for node in nodes) else None

    def _of_no_use(self, nodes: Sequence[NodeView]) -> tuple[str, str] | None:
        """Cause and reason for ending nodes that are still there; None: go on."""
        ended = must_stop_peers(nodes)
        if ended is not None and ended.end is not None:
            return "peer", f"{ended.node} {ended.end.outcome}: {ended.end.reason}"
        idle = idle_end(self._job, nodes)
        return None if idle is None else (idle.cause, idle.reason)

    # -- stopping

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
            if self._note_begun(nodes) or self._take_generation(attempt, nodes):
                return True
        except (JobDirError, ProvisionError) as error:
            if self._time() < deadline + (LATE_S if isinstance(error, ProvisionError) else 0.0):
                raise
            return self._conclude(attempt, Verdict("stopped", _unseen(error), None, None))
        if all(node.end is not None for node in nodes) or self._now >= deadline + LATE_S:
            return self._judge(attempt, nodes)
        if self._is_only_queued(nodes):  # no program runs that could save
            return self._judge(attempt, nodes, left="ended while it waited for machines")
        return False

    def _is_only_queued(self, nodes: Sequence[NodeView]) -> bool:
        """Return whether all machines wait in the provider's queue. A listing may be some seconds old: a node that has
        reported has a machine."""
        return self._memory.queued and not any(node.reported for node in nodes)

    def _tell(self, attempt: Attempt, deadline: float) -> None:
        if self._memory.told != attempt.number:
            left = max(0.0, deadline - self._now)
            epoch = self._tools.clock.now() + left  # as the machines' clocks, not as this job's time
            stop = Stop(cast("StopReason", attempt.cause), epoch, left)
            job_dir = self._job_dir(attempt)
            job_dir.put(attempt_key(attempt.number, "stop.json"), stop.to_bytes())
            send_signal(job_dir, attempt.number)
            self._memory.told = attempt.number

    # -- terminating

    def _judge(self, attempt: Attempt, nodes: Sequence[NodeView], *, left: str = AT_DEADLINE) -> bool:
        """All of its members have ended, or have had their time; `left`: why of those that have not."""
        verdict = judge(nodes, left=left)
        timeline = read_whole_timeline(self._job_dir(attempt), attempt) or verdict.timeline
        verdict = dataclasses.replace(verdict, timeline=timeline)
        return self._conclude(forgiven(attempt, nodes), verdict, self._paid(attempt, nodes))

    def _paid(self, attempt: Attempt, nodes: Sequence[NodeView]) -> dict[str, Any]:
        """What it has cost, if its machines went while nobody looked: they are taken to have lasted for a while after
        they were last heard of. One that told nothing may have been there until now."""
        told_at = [node.told_at for node in nodes if node.told_at is not None]
        if not self._memory.watches.went_unseen or not told_at or len(told_at) < len(nodes):
            return {}
        gone = dataclasses.replace(attempt, ended=min(self._now, max(told_at) + UNSEEN_S))
        return {"cost": cost.attempt_cost(gone, self._now)}

    def _conclude(self, attempt: Attempt, verdict: Verdict, more: Mapping[str, Any] | None = None) -> bool:
        """Write how the attempt ended while its machines may still be there: what we end is not to be judged again."""
        changes = {
            "state": "terminating",
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "exit_code": verdict.exit_code,
            "progress": verdict.progress,
            "timeline": verdict.timeline,
            "generations": attempt.generations,
            **({"cause": "user"} if verdict.final else {}),
            **(more or {}),
        }
        message = f"attempt {attempt.number} {verdict.outcome}"
        return self._write("outcome", f"{message}: {verdict.reason}" if verdict.reason else message, attempt=changes)

    def _terminate(self, attempt: Attempt) -> bool:
        ended = self._release(attempt)
        if ended is None:
            return False
        has_started = ended.has_started or self._memory.started == attempt.number
        known = None if ended is _UNKNOWN else has_started
        free: dict[str, Any] = {}
        if cost.was_free(attempt, has_started=known, grouped=self._is_group(attempt)):
            free = {"launched": None}
        now = self._time()
        gone = now if ended.at is None else min(now, max(ended.at, attempt.launched or 0.0))
        charged = cost.attempt_cost(dataclasses.replace(attempt, ended=gone, **free), now)
        before = self._job.spent
        spent = None if before is None or charged is None else before + charged
        changes = {"state": "ended", "ended": now, "cost": charged, **free}
        values = {"spent": spent, "not_before": 0.0}
        return self._write("ended", "all machines are gone", job=values, attempt=changes)

    def _release(self, attempt: Attempt) -> Ended | None:
        """Terminate what there is of an attempt; None: it is not all gone yet."""
        if attempt.launched is None:
            return Ended(has_started=False)  # nothing was ever made
        allocation = self._known_or_not(attempt)
        provisioner = self._provisioner(attempt)
        try:
            ended = provisioner.terminate(allocation)
        except ProvisionError:
            self._fix_cost(attempt, provisioner)
            raise
        is_gone = all(state.phase == "gone" for state in provisioner.observe(allocation))
        return (ended or _UNKNOWN) if is_gone else None

    def _fix_cost(self, attempt: Attempt, provisioner: Provisioner) -> None:
        """Write what the attempt has cost, if its machines are gone and only the rest could not be removed."""
        allocation = self._allocation(attempt)
        if allocation is None or attempt.cost is not None or not allocation.machines:
            return
        with contextlib.suppress(ProvisionError):
            if all(state.phase == "gone" for state in provisioner.observe(allocation)):
                now = self._time()
                charged = cost.attempt_cost(dataclasses.replace(attempt, ended=now), now)
                self._write("", "", attempt={"cost": charged})

    def _known_or_not(self, attempt: Attempt) -> Allocation:
        """To be ended. Of a launch whose answer nobody has, token and region tell enough: the whole account, with
        everything that its other jobs have, need not be looked through for each place that has no machines."""
        known = self._allocation(attempt)
        if known is not None:
            return known
        job, offer = self._job, attempt.offer
        return Allocation(
            offer["cloud"],
            job.id,
            attempt.number,
            attempt.token,
            {},
            region=offer["region"],
            owner=job.owner,
            account=attempt.account or "",
        )


_UNKNOWN = Ended(has_started=False)
"""Result for a target whose terminate() reports nothing."""


def _unseen(error: JobDirError | ProvisionError) -> str:
    """Return why an attempt was terminated without a look at its nodes."""
    if isinstance(error, JobDirError):
        return f"terminated without being told, for the job dir cannot be used: {error}"
    return f"terminated at the deadline; its machines could not be looked at: {error}"


def _members(attempt: Attempt, seen: Sequence[NodeView]) -> list[NodeView]:
    """Those that the program runs on: what becomes of others says nothing about the attempt."""
    names = member_names(attempt)
    return [view for view in seen if view.node in names]


def _headline(reason: str) -> str:
    """What of a reason stands in an event: `status` shows all of it."""
    return reason.partition("\n")[0]
