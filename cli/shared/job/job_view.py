"""Snapshot of a job, from which `status` and `cost` build their tables and JSON."""

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
    """Machine of an attempt, as its records in the job dir describe it."""

    node: str
    rank: int
    heartbeat: Heartbeat | None
    result: Result | None
    is_readable: bool = True
    """False if the machine's newest records could not be read."""

    @property
    def phase(self) -> str:
        """Outcome of the node, or setup | running | stopping; "pending" before the first heartbeat, "unknown" if its
        records cannot be read."""
        if self.result is not None:
            return self.result.outcome
        if not self.is_readable:
            return "unknown"
        return "pending" if self.heartbeat is None else self.heartbeat.phase

    @property
    def step(self) -> int | None:
        """Steps done; None if the program does not report them."""
        known = self.result or self.heartbeat
        progress = None if known is None else known.progress
        return None if progress is None else progress.get("step")


@dataclass(frozen=True, slots=True)
class JobView:
    """Job with its attempts, its cost so far and its progress."""

    job: Job
    attempts: list[Attempt]
    cost: Decimal | None
    """US dollars so far; None if a price is unknown."""
    nodes: list[NodeView]
    """Nodes of the newest attempt."""
    now: float

    @property
    def step(self) -> int | None:
        """Steps done, if the program counts them."""
        known = [step for attempt in self.attempts if (step := self.step_of(attempt)) is not None]
        return max(known, default=None)

    def step_of(self, attempt: Attempt) -> int | None:
        """Return the steps done by the end of an attempt, or so far; None: unknown."""
        if attempt.progress:
            return attempt.progress.step
        if attempt.number != self.attempts[-1].number:
            return None
        known = [node.step for node in self.nodes if node.step is not None]
        return max(known, default=attempt.seen.step if attempt.seen else None)

    @property
    def lasted(self) -> float:
        """Seconds from submission to the end, or to now."""
        return (self.now if self.job.ended is None else self.job.ended) - self.job.created


def view(job: Job, *, machines: bool = True) -> JobView:
    """Return a snapshot of the job. If its job dir cannot be read, print a warning; the snapshot then has no nodes.

    machines: whether to read the nodes from the job dir. If false, steps are those that the supervisor last stored
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
    """Return the machines of an attempt in rank order. Raises JobDirError."""
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
    """Return a job as all commands print it with --json, with times in the format of text.iso()."""
    times = {"created": iso(job.created), "ended": iso(job.ended), "next_try": iso(job.next_try)}
    return {**job.to_json(), **times}


def attempt_seconds(attempt: Attempt, now: float) -> float | None:
    """Return the paid seconds; None if no machine was requested."""
    if attempt.launched is None:
        return None
    return (now if attempt.ended is None else attempt.ended) - attempt.launched
