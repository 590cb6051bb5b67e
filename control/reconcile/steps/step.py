"""One step of one job towards its goal. Steps are idempotent: a supervisor may be killed before, in or after one.

Each step first writes its intent (the attempt's row with its token), then acts (launch, terminate: both repeatable),
then writes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ....provisioners.base import launch_token
from ...store import states
from ...store.model import Attempt, JobRow
from ..decisions import End, Later, Start, decide, wanted_end
from ..failover import NO_CAPACITY_S
from ..outcomes import Verdict
from .context import AttemptContext, JobContext, Memory, Tools
from .launching import Launcher
from .teardown import Stopper, Terminator, conclude
from .watching import Watcher


class _Action(Protocol):
    def take(self) -> bool:
        """Take the step; return whether anything changed."""


_ACTIONS: dict[str, Callable[[AttemptContext], _Action]] = {
    "launching": Launcher,
    "running": Watcher,
    "stopping": Stopper,
    "terminating": Terminator,
}
"""State of an attempt -> class that takes its next step."""


class Step:
    """The next step of a job. take() is called once."""

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt | None) -> None:
        ended = attempt is None or attempt.state in states.ATTEMPT_END
        self._attempt = None if attempt is None or ended else AttemptContext(tools, memory, job, attempt)
        self._job = self._attempt or JobContext(tools, memory, job, attempt)

    def take(self) -> bool:
        """Take the next step; return whether anything changed.

        Raises LostRaceError, JobDirError, ProvisionError, StoreError.
        """
        if self._attempt is None:
            return NextAttempt(self._job).take()
        attempt = self._attempt.attempt
        self._attempt.check_account(attempt.offer.cloud, attempt.account)
        return _ACTIONS[attempt.state](self._attempt).take()

    def give_up(self, reason: str) -> bool:
        """End the attempt, and with it the job, without reading its job dir or polling its machines. Return False if
        the attempt is terminating already."""
        if self._attempt is None:
            end = wanted_end(self._job.job, self._job.attempt, self._job.now) or End("failed", "error", reason)
            return NextAttempt(self._job).end(end)
        if self._attempt.attempt.state == "terminating":
            return False
        return conclude(self._attempt, Verdict("error", reason, None, None))

    def note_login(self, trouble: str) -> bool:
        """Write in the job's reason which credentials must be renewed; see JobContext.note_login()."""
        return self._job.note_login(trouble)


class NextAttempt:
    """Takes the step of a job that has no attempt, or whose newest attempt has ended."""

    def __init__(self, context: JobContext) -> None:
        self._context = context

    def take(self) -> bool:
        """Begin an attempt, wait, or end the job; return whether anything changed."""
        context = self._context
        job, now = context.job, context.now
        if now < job.not_before and wanted_end(job, context.attempt, now) is None:
            return False
        elsewhere = context.tools.store.capacity_refusals(job, now - NO_CAPACITY_S)
        decision = decide(job, context.attempts(), now, elsewhere)
        if isinstance(decision, End):
            return self.end(decision)
        return self._put_off(decision) if isinstance(decision, Later) else self._begin(decision)

    def end(self, end: End) -> bool:
        """Write the job's final state. Returns True."""
        ended = replace(
            self._context.job,
            state=end.state,
            cause=end.cause,
            reason=end.reason,
            exit_code=end.exit_code,
            ended=self._context.time(),
        )
        message = f"{end.state}: {_headline(end.reason)}" if end.reason else end.state
        return self._context.write("state", message, job=ended)

    @property
    def _state(self) -> str:
        """State for a job without machines: `recovering` if it had machines before, else its current state."""
        state = self._context.job.state
        return "recovering" if state in ("starting", "running") else state

    def _put_off(self, later: Later) -> bool:
        """Write that the job waits without an attempt; the next offer is chosen after the wait. Returns True."""
        waiting = replace(
            self._context.job, state=self._state, cause="capacity", reason=later.reason, not_before=later.until
        )
        return self._context.write("waiting", _headline(later.reason), job=waiting)

    def _begin(self, start: Start) -> bool:
        job, now, offer = self._context.job, self._context.now, start.offer
        account = job.policy.accounts.get(offer.cloud)
        self._context.check_account(offer.cloud, account)
        number = job.attempt + 1
        attempt = Attempt(
            job_id=job.id,
            number=number,
            state="launching",
            round=start.round,
            offer=offer,
            price=offer.price,
            token=launch_token(job.id, number, offer.region, offer.zone),
            allocation=None,
            cause="",
            scope="",
            deadline=None,
            outcome="",
            reason="",
            exit_code=None,
            progress=None,
            created=now,
            launched=None,
            ended=None,
            cost=None,
            account=account,
        )
        searching = replace(
            job,
            state=self._state,
            attempt=number,
            round=start.round,
            waits=0,
            not_before=now + start.pause_s if start.pause_s else 0.0,
            reason=start.reason,
        )
        pause = f" in {start.pause_s:.0f} s" if start.pause_s else ""
        why = f" ({start.reason})" if start.reason else ""
        message = f"attempt {number} on {offer.label}{pause}{why}"
        return self._context.write("attempt", message, job=searching, new_attempt=attempt)


def _headline(reason: str) -> str:
    """Return the first line of a reason for an event; `status` shows the whole reason."""
    return reason.partition("\n")[0]
