"""An attempt some of whose nodes were lost: what members.py decides is done here, an idempotent step at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..jobspecs.catalog_targets import targets
from ..jobspecs.plan import Offer
from ..provisioners.base import ProvisionError
from ..runtime.jobdir import Generation, generation_key
from .decisions import left_in_place
from .job_step import JobStep
from .members import (
    Regroup,
    Replace,
    Wait,
    cure,
    newest_saved,
    node_records,
    stored,
    used,
    wanted_nodes,
)
from .model import Attempt
from .outcomes import NodeView


class Healing(JobStep):
    """Replaces what was lost, or does without it."""

    def _heal(self, attempt: Attempt, seen: Sequence[NodeView]) -> bool | None:
        """Replace what was lost, or do without it; whether anything changed. None: there is nothing to heal."""
        if not targets()[attempt.offer["cloud"]].replaces_nodes:
            return None
        policy, nodes = self._job.policy, {view.node: view for view in seen}
        left = left_in_place(policy, self._tools.store.attempts(self._job.id)).interruptions
        found = cure(attempt, nodes, policy.least_nodes, left)
        if isinstance(found, Replace):
            names = ", ".join(request.node for request in found.nodes if request not in wanted_nodes(attempt))
            message = f"{found.reason}; {names} is to take its place"
            return self._write("replacing", message, attempt={"nodes": stored(found.nodes)})
        if isinstance(found, Regroup):
            return self._regroup(attempt, found, nodes)
        return self._add_machines(attempt) or (False if isinstance(found, Wait) else None)

    def _regroup(self, attempt: Attempt, regroup: Regroup, nodes: Mapping[str, NodeView]) -> bool:
        """Tell the machines who goes on; if one of them has begun something else meanwhile, that is taken note of."""
        failures, interruptions = used(attempt, nodes, regroup)
        number = len(attempt.generations or []) + 2
        record = Generation(
            generation=number,
            kind="members",
            node=regroup.node,
            group=True,
            reason=regroup.reason,
            pause_s=0.0,
            failures=failures,
            interruptions=interruptions,
            time=self._tools.clock.now(),
            nonce=self._tools.owner,
            nodes=[dataclasses.asdict(one) for one in node_records(regroup.nodes)],
            grace_s=regroup.grace_s,
            saved_step=newest_saved(nodes.values()),
        )
        if self._job_dir().create(generation_key(attempt.number, number), record.to_bytes()):
            return self._write_generation(attempt, record)
        return self._take_generation(attempt, list(nodes.values()), known=True)

    def _add_machines(self, attempt: Attempt) -> bool | None:
        """Ask for the machines that the attempt shall have and has not; None: it has all, or it is not time to."""
        allocation, wanted = self._allocation(attempt), wanted_nodes(attempt)
        missing = [node.node for node in wanted if allocation and node.node not in allocation.machines]
        if allocation is None or not missing or self._now < self._job.not_before:
            return None
        names = ", ".join(missing)
        # All that shall be there, not only what is missing: the target is to know whom the new one belongs to.
        request = self._request(attempt, Offer.from_json(attempt.offer), wanted)
        try:
            got = self._provisioner(attempt).launch(request)
        except ProvisionError as error:
            if error.error_class in ("throttled", "transient"):
                return self._wait(error.error_class, str(error), {})
            if self._job.policy.least_nodes is None:
                return self._begin_stop(attempt, "peer", f"{names} cannot be got: {error}")
            return self._wait(error.error_class, f"{names} cannot be got: {error}", {}, "round")
        merged = dataclasses.replace(
            got, machines={**allocation.machines, **got.machines}, details={**allocation.details, **got.details}
        )
        values = {"waits": 0, "not_before": 0.0, "cause": "", "reason": ""}
        return self._write("launched", f"got {names}", job=values, attempt={"allocation": merged.to_json()})
