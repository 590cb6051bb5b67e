"""What is known of a job at one moment, gathered once: the tables and JSON of `status` and `cost` are made of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..output import warning
from ..text import iso

if TYPE_CHECKING:
    from ....control.jobs import Job
    from ....control.store.model import Attempt
    from ....protocol.jobdir import Heartbeat, JobDir, Result


@dataclass(frozen=True, slots=True)
class NodeView:
    """One machine of an attempt, as it describes itself in the job dir."""

    node: str
    rank: int
    heartbeat: Heartbeat | None
    result: Result | None
    is_readable: bool = True
    """Its newest records could be read."""

    @property
    def phase(self) -> str:
        """How it ended, or setup | running | stopping; "pending" before its first sign of life, "unknown" if that
        cannot be read."""
        if self.result is not None:
            return self.result.outcome
        if not self.is_readable:
            return "unknown"
        return "pending" if self.heartbeat is None else self.heartbeat.phase

    @property
    def step(self) -> int | None:
        """Steps done; None: the program says nothing of it."""
        known = self.result or self.heartbeat
        progress = None if known is None else known.progress
        return None if progress is None else progress.get("step")


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its attempts, its cost so far and how far it has come."""

    job: Job
    attempts: list[Attempt]
    cost: Decimal | None
    """US dollars up to now; None: unknown, for a price is."""
    nodes: list[NodeView]
    """Of the newest attempt."""
    now: float

    @property
    def step(self) -> int | None:
        """Steps done, as far as the program counts them."""
        known = [step for attempt in self.attempts if (step := self.step_of(attempt)) is not None]
        return max(known, default=None)

    def step_of(self, attempt: Attempt) -> int | None:
        """Steps done by the end of an attempt, or by now."""
        if attempt.progress:
            return attempt.progress.step
        if attempt.number != self.attempts[-1].number:
            return None
        known = [node.step for node in self.nodes if node.step is not None]
        return max(known, default=attempt.seen.step if attempt.seen else None)

    @property
    def lasted(self) -> float:
        """Seconds from submit to the end, or to now."""
        return (self.now if self.job.ended is None else self.job.ended) - self.job.created


def view(job: Job, *, machines: bool = True) -> JobView:
    """Look at a job; without `machines` its job dir is not read, and the progress is what the supervisor last read.

    Likewise where the job dir cannot be read, which is said: what else is known of the job, and of others, is shown.
    """
    from ....control.accounting.cost import total
    from ....protocol.jobdir import JobDirError

    now = time.time()
    attempts = job.attempts()
    try:
        nodes = node_views(job, attempts[-1]) if machines and attempts else []
    except JobDirError as error:
        warning(f"{job.id}: what its machines say cannot be read: {error}")
        nodes = []
    return JobView(job, attempts, total(attempts, now), nodes, now)


def node_views(job: Job, attempt: Attempt) -> list[NodeView]:
    """The machines of an attempt in rank order. Raises JobDirError."""
    from ....control.reconcile.node_replacement import every_node

    job_dir = job.open_dir(attempt)
    return [_node_view(job_dir, attempt.number, request.node, request.rank) for request in every_node(attempt)]


def _node_view(job_dir: JobDir, attempt: int, node: str, rank: int) -> NodeView:
    from ....protocol.jobdir import Heartbeat, RecordError, Result, node_key

    heartbeat = result = None
    try:
        result = Result.read(job_dir, node_key(attempt, node, "result.json"))
        heartbeat = Heartbeat.read(job_dir, node_key(attempt, node, "heartbeat.json"))
    except RecordError as error:
        warning(f"what {node} says cannot be read: {error}")
        return NodeView(node, rank, heartbeat, result, is_readable=False)
    return NodeView(node, rank, heartbeat, result)


def job_json(job: Job) -> dict[str, Any]:
    """A job as every command prints it for scripts; times as in the rest of the JSON output."""
    times = {"created": iso(job.created), "ended": iso(job.ended), "next_try": iso(job.next_try)}
    return {**job.to_json(), **times}


def attempt_seconds(attempt: Attempt, now: float) -> float | None:
    """Paid time; None: no machine was asked for."""
    if attempt.launched is None:
        return None
    return (now if attempt.ended is None else attempt.ended) - attempt.launched
