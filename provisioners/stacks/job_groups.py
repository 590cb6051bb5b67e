"""A group of a job's own (`recover: fleet`): what is the same for the groups of every cloud.
See docs/guides/recover.md.

A launch with LaunchRequest.grouped is one order in a fleet's folder within the job's, and a group of machines that
boot from it: the same machines as a cluster's, but for one job. provisioners/<cloud>/lifecycle/group_launch.py
makes the group.
"""

from __future__ import annotations

import functools
import logging
from typing import NamedTuple

from ...jobspecs.fleets import FleetSpec
from ...jobspecs.rules.base import listing
from ...protocol.fleet.records import FLEET_KEY, Settings, place_of
from ...protocol.fleet.view import OrderView, Place
from ...protocol.jobdir import JobDir
from .. import architecture_of
from ..base import Allocation, LaunchRequest, NodeState, ProvisionError
from ..boot import fleet_boot
from ..shared import infra_outputs
from ..shared.allocations import of_request
from ..shared.boot_record import agent_of, check_agent
from ..shared.infra_outputs import Infrastructure
from .fleet_orders import Orders, gone, node_states, translate_errors
from .fleet_queries import endpoints_of

log = logging.getLogger("cloudgpu.provisioners")

GROUP, FLEET_DIR = "group", "fleet_dir"
"""Keys of Allocation.details."""
OUTLIVES_S = 600
"""A machine lives so much longer than its order, of which it is to save and to leave the end."""
_LEFT = "all machines have left its group, and no other will come"
_REFUSALS = frozenset({"capacity", "quota", "not_offered", "invalid", "auth"})
"""What a provider may say of a group that will not pass by itself."""


@functools.cache
def orders() -> Orders:
    """Those of this process: what never changes is read once."""
    return Orders()


class Prepared(NamedTuple):
    """What a group is made of."""

    fleet: FleetSpec
    infrastructure: Infrastructure
    """What it stands in: network, and the machines' role."""
    fleet_dir: str
    """URL where its machines look for their job."""
    boot: str
    """User data of the template, or its startup script: as fleet_boot()."""


class GroupState(NamedTuple):
    """A group as its provider knows it."""

    exists: bool
    machines: int
    """How many of it bill now: in any state but terminated."""
    trouble: ProvisionError | None = None
    """Why it does not get machines, if the provider says so."""
    size: int | None = None
    """So many it is to have: machines that leave make it smaller, and nothing makes it larger; None: not known."""


def prepare(request: LaunchRequest, cloud: str) -> Prepared:
    """Put what its machines find there into the fleet's folder, before there is any. Idempotent: the same for the same
    request. Raises ProvisionError."""
    stack = _stack_for(request, cloud)
    check_agent(request, lambda node: architecture_of(cloud, node.machine_type) or "")
    fleet, agent = fleet_of(request, cloud), agent_of(request)
    key = f"fleets/{request.token[:16]}"
    fleet_dir = f"{request.job_dir.rstrip('/')}/{key}"
    store, api = endpoints_of(cloud, request.region)
    identity = stack.machine_role_id or None
    try:
        boot = fleet_boot(fleet, fleet_dir, agent, identity=identity, endpoint=store, api_endpoint=api, one_job=True)
    except ValueError as error:
        raise ProvisionError("invalid", f"no machine could start from {fleet_dir}: {error}", scope="cloud") from error
    with translate_errors(fleet_dir):
        job_dir = JobDir(request.job_dir)
        job_dir.copy(agent.key, f"{key}/{agent.key}")
        # Not written anew for a group that stands: expire_by() may have been called for it.
        job_dir.create(f"{key}/{FLEET_KEY}", Settings(expires=request.expires).to_bytes())
        orders().place(fleet_dir, request)
    return Prepared(fleet, stack, fleet_dir, boot)


def expire_by(prepared: Prepared, request: LaunchRequest, when: float) -> None:
    """Have what runs saved, and all machines leave, no later than at `when`, in epoch seconds: what they are bought as
    ends then. Called before there are machines. Raises ProvisionError."""
    expires = when if request.expires is None else min(when, request.expires)
    with translate_errors(prepared.fleet_dir):
        JobDir(prepared.fleet_dir).put(FLEET_KEY, Settings(expires=expires).to_bytes())


