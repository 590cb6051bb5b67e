"""Watch a running attempt: write its nodes' reports, repair it, and end it when necessary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....protocol.jobdir import JobDirError
from ....provisioners.base import ProvisionError
from ..decisions import End, idle_end, wanted_end
from ..outcomes import NodeView, must_stop_peers
from .context import AttemptContext
from .healing import NodeReplacer
from .observing import Observer
from .refusals import RefusalHandler
from .secrets import CAUSE, SecretSender
from .teardown import conclude_by_nodes

FREE_S = 60.0
"""Seconds between two updates of the start of paid time while all machines are in the provider's queue."""


class Watcher:
    """Takes the step of a running attempt."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context
        self._observer = Observer(context)

    def take(self) -> bool:
        """Take the action that the nodes' state requires; return whether anything changed."""
        context = self._context
        end = wanted_end(context.job, context.attempt, context.now)
        seen = self._observe_unless_ending(end)
        nodes = self._observer.members(seen)
        if end is not None and (not nodes or any(node.end is None for node in nodes)):
            return context.begin_stop(end.cause, end.reason)
        if self._observer.note_begun(nodes) or SecretSender(context).send(seen) or self._note_queue(seen):
            return True
        if self._observer.take_generation(seen, known=context.memory.saw_unknown_node):
            return True
        if (over := self._conclude_if_over(nodes)) is not None:
            return over
        healing = NodeReplacer(context, self._observer).heal(seen)
        if healing is not None:
            return healing
        cause = self._cause_to_stop(nodes)
        return cause is not None and context.begin_stop(*cause)

    def _observe_unless_ending(self, end: End | None) -> Sequence[NodeView]:
        """Observe the nodes; () if the attempt ends in any case, so that the machines are stopped at once.

        They are observed before limits.cost ends the attempt, because machines that ended while no supervisor ran
        have cost less. If that fails, the limit is enforced anyway.
        """
        if end is not None and end.cause != "cost":
            return ()
        try:
            return self._observer.observe()
        except (ProvisionError, JobDirError):
            if end is None:
                raise
            return ()

    def _note_queue(self, nodes: Sequence[NodeView]) -> bool:
        """Write the provider's queue message as the job's reason, and exclude queue time from paid time; return
        whether it was written. Once the job has had a machine, its queue time is no longer excluded."""
        context, attempt = self._context, self._context.attempt
        if context.job.state != "starting" or context.job.cause == CAUSE:
            return False
        if context.memory.queue != context.job.reason:
            return context.write("", "", job=replace(context.job, reason=context.memory.queue))
        if not self._observer.is_only_queued(nodes):
            return False
        if attempt.launched is None or context.now - attempt.launched < FREE_S:
            return False
        return context.write("", "", attempt=replace(attempt, launched=context.now))

    def _conclude_if_over(self, nodes: Sequence[NodeView]) -> bool | None:
        """Conclude an attempt that was refused after launch() or whose nodes have all ended; None: it continues."""
        refusal = next((node.end.refused for node in nodes if node.end is not None and node.end.refused), None)
        if refusal is not None:
            return RefusalHandler(self._context).handle(refusal, first=False)
        return conclude_by_nodes(self._context, nodes) if all(node.end is not None for node in nodes) else None

    def _cause_to_stop(self, nodes: Sequence[NodeView]) -> tuple[str, str] | None:
        """Return cause and reason for stopping the nodes that still run; None: continue."""
        ended = must_stop_peers(nodes)
        if ended is not None and ended.end is not None:
            return "peer", f"{ended.node} {ended.end.outcome}: {ended.end.reason}"
        idle = idle_end(self._context.job, nodes)
        return None if idle is None else (idle.cause, idle.reason)
