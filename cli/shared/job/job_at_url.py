"""Job known by its folder's URL only: its log can be followed without the store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...exit_codes import Exit
from ..errors import CommandError

if TYPE_CHECKING:
    from ....control.store.model import Event
    from ....jobspecs.plan import Offer
    from ....protocol.jobdir import AttemptRecord, JobDir
    from ....protocol.logs.reader import LogReader
    from ....protocol.outputs import Outputs

LINGER_S = 60.0
"""Seconds to wait for another attempt after a failure: only the supervisor knows whether the job is retried."""


_DIGITS = 9
"""Maximum digits of an incarnation; a folder with more is not a node's."""


_COUNT = re.compile(r"\d{1,6}(/\d{1,6}|\.\d{1,6})?", re.ASCII)
"""Matches the GPU count of a node in an offer."""


class JobAtUrl:
    """Job read from its folder, with the interface that Follower needs. Raises CommandError, JobDirError."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        from ....protocol.attempt_signal import WatchMark
        from ....protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, attempt_key

        self._watch_mark = WatchMark()
        self.job_dir, self._clock = url.rstrip("/"), clock
        self._dir = JobDir(self.job_dir, make=False)
        job = JobRecord.read(self._dir, JOB_KEY)
        if job is None:
            raise CommandError(
                f"there is no job at {url}",
                hint="give the folder that holds job.json: the job's own, <job_dir>/<job id>",
                exit_code=Exit.UNAVAILABLE,
            )
        self.id = job.job_id
        self.created = time.time()
        self._numbers: list[int] = []
        self._results: dict[str, str] = {}
        """Outcome of each ended node of the newest attempt."""
        self._ended_at: float | None = None
        self.moved_to = ""
        """URL of the job's folder in another cloud, if its newest attempt runs there."""
        self._moved_at = 0.0
        self.refresh()
        described = AttemptRecord.read(self._dir, attempt_key(max(self._numbers, default=1)))
        if described is None:
            raise CommandError(f"{self.id} has no attempt yet", hint="try again later", exit_code=Exit.UNAVAILABLE)
        self.offer: Offer = _offer(described)

    @property
    def state(self) -> str:
        return "ended" if self._ended_at is not None else "running"

    @property
    def done(self) -> bool:
        """True if no more output is expected in this folder.

        All nodes of the newest attempt have succeeded, or the last one ended more than LINGER_S ago. If the job has
        moved to another cloud: its nodes have started there, or the move was seen more than LINGER_S ago.
        """
        if self.moved_to:
            return self._clock() - self._moved_at > LINGER_S or self._has_started_there()
        if self._ended_at is None:
            return False
        well = set(self._results.values()) <= {"succeeded"}
        return well or self._clock() - self._ended_at > LINGER_S

    @property
    def results(self) -> dict[str, str]:
        """Mapping of node to outcome, for the newest attempt."""
        return dict(self._results)

    def refresh(self) -> JobAtUrl:
        """Poll the newest attempt and the results of its nodes."""
        from ....protocol.jobdir import node_key
        from ....protocol.logs.format import attempt_numbers

        numbers = attempt_numbers(self._dir)
        if numbers != self._numbers:
            self._numbers, self._results, self._ended_at = numbers, {}, None
            self.moved_to = self._other_job_dir(numbers[-1]) if numbers else ""
            self._moved_at = self._clock()
        if not numbers or self.moved_to:
            return self
        nodes = self._newest_incarnations(numbers[-1])
        for node in nodes:
            if node not in self._results and (outcome := self._outcome(node_key(numbers[-1], node, "result.json"))):
                self._results[node] = outcome
        has_ended = bool(nodes) and self._results.keys() >= set(nodes)
        if not has_ended:
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = self._clock()
        return self

    def logs(self) -> LogReader:
        from ....protocol.logs.reader import LogReader

        return LogReader(self._dir)

    @property
    def is_removed(self) -> bool:
        """False: the folder is there."""
        return False

    def open_dir(self) -> JobDir:
        return self._dir

    def outputs(self) -> Outputs:
        """Return the files in outputs/."""
        from ....protocol.outputs import find_outputs

        return find_outputs(self._dir)

    def missing_outputs(self) -> list[str]:
        """Return the job's `outputs` of which its newest attempt found nothing."""
        from ....protocol.outputs import missing_outputs

        if not self._numbers or self.moved_to:
            return []
        return missing_outputs(self._dir, self._numbers[-1], self._newest_incarnations(self._numbers[-1]))

    def mark_watched(self) -> None:
        """Make the machines report more often for a while; call it every few seconds."""
        if self._numbers and not self.moved_to:
            self._watch_mark.renew(self._dir, self._numbers[-1])

    def events(self, after: int = 0) -> Sequence[Event]:  # noqa: ARG002 - events are in the store only
        return ()

    def _outcome(self, key: str) -> str | None:
        """Return a node's outcome, or None while it runs. An unreadable result counts as "error", as the node has
        ended."""
        from ....protocol.jobdir import RecordError, Result

        try:
            result = Result.read(self._dir, key)
        except RecordError:
            return "error"
        return None if result is None else result.outcome

    def _other_job_dir(self, attempt: int) -> str:
        from ....protocol.jobdir import AttemptRecord, attempt_key

        described = AttemptRecord.read(self._dir, attempt_key(attempt))
        there = "" if described is None else described.job_dir
        return "" if there == self.job_dir else there

    def _has_started_there(self) -> bool:
        """Return whether the attempt has nodes in the job's new folder. Also True if that folder cannot be read: the
        user is then informed of the move at once."""
        from ....protocol.jobdir import JobDir, JobDirError

        try:
            return bool(JobDir(self.moved_to, make=False).folders(f"attempts/{self._numbers[-1]:04d}/nodes"))
        except JobDirError:
            return True

    def _newest_incarnations(self, attempt: int) -> Sequence[str]:
        """Return the newest incarnation of each node of the attempt: `worker-0.2` has replaced `worker-0.1`."""
        newest: dict[str, int] = {}
        for name in self._dir.folders(f"attempts/{attempt:04d}/nodes"):
            place, _, incarnation = name.rpartition(".")
            if incarnation.isascii() and incarnation.isdecimal() and len(incarnation) <= _DIGITS:
                newest[place] = max(newest.get(place, 0), int(incarnation))
        return [f"{place}.{incarnation}" for place, incarnation in newest.items()]


def _offer(described: AttemptRecord) -> Offer:
    """Return the attempt's offer. Raises RecordError if it has no valid one."""
    from ....jobspecs.plan import Offer
    from ....protocol.jobdir import RecordError

    try:
        counts = [(role["nodes"], str(role["count"])) for role in described.offer["roles"]]
        if not all(isinstance(nodes, int) and _COUNT.fullmatch(count) for nodes, count in counts):
            raise ValueError("its roles have no numbers of nodes and GPUs")
        return Offer.from_json(described.offer)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise RecordError(f"attempt {described.attempt} names no offer: {error!r}") from error
