"""Repair of an attempt that has lost nodes: node_replacement.py decides, and this module acts in idempotent steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from ....protocol.jobdir import Generation, generation_key
from ....provisioners.base import Allocation, ProvisionError
from ...store.model import Attempt
from ..decisions import IN_PLACE_S, left_in_place
from ..node_observation import is_closed
from ..node_replacement import (
    Regroup,
    Replace,
    newest_saved,
    next_repair,
    node_records,
    wanted_nodes,
    without_caused_restarts,
)
from ..outcomes import NodeView
from .context import AttemptContext
from .launch_request import launch_request
from .observing import Observer, write_generation
from .secrets import CAUSE, SecretSender


class NodeReplacer:
    """Replaces lost nodes, or continues the program without them."""

    def __init__(self, context: AttemptContext, observer: Observer) -> None:
        self._context = context
        self._observer = observer

    def heal(self, seen: Sequence[NodeView]) -> bool | None:
        """Take the next step of the repair; return whether anything changed. None: no repair is needed."""
        context = self._context
        if context.attempt.nodes is None:
            return None
        attempt, nodes = without_caused_restarts(context.attempt, seen), {view.node: view for view in seen}
        found = next_repair(attempt, nodes, context.job.policy.least_nodes, self._interruptions_left(attempt, seen))
        if found is None or is_closed(context.job_dir, attempt):
            return None
        if isinstance(found, Replace):
            names = ", ".join(request.node for request in found.nodes if request not in wanted_nodes(attempt))
            message = f"{found.reason}; {names} is to take its place"
            at_once = replace(context.job, waits=0, not_before=0.0)
            return context.write("replacing", message, job=at_once, attempt=replace(context.attempt, nodes=found.nodes))
        if isinstance(found, Regroup):
            return self._regroup(attempt, found, nodes)
        return self._add_machines(idle=found.idle) or (False if found.idle else None)

    def _interruptions_left(self, attempt: Attempt, seen: Sequence[NodeView]) -> int | None:
        """Return the interruptions left of retry.preemption; None: no limit, or no node has ended."""
        policy = self._context.job.policy
        if policy.preemptions is None or all(view.end is None for view in seen):
            return None
        in_run = self._context.job.in_run(self._context.attempts())
        earlier = [one for one in in_run if one.number != attempt.number]
        return left_in_place(policy, [*earlier, attempt]).interruptions

    def _regroup(self, attempt: Attempt, regroup: Regroup, nodes: Mapping[str, NodeView]) -> bool:
        """Write the next generation, with these members; if a node has written it first, take the node's. Return
        whether anything changed."""
        number = len(attempt.generations) + 2
        before = attempt.generations[-1] if attempt.generations else None
        record = Generation(
            generation=number,
            kind="members",
            node=regroup.node,
            group=True,
            reason=regroup.reason,
            pause_s=0.0,
            failures=before.failures if before else 0,
            interruptions=(before.interruptions if before else 0) + regroup.lost,
            time=self._context.tools.clock.now(),
            nonce=self._context.tools.owner,
            nodes=[asdict(one) for one in node_records(regroup.nodes)],
            grace_s=regroup.grace_s,
            saved_step=newest_saved(nodes.values()),
        )
        if self._context.job_dir.create(generation_key(attempt.number, number), record.to_bytes()):
            return write_generation(self._context, attempt, record)
        return self._observer.take_generation(list(nodes.values()), known=True, attempt=attempt)

    def _add_machines(self, *, idle: bool) -> bool:
        """Launch the machines that the attempt lacks; return whether anything changed.

        `idle`: no program trains meanwhile, so the attempt is stopped if machines cannot be obtained soon.
        """
        context = self._context
        allocation, wanted = context.attempt.allocation, wanted_nodes(context.attempt)
        missing = [node.node for node in wanted if allocation and node.node not in allocation.machines]
        if allocation is None or not missing:
            return False
        have_come = context.job.cause == CAUSE and not SecretSender(context).missing()
        if context.now < context.job.not_before and not have_come:
            return False
        if why := SecretSender(context).missing():
            return self._wait_for_secrets(", ".join(missing), why, idle=idle)
        # Request all nodes, not only the missing ones, so that the target knows which nodes belong together.
        request = launch_request(context, wanted, replaces=True)
        retired = allocation.machines.keys() - {node.node for node in wanted}
        try:
            context.provisioner.remove(allocation, retired)
            got = context.provisioner.launch(request)
        except ProvisionError as error:
            return self._wait_or_stop(", ".join(missing), error, idle=idle)
        job = replace(context.job, waits=0, not_before=0.0, cause="", reason="")
        healed = replace(context.attempt, allocation=_merged(allocation, got))
        return context.write("launched", f"got {', '.join(missing)}", job=job, attempt=healed)

    def _wait_for_secrets(self, names: str, why: str, *, idle: bool) -> bool:
        reason = f"{names} waits for its secrets, without a machine: {why}"
        if idle and self._context.waited_s >= IN_PLACE_S:
            return self._context.begin_stop("peer", reason)
        return self._context.wait(CAUSE, reason)

    def _wait_or_stop(self, names: str, error: ProvisionError, *, idle: bool) -> bool:
        context, is_final, reason = self._context, error.is_final, f"{names} cannot be downloaded: {error}"
        if idle and (is_final or context.waited_s >= IN_PLACE_S):
            return context.begin_stop("peer", reason)
        pause = "round" if is_final else "login" if error.is_login else "wait"
        return context.wait(
            error.error_class, reason, pause=pause, at_least_s=error.retry_after or 0.0, counts=not error.is_unsent
        )


def _merged(had: Allocation, got: Allocation) -> Allocation:
    """Return the union of two allocations of an attempt, so that terminate() also covers replaced machines."""
    return replace(
        got,
        machines={**had.machines, **got.machines},
        zone=got.zone or had.zone,
        launched_at={**had.launched_at, **got.launched_at},
        details={**had.details, **got.details},
    )
