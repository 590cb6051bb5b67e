"""Observe the nodes of an attempt with node_observation.py, and write what they did by themselves to the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....protocol.jobdir import Generation
from ....provisioners.base import NodeState
from ...store.model import Attempt
from ..console_tail import ConsoleReader
from ..node_observation import AttemptCache, new_generation, observe_nodes
from ..node_replacement import every_node, member_names
from ..outcomes import NodeView
from .context import AttemptContext


class Observer:
    """Observes the nodes of an attempt, and writes the restarts that they did by themselves."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def observe(self) -> Sequence[NodeView]:
        """Return a view of each node; () before there are machines. Raises JobDirError, ProvisionError."""
        context, attempt, memory = self._context, self._context.attempt, self._context.memory
        if attempt.allocation is None:
            return ()
        provisioner = context.provisioner
        observed = {state.node: state for state in provisioner.observe(attempt.allocation)}
        memory.machines_gone = all(state.phase == "gone" for state in observed.values())
        memory.queued = bool(observed) and all(state.queued for state in observed.values())
        memory.queue = next((state.detail for state in observed.values() if state.queued), "")
        if memory.watches.attempt != attempt.number:
            memory.watches = AttemptCache(attempt.number)
        steady = context.tools.clock.monotonic()
        memory.watches.record_poll(steady, gone=memory.machines_gone)
        last_words = ConsoleReader(provisioner, attempt.allocation).of
        nodes = every_node(attempt)
        known = [node.node for node in nodes]
        memory.saw_unknown_node = any(one.phase == "running" for name, one in observed.items() if name not in known)
        stopping = attempt.state == "stopping"
        jobs = context.tools.watched
        views = observe_nodes(
            context.job_dir, memory.watches, nodes, observed, steady, last_words, stopping=stopping, jobs=jobs
        )
        context.tools.seen.note(attempt, views)
        return _without_replaced(views, observed) if context.heals_itself else views

    def members(self, seen: Sequence[NodeView]) -> list[NodeView]:
        """Return the nodes that the program runs on: only these decide the attempt's outcome."""
        names = member_names(self._context.attempt)
        return [view for view in seen if view.node in names]

    def is_only_queued(self, nodes: Sequence[NodeView]) -> bool:
        """Return whether all machines are in the provider's queue. A listing may be stale: a node that has reported
        has a machine."""
        return self._context.memory.queued and not any(node.reported for node in nodes)

    def note_begun(self, nodes: Sequence[NodeView]) -> bool:
        """Change the job's state from `starting` to `running` if a node's program has begun; return True if so."""
        job = self._context.job
        if job.state != "starting" or not any(node.begun for node in nodes):
            return False
        return self._context.write("state", "running", job=replace(job, state="running", reason=""))

    def take_generation(
        self, nodes: Sequence[NodeView], *, known: bool = False, attempt: Attempt | None = None
    ) -> bool:
        """Write the next restart that the machines did by themselves to the store; return False if there is none.

        `known`: the job dir has a record of it. Otherwise the record is read only if a view indicates a restart.
        """
        attempt = attempt or self._context.attempt
        record = new_generation(self._context.job_dir, attempt, None if known else nodes)
        return record is not None and write_generation(self._context, attempt, record)


def write_generation(context: AttemptContext, attempt: Attempt, record: Generation) -> bool:
    """Add a generation to an attempt's row; return True. `attempt`: the row, with adjusted counts of earlier
    generations."""
    subject = "" if record.kind == "members" else f"{record.node}: "
    message = f"{subject}{record.reason}; the program starts again in place (generation {record.generation})"
    restarted = replace(attempt, generations=(*attempt.generations, record))
    return context.write("restarted", message, attempt=restarted)


def _without_replaced(views: Sequence[NodeView], observed: Mapping[str, NodeState]) -> list[NodeView]:
    """Return the views, in which a preempted node has not ended until the target reports its machine gone: a target
    that replaces machines itself is about to replace it."""
    ended = [name for name, state in observed.items() if state.phase == "gone"]
    return [
        replace(view, end=None)
        if view.end is not None and view.end.outcome == "preempted" and view.node not in ended
        else view
        for view in views
    ]