def fleet_of(request: LaunchRequest, cloud: str) -> FleetSpec:
    """Raises ProvisionError for nodes that are not all alike."""
    kinds = {(node.machine_type, node.accelerator, node.count) for node in request.nodes}
    if len(kinds) > 1:
        names = listing(sorted(kind[0] for kind in kinds))
        raise ProvisionError("invalid", f"all machines of a group are alike, not {names}", scope="cloud")
    node, lifetime = request.nodes[0], request.lifetime_s
    values = {
        "name": f"{request.job_id}-{request.attempt}",
        "cloud": cloud,
        "region": request.region,
        "zones": () if request.zone is None else (request.zone,),
        "machine_type": node.machine_type,
        "accelerator": node.accelerator,
        "gpus": str(node.count),
        "market": request.market,
        "size": len(request.nodes),
        "disk_gb": request.disk_gb,
        "peers": len(request.nodes) > 1,
        "lifetime_s": None if lifetime is None else lifetime + OUTLIVES_S,
    }
    return FleetSpec.model_validate(values)


def allocation(request: LaunchRequest, cloud: str, group: str, fleet_dir: str) -> Allocation:
    """Of a launch that has succeeded. `group`: what the provider calls it."""
    machines = {node.node: f"{group}/{place_of(node.node)}" for node in request.nodes}
    return of_request(cloud, request, machines, {GROUP: group, FLEET_DIR: fleet_dir})


def is_grouped(allocation: Allocation) -> bool:
    """False also of a launch whose answer nobody has: its group is to be looked for by the token."""
    return FLEET_DIR in allocation.details


def states(allocation: Allocation, group: GroupState) -> list[NodeState]:
    """Of its nodes, as the order tells. An order that its provider has no machines for, or that all machines have left,
    is ended. Raises ProvisionError."""
    if not group.exists:
        return _all_gone(allocation, "its group is gone")
    url, trouble = allocation.details[FLEET_DIR], group.trouble
    refused = trouble if trouble is not None and trouble.error_class in _REFUSALS else None
    with translate_errors(url):
        view = orders().look(url)
        one = view.of_token(allocation.token)
        if one is not None:
            waits = one.end is None and not any(place.incarnation for place in one.places)
            why = str(refused) if refused is not None and waits else view.hopeless(one)
            if why:
                one = orders().end(url, allocation.token, why, unserved=True)
            elif group.size == 0 and not one.is_over and not one.held:
                one = orders().end(url, allocation.token, _LEFT, unserved=waits)
    if one is None:
        return _all_gone(allocation, "its order is gone")
    is_free = group.machines == 0 and not view.silent and not view.failed  # of no use, they were paid for, too
    return list(node_states(one, functools.partial(_waiting, trouble, is_free), refused or _unserved(one)))


def dismiss(allocation: Allocation) -> None:
    """Have its machines stop, and leave. What cannot be read is no reason not to remove the group."""
    url = allocation.details.get(FLEET_DIR)
    if url is None:
        return
    try:
        with translate_errors(url):
            orders().end(url, allocation.token, "terminated")
    except ProvisionError as error:
        log.warning("%s: its machines are not told to stop, only ended: %s", allocation.job_id, error)


def _stack_for(request: LaunchRequest, cloud: str) -> Infrastructure:
    why = infra_outputs.group_obstacle(cloud, request.region, (request.job_dir, *request.reads, *request.writes))
    stack = None if why else infra_outputs.load(cloud, request.region)
    if stack is None:
        message = "the infra stack is gone" if why is None else ": ".join(filter(None, (why.message, why.allowed)))
        raise ProvisionError("invalid", message, scope="region")
    return stack


def _waiting(trouble: ProvisionError | None, is_free: bool, node: str, place: Place) -> NodeState:
    """A machine that boots is paid for; where there never was one, nothing is. A lost one's place waits until its group
    gets another: that nothing is heard of it tells nothing."""
    why = "" if trouble is None else f": {trouble}"
    return NodeState(node, "pending", f"waits for a machine of its group{why}", queued=is_free or place.incarnation > 0)


def _unserved(one: OrderView) -> ProvisionError | None:
    return None if one.end is None else ProvisionError("capacity", one.end.reason)


def _all_gone(allocation: Allocation, why: str) -> list[NodeState]:
    return [gone(node, why) for node in allocation.machines]
