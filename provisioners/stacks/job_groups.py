"""Dedicated machine groups of jobs (`recover: fleet`): the cloud-independent part. See docs/guides/recover.md.

A launch with LaunchRequest.grouped writes one order into a fleet folder inside the job dir, and creates a group of
machines that boot from this folder, like a cluster's machines. provisioners/<cloud>/lifecycle/group_launch.py creates
the group.
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
LIFETIME_MARGIN_S = 600
"""Seconds by which a machine's lifetime exceeds the order's, to save a checkpoint and to write the outcome."""
_LEFT = "all machines have left its group, and no other will come"
_REFUSALS = frozenset({"capacity", "quota", "not_offered", "invalid", "auth"})
"""Error classes of a group that do not resolve by waiting."""


@functools.cache
def orders() -> Orders:
    """Return the process's shared Orders, so that immutable data is read once."""
    return Orders()


class Prepared(NamedTuple):
    """Inputs for creating a group."""

    fleet: FleetSpec
    infrastructure: Infrastructure
    """Infra stack with the network and the machines' role."""
    fleet_dir: str
    """URL of the fleet folder, in which the machines find their order."""
    boot: str
    """User data or startup script of the template: the result of fleet_boot()."""


class GroupState(NamedTuple):
    """State of a group as its provider reports it."""

    exists: bool
    machines: int
    """Number of machines in the group that are billed: all but terminated ones."""
    launch_error: ProvisionError | None = None
    """Why the group gets no machines, if the provider says so."""
    size: int | None = None
    """Desired number of machines: decreased by machines that leave, never increased. None: unknown."""


def prepare(request: LaunchRequest, cloud: str) -> Prepared:
    """Write the fleet's folder (agent, settings, order) before the group is created. Idempotent. Raises
    ProvisionError."""
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
        # Not overwritten for an existing group: expire_by() may have changed it.
        job_dir.create(f"{key}/{FLEET_KEY}", Settings(expires=request.expires).to_bytes())
        orders().place(fleet_dir, request)
    return Prepared(fleet, stack, fleet_dir, boot)


def expire_by(prepared: Prepared, request: LaunchRequest, when: float) -> None:
    """Make the machines save their work and leave by `when` (epoch seconds), at which their reservation ends. Called
    before there are machines. Raises ProvisionError."""
    expires = when if request.expires is None else min(when, request.expires)
    with translate_errors(prepared.fleet_dir):
        JobDir(prepared.fleet_dir).put(FLEET_KEY, Settings(expires=expires).to_bytes())


def fleet_of(request: LaunchRequest, cloud: str) -> FleetSpec:
    """Return the request's nodes as a fleet. Raises ProvisionError if they have different machine types or GPUs."""
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
        "lifetime_s": None if lifetime is None else lifetime + LIFETIME_MARGIN_S,
    }
    return FleetSpec.model_validate(values)


def allocation(request: LaunchRequest, cloud: str, group: str, fleet_dir: str) -> Allocation:
    """Return the allocation of a successful launch. `group`: the provider's id of the group."""
    machines = {node.node: f"{group}/{place_of(node.node)}" for node in request.nodes}
    return of_request(cloud, request, machines, {GROUP: group, FLEET_DIR: fleet_dir})


def is_grouped(allocation: Allocation) -> bool:
    """Return whether the allocation names its group. It does not if the launch's response was lost; the group must
    then be searched by the launch token."""
    return FLEET_DIR in allocation.details


def states(allocation: Allocation, group: GroupState) -> list[NodeState]:
    """Return the states of an allocation's nodes, from its order.

    Ends the order if the provider has no machines for it, or if all machines have left. Raises ProvisionError."""
    if not group.exists:
        return _all_gone(allocation, "its group is gone")
    url, trouble = allocation.details[FLEET_DIR], group.launch_error
    refused = trouble if trouble is not None and trouble.error_class in _REFUSALS else None
    with translate_errors(url):
        view = orders().poll(url)
        one = view.of_token(allocation.token)
        if one is not None:
            waits = one.end is None and not any(place.incarnation for place in one.places)
            why = str(refused) if refused is not None and waits else view.withdrawal_reason(one)
            if why:
                one = orders().end(url, allocation.token, why, unserved=True)
            elif group.size == 0 and not one.is_over and not one.held:
                one = orders().end(url, allocation.token, _LEFT, unserved=waits)
    if one is None:
        return _all_gone(allocation, "its order is gone")
    is_free = group.machines == 0 and not view.silent and not view.failed  # silent or failed machines were billed, too
    return list(node_states(one, functools.partial(_waiting, trouble, is_free), refused or _unserved(one)))


def end_order(allocation: Allocation) -> None:
    """End the order, so that its machines stop and leave. Errors are logged only: the group must be deleted anyway."""
    url = allocation.details.get(FLEET_DIR)
    if url is None:
        return
    try:
        with translate_errors(url):
            orders().end(url, allocation.token, "terminated")
    except ProvisionError as error:
        log.warning("%s: its machines are not told to stop, only ended: %s", allocation.job_id, error)


def _stack_for(request: LaunchRequest, cloud: str) -> Infrastructure:
    folders = (request.job_dir, *request.reads, *request.writes)
    why = infra_outputs.group_obstacle(cloud, request.region, folders, request.secrets)
    stack = None if why else infra_outputs.load(cloud, request.region)
    if stack is None:
        message = "the infra stack is gone" if why is None else ": ".join(filter(None, (why.message, why.allowed)))
        raise ProvisionError("invalid", message, scope="region")
    return stack


def _waiting(trouble: ProvisionError | None, is_free: bool, node: str, place: Place) -> NodeState:
    """Return the state of a node that waits for a machine of the group.

    It is `queued` if nothing is billed yet, or if its machine was lost and the group has still to replace it: missing
    heartbeats mean nothing then. Otherwise a machine may be booting, which is billed."""
    why = "" if trouble is None else f": {trouble}"
    return NodeState(node, "pending", f"waits for a machine of its group{why}", queued=is_free or place.incarnation > 0)


def _unserved(one: OrderView) -> ProvisionError | None:
    return None if one.end is None else ProvisionError("capacity", one.end.reason)


def _all_gone(allocation: Allocation, why: str) -> list[NodeState]:
    return [gone(node, why) for node in allocation.machines]
