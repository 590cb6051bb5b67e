"""One step of one job towards its goal. Each is idempotent: a supervisor killed before, in or after it loses nothing.

The order of effects within a step is what makes it so: what is going to be done is written down first (the attempt's
row with its token), then done (launch, terminate: repeatable), then what came of it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..store import states
from ..store.model import Attempt, JobRow
from .concluding import conclude
from .context import AttemptContext, JobContext, Memory, Tools
from .decisions import End, wanted_end
from .launching import Launcher
from .next_attempt import NextAttempt
from .outcomes import Verdict
from .stopping import Stopper
from .terminating import Terminator
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
"""State of an attempt -> the class that takes its next step."""


class Step:
    """What to do next about a job. take() is called once."""

    def __init__(self, tools: Tools, memory: Memory, job: JobRow, attempt: Attempt | None) -> None:
        ended = attempt is None or attempt.state in states.ATTEMPT_END
        self._attempt = None if attempt is None or ended else AttemptContext(tools, memory, job, attempt)
        self._job = self._attempt or JobContext(tools, memory, job, attempt)

    def take(self) -> bool:
        """Do what is next; return whether anything changed.

        Raises LostRaceError, JobDirError, ProvisionError, StoreError.
        """
        if self._attempt is None:
            return NextAttempt(self._job).take()
        attempt = self._attempt.attempt
        self._attempt.check_account(attempt.offer.cloud, attempt.account)
        return _ACTIONS[attempt.state](self._attempt).take()

    def give_up(self, reason: str) -> bool:
        """End the attempt, and with it the job, without a look at its job dir or its machines."""
        if self._attempt is None:
            end = wanted_end(self._job.job, self._job.attempt, self._job.now) or End("failed", "error", reason)
            return NextAttempt(self._job).end(end)
        if self._attempt.attempt.state == "terminating":
            return False
        return conclude(self._attempt, Verdict("error", reason, None, None))

    def note_login(self, trouble: str) -> bool:
        """Say in the job's reason which credentials must be renewed; see JobContext.note_login()."""
        return self._job.note_login(trouble)
