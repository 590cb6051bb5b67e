"""Write how an attempt ended while its machines may still be there: what we terminate is not to be judged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..accounting import cost
from ..store.model import Attempt
from .context import AttemptContext
from .members import forgiven
from .nodes import UNSEEN_S, read_whole_timeline
from .outcomes import AT_DEADLINE, NodeView, Verdict, judge


def conclude(context: AttemptContext, verdict: Verdict, attempt: Attempt | None = None) -> bool:
    """Write the outcome; the attempt is terminated next. `attempt`: its row with further changes."""
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
    """Write the outcome when all members have ended, or have had their time; `left`: why those that have not end."""
    verdict = judge(nodes, left=left)
    timeline = read_whole_timeline(context.job_dir, context.attempt) or verdict.timeline
    return conclude(context, replace(verdict, timeline=timeline), _charged(context, nodes))


def _charged(context: AttemptContext, nodes: Sequence[NodeView]) -> Attempt:
    """Return the attempt with its budgets as they count, and its cost if its machines went while no supervisor looked.

    They are taken to have lasted for a while after their last heartbeat. A node without any may have been there until
    now.
    """
    attempt, now = forgiven(context.attempt, nodes), context.now
    times = [node.told_at for node in nodes if node.told_at is not None]
    if not context.memory.watches.went_unseen or not times or len(times) < len(nodes):
        return attempt
    gone = replace(attempt, ended=min(now, max(times) + UNSEEN_S))
    return replace(attempt, cost=cost.attempt_cost(gone, now))
