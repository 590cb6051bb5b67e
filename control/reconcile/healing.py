"""An attempt some of whose nodes were lost: what members.py decides is done here, an idempotent step at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ...jobspecs.plan import Offer
from ...protocol.jobdir import Generation, generation_key
from ...provisioners.base import Allocation, ProvisionError
from ..store.model import Attempt
from .decisions import IN_PLACE_S, left_in_place
from .job_step import JobStep
from .members import Regroup, Replace, cure, forgiven, newest_saved, node_records, stored, wanted_nodes
from .nodes import is_closed
from .outcomes import NodeView


class Healing(JobStep):
    """Replaces what was lost, or does without it."""

    def _heal(self, attempt: Attempt, seen: Sequence[NodeView]) -> bool | None:
        """Replace what was lost, or do without it; whether anything changed. None: there is nothing to heal."""
        if attempt.nodes is None:
            return None
        attempt, nodes = forgiven(attempt, seen), {view.node: view for view in seen}
        found = cure(attempt, nodes, self._job.policy.least_nodes, self._interruptions_left(attempt, seen))
        if found is None or is_closed(self._job_dir(attempt), attempt):
            return None
        if isinstance(found, Replace):
            names = ", ".join(request.node for request in found.nodes if request not in wanted_nodes(attempt))
            message = f"{found.reason}; {names} is to take its place"
            at_once = {"waits": 0, "not_before": 0.0}
            return self._write("replacing", message, job=at_once, attempt={"nodes": stored(found.nodes)})
        if isinstance(found, Regroup):
            return self._regroup(attempt, found, nodes)
        return self._add_machines(attempt, idle=found.idle) or (False if found.idle else None)

    def _interruptions_left(self, attempt: Attempt, seen: Sequence[NodeView]) -> int | None:
        """None: without limit, or nobody asks."""
        policy = self._job.policy
        if policy.preemptions is None or all(view.end is None for view in seen):
            return None
        earlier = [one for one in self._tools.store.attempts(self._job.id) if one.number != attempt.number]
        return left_in_place(policy, [*earlier, attempt]).interruptions

    def _regroup(self, attempt: Attempt, regroup: Regroup, nodes: Mapping[str, NodeView]) -> bool:
        """Tell the machines who goes on; if one of them has begun something else meanwhile, that is taken note of."""
        number = len(attempt.generations or []) + 2
        before = (attempt.generations or [{}])[-1]
        record = Generation(
            generation=number,
            kind="members",
            node=regroup.node,
            group=True,
            reason=regroup.reason,
            pause_s=0.0,
            failures=before.get("failures", 0),
            interruptions=before.get("interruptions", 0) + regroup.lost,
            time=self._tools.clock.now(),
            nonce=self._tools.owner,
            nodes=[dataclasses.asdict(one) for one in node_records(regroup.nodes)],
            grace_s=regroup.grace_s,
            saved_step=newest_saved(nodes.values()),
        )
        if self._job_dir(attempt).create(generation_key(attempt.number, number), record.to_bytes()):
            return self._write_generation(attempt, record)
        return self._take_generation(attempt, list(nodes.values()), known=True)

    def _add_machines(self, attempt: Attempt, *, idle: bool) -> bool:
        """Get the machines that the attempt shall have and has not; whether anything changed.

        `idle`: nothing trains meanwhile, so that the others are not kept for long if there are none.
        """
        allocation = self._allocation(attempt)
        wanted = wanted_nodes(attempt)
        missing = [node.node for node in wanted if allocation and node.node not in allocation.machines]
        if allocation is None or not missing or self._now < self._job.not_before:
            return False
        # All that shall be there, not only what is missing: the target is to know whom the new one belongs to.
        request = self._request(attempt, Offer.from_json(attempt.offer), wanted, replaces=True)
        retired = allocation.machines.keys() - {node.node for node in wanted}
        provisioner = self._provisioner(attempt)
        try:
            provisioner.remove(allocation, retired)
            got = provisioner.launch(request)
        except ProvisionError as error:
            return self._none_got(attempt, ", ".join(missing), error, idle=idle)
        values = {"waits": 0, "not_before": 0.0, "cause": "", "reason": ""}
        changes = {"allocation": _merged(allocation, got).to_json()}
        return self._write("launched", f"got {', '.join(missing)}", job=values, attempt=changes)

    def _none_got(self, attempt: Attempt, names: str, error: ProvisionError, *, idle: bool) -> bool:
        passing, reason = not error.is_final, f"{names} cannot be got: {error}"
        if idle and (not passing or self._waited_s() >= IN_PLACE_S):
            return self._begin_stop(attempt, "peer", reason)
        pause = ("login" if error.is_login else "wait") if passing else "round"
        return self._wait(
            error.error_class, reason, {}, pause, at_least_s=error.retry_after or 0.0, counts=not error.is_unsent
        )


def _merged(had: Allocation, got: Allocation) -> Allocation:
    """Return the union of both allocations, so that terminate() also ends machines that were replaced."""
    return dataclasses.replace(
        got,
        machines={**had.machines, **got.machines},
        zone=got.zone or had.zone,
        launched_at={**had.launched_at, **got.launched_at},
        details={**had.details, **got.details},
    )
