"""Teardown of an attempt: conclude it, stop its nodes, terminate its machines, and write its cost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ....protocol.attempt_signal import send_signal
from ....protocol.jobdir import JobDirError, Stop, StopReason, attempt_key
from ....provisioners.base import Allocation, ProvisionError, TerminateResult
from ...accounting import cost
from ...store.model import Attempt
from ..decisions import wanted_end
from ..node_observation import UNSEEN_S, read_whole_timeline
from ..node_replacement import without_caused_restarts
from ..outcomes import AT_DEADLINE, NodeView, Verdict, attempt_outcome
from .context import AttemptContext
from .launch_request import LATE_S
from .observing import Observer
from .secrets import SecretSender

_UNKNOWN = TerminateResult(has_started=False)
"""Result for a target whose terminate() reports nothing."""


def conclude(context: AttemptContext, verdict: Verdict, attempt: Attempt | None = None) -> bool:
    """Write the outcome before the machines are terminated, so that their end does not change it. Returns True.

    `attempt`: the attempt's row with further changes to write
    """
    concluded = replace(
        attempt or context.attempt,
        state="terminating",
        outcome=verdict.outcome,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        progress=verdict.progress,
        timeline=verdict.timeline,
    )
    if verdict.final:
        concluded = replace(concluded, cause="user")
    message = f"attempt {concluded.number} {verdict.outcome}"
    return context.write("outcome", f"{message}: {verdict.reason}" if verdict.reason else message, attempt=concluded)


def conclude_by_nodes(context: AttemptContext, nodes: Sequence[NodeView], *, left: str = AT_DEADLINE) -> bool:
    """Write the outcome that follows from the views of all members. Returns True.

    `left`: reason to record for nodes that still run
    """
    verdict = attempt_outcome(nodes, left=left)
    timeline = read_whole_timeline(context.job_dir, context.attempt) or verdict.timeline
    return conclude(context, replace(verdict, timeline=timeline), _charged(context, nodes))


def _charged(context: AttemptContext, nodes: Sequence[NodeView]) -> Attempt:
    """Return the attempt with adjusted budgets, and with its cost if its machines ended while no supervisor polled.

    These are assumed to have run for UNSEEN_S after the last heartbeat; until now if a node never sent one.
    """
    attempt, now = without_caused_restarts(context.attempt, nodes), context.now
    times = [node.last_report for node in nodes if node.last_report is not None]
    if not context.memory.watches.went_unseen or not times or len(times) < len(nodes):
        return attempt
    gone = replace(attempt, ended=min(now, max(times) + UNSEEN_S))
    return replace(attempt, cost=cost.attempt_cost(gone, now))


class Stopper:
    """Takes the step of an attempt that is stopping."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def take(self) -> bool:
        """Write stop.json and conclude the attempt when its nodes have ended. Return whether anything changed.

        stop.json is written even without nodes: a concurrent launch must find it.
        """
        context, observer = self._context, Observer(self._context)
        job, attempt, now = context.job, context.attempt, context.now
        end = wanted_end(job, attempt, now)
        if (
            end is not None and job.state != "stopping"
        ):  # cancelled or at a limit while nodes are stopped because a peer ended
            stopping = replace(job, state="stopping", cause=end.cause, reason=end.reason)
            return context.write("stopping", end.reason, job=stopping)
        deadline = attempt.deadline or 0.0
        try:
            self._write_stop(deadline)
            nodes = observer.members(observer.observe())
            if observer.note_begun(nodes) or observer.take_generation(nodes):
                return True
        except (JobDirError, ProvisionError) as error:
            if context.time() < deadline + (LATE_S if isinstance(error, ProvisionError) else 0.0):
                raise
            return conclude(context, Verdict("stopped", _unseen(error), None, None))
        if all(node.end is not None for node in nodes) or now >= deadline + LATE_S:
            return conclude_by_nodes(context, nodes)
        if observer.is_only_queued(nodes):  # no program runs that could save
            return conclude_by_nodes(context, nodes, left="ended while it waited for machines")
        return False

    def _write_stop(self, deadline: float) -> None:
        """Write stop.json and signal the machines to read it; no-op if this process has done so for the attempt."""
        context, attempt = self._context, self._context.attempt
        if context.memory.stop_written_for == attempt.number:
            return
        left = max(0.0, deadline - context.now)
        epoch = context.tools.clock.now() + left  # in the machines' wall-clock time, not the job's time
        stop = Stop(cast("StopReason", attempt.cause), epoch, left)
        context.job_dir.put(attempt_key(attempt.number, "stop.json"), stop.to_bytes())
        send_signal(context.job_dir, attempt.number)
        context.memory.stop_written_for = attempt.number


def _unseen(error: JobDirError | ProvisionError) -> str:
    """Return why an attempt was terminated without observing its nodes."""
    if isinstance(error, JobDirError):
        return f"terminated without notice to the program: the job dir cannot be used: {error}"
    return f"terminated at the deadline; its machines could not be queried: {error}"


class Terminator:
    """Takes the step of an attempt that is terminating."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def take(self) -> bool:
        """Terminate all machines; write the end when they are gone. Return whether anything changed."""
        context, attempt = self._context, self._context.attempt
        ended = self._release()
        if ended is None:
            return False
        SecretSender(context).remove_boxes()
        has_started = ended.has_started or context.memory.started == attempt.number
        known = None if ended is _UNKNOWN else has_started
        if cost.was_free(attempt, has_started=known, grouped=context.is_group):
            attempt = replace(attempt, launched=None)
        now = context.time()
        gone = now if ended.at is None else min(now, max(ended.at, context.attempt.launched or 0.0))
        charged = cost.attempt_cost(replace(attempt, ended=gone), now)
        before = context.job.spent
        spent = None if before is None or charged is None else before + charged
        return context.write(
            "ended",
            "all machines are gone",
            job=replace(context.job, spent=spent, not_before=0.0),
            attempt=replace(attempt, state="ended", ended=now, cost=charged),
        )

    def _release(self) -> TerminateResult | None:
        """Terminate the attempt's machines; None: they are not all gone yet."""
        if self._context.attempt.launched is None:
            return TerminateResult(has_started=False)  # nothing was created
        allocation, provisioner = self._allocation(), self._context.provisioner
        try:
            ended = provisioner.terminate(allocation)
        except ProvisionError:
            self._fix_cost()
            raise
        is_gone = all(state.phase == "gone" for state in provisioner.observe(allocation))
        return (ended or _UNKNOWN) if is_gone else None

    def _fix_cost(self) -> None:
        """Write the attempt's cost if its machines are gone and only other resources could not be removed."""
        context, attempt = self._context, self._context.attempt
        allocation = attempt.allocation
        if allocation is None or attempt.cost is not None or not allocation.machines:
            return
        with contextlib.suppress(ProvisionError):
            if all(state.phase == "gone" for state in context.provisioner.observe(allocation)):
                now = context.time()
                charged = cost.attempt_cost(replace(attempt, ended=now), now)
                context.write("", "", attempt=replace(attempt, cost=charged))

    def _allocation(self) -> Allocation:
        """Return the allocation to terminate.

        If the launch's response was lost, token and region suffice, which avoids a search of the whole account.
        """
        job, attempt = self._context.job, self._context.attempt
        if attempt.allocation is not None:
            return attempt.allocation
        return Allocation(
            attempt.offer.cloud,
            job.id,
            attempt.number,
            attempt.token,
            {},
            region=attempt.offer.region,
            owner=job.owner,
            account=attempt.account or "",
        )
