"""Where machines are attached: a virtual network of the launch's own, or a subnet that is there; nothing may come in.

A network security group on every interface denies all that comes, also what Azure's own rules would let in (its load
balancers, the rest of the network). The machines of a launch of several nodes may reach each other: they are in an
application security group. In a network of the launch's own each machine has a public address to go out by, for new
networks have no other way out (default outbound access has ended with API version 2025-07-01): a tenth of a NAT
gateway's price, and as closed. Where CLOUDGPU_AZURE_SUBNET names a subnet, the way out is that network's business; in
the subnet of an infra stack machines have public addresses, unless it has a NAT gateway.
Sources: Azure's documentation, "Default outbound access", "Network security groups", "Application security groups".
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any, NamedTuple, cast

from ...base import LaunchRequest, NodeRequest, ProvisionError
from ...shared import tags
from ...shared.infra_outputs import Infrastructure
from .. import operations
from ..catalog.sizes import Size
from ..clients import Clients, Json, answer_of, gone_is_fine
from ..machine import vm_profile
from ..machine.request import with_tags
from ..names import SHARED, SUBNET, group_id, group_name, node_name, part_of, resource_id
from .security_rules import NETWORK_RANGE, SUBNET_RANGE, security_rules

log = logging.getLogger("cloudgpu.provisioners.azure")

SUBNET_SETTING = "CLOUDGPU_AZURE_SUBNET"
_NO_WAY_OUT = (
    "%s: the subnet %s has no NAT gateway and no routes, and no default outbound access: machines reach Blob Storage "
    "only if it has an endpoint there"
)


class Attachment(NamedTuple):
    """Where the machines of a launch are attached."""

    subnet: str
    """Resource ids."""
    security_group: str
    peers: str | None
    """The application security group; None: there is one machine only."""
    public: bool
    """Each machine has a public address."""


def make_network(clients: Clients, request: LaunchRequest, stack: Infrastructure | None = None) -> Attachment:
    """All of it but the interfaces; finds what an earlier try has made. A subnet that is named is used, else the
    stack's, else one is made. Raises ProvisionError."""
    group = group_name(request.token)
    peers = None
    if len(request.nodes) > 1:
        peers = _put(clients, request, "application_security_groups", with_tags(request, {}))
    rules = cast("Json", {"securityRules": security_rules(peers)})
    closed = _put(clients, request, "network_security_groups", with_tags(request, rules))
    named = os.environ.get(SUBNET_SETTING)
    if named:
        if not _has_way_out(_subnet(clients, request, named, SUBNET_SETTING)):
            log.warning(_NO_WAY_OUT, request.job_id, part_of(named, "subnets"))
        return Attachment(named, closed, peers, public=False)
    if stack is not None and (theirs := stack.subnets.get("")):
        inside = _subnet(clients, request, theirs, f"stack {stack.stack}")
        return Attachment(theirs, closed, peers, public=not _has_way_out(inside))
    _put(clients, request, "virtual_networks", own_network(request))
    network = resource_id(group_id(clients.subscription, group), "Microsoft.Network/virtualNetworks", SHARED)
    return Attachment(f"{network}/subnets/{SUBNET}", closed, peers, public=True)


def make_interface(clients: Clients, request: LaunchRequest, node: NodeRequest, at: Attachment, size: Size) -> str:
    """A node's network interface, with its address: resource id. It may be repeated. Raises ProvisionError."""
    name = node_name(node.node)
    address = None
    if at.public:
        address = _put(clients, request, "public_ip_addresses", public_address(request, node), name)
    body = interface(request, node, at, address, accelerated=size.accelerated)
    return _put(clients, request, "network_interfaces", body, name)


def interfaces_of(clients: Clients, group: str) -> frozenset[str]:
    """Names of a group's interfaces; of a group that is not there, none. Raises ProvisionError."""

    def ask() -> frozenset[str]:
        with gone_is_fine():
            return frozenset(str(one["name"]) for one in clients.network.network_interfaces.list(group))
        return frozenset()

    return clients.ask(f"look for interfaces in {group}", ask)


def remove_interface(clients: Clients, group: str, name: str) -> None:
    """One that belongs to no machine; does not wait. Its address goes with it, or with the group."""
    begin = partial(clients.network.network_interfaces.begin_delete, group, name)
    operations.delete(clients, f"delete the interface {name} in {group}", begin)


# --- bodies -----------------------------------------------------------------------------------------------------------


def own_network(request: LaunchRequest) -> Json:
    subnet = {"name": SUBNET, "properties": {"addressPrefix": SUBNET_RANGE, "defaultOutboundAccess": False}}
    return with_tags(request, {"addressSpace": {"addressPrefixes": [NETWORK_RANGE]}, "subnets": [subnet]})


def public_address(request: LaunchRequest, node: NodeRequest) -> Json:
    """A Standard one, of the whole region: it fits a machine in any zone."""
    body = with_tags(request, {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"})
    return {**body, "tags": tags.node_tags(request, node), "sku": {"name": "Standard"}}


def interface(
    request: LaunchRequest, node: NodeRequest, at: Attachment, address: str | None, *, accelerated: bool
) -> Json:
    """Gone with its machine, and its address with it."""
    how: Json = {"privateIPAllocationMethod": "Dynamic"}
    if address is not None:
        how["publicIPAddress"] = {"id": address, "properties": {"deleteOption": "Delete"}}
    properties = vm_profile.interface(
        subnet=at.subnet, security_group=at.security_group, peers=at.peers, accelerated=accelerated, address=how
    )
    return {**with_tags(request, properties), "tags": tags.node_tags(request, node)}


# --- calls ------------------------------------------------------------------------------------------------------------


def _put(clients: Clients, request: LaunchRequest, kind: str, body: Json, name: str = SHARED) -> str:
    """Make one of `clients.network`'s things in the launch's group: resource id."""
    group, operation = group_name(request.token), getattr(clients.network, kind)
    doing = f"make {name} ({kind.replace('_', ' ')}) in {request.region}"
    made = operations.make(
        clients,
        doing,
        partial(operation.begin_create_or_update, group, name, cast("Any", body)),
        partial(operation.get, group, name),
    )
    return str(made["id"])


def _subnet(clients: Clients, request: LaunchRequest, subnet: str, who: str) -> Json:
    """Properties of a subnet that `who` names. Raises ProvisionError for one that cannot be used in the region."""
    group, network, name = (part_of(subnet, kind) for kind in ("resourceGroups", "virtualNetworks", "subnets"))
    if not (group and network and name) or part_of(subnet, "subscriptions").lower() != clients.subscription.lower():
        message = (
            f"{who}: {subnet} is no subnet of subscription {clients.subscription}; it must be "
            "/subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/…/subnets/…"
        )
        raise ProvisionError("invalid", message, scope="cloud", code="NoSubnet")

    def ask() -> Json | None:
        with gone_is_fine():
            return cast("Json", clients.network.virtual_networks.get(group, network, cls=answer_of))
        return None

    found = clients.ask(f"look up the virtual network {network}", ask)
    subnets = ((found or {}).get("properties") or {}).get("subnets") or []
    mine = next((one for one in subnets if str(one.get("name", "")).lower() == name.lower()), None)
    if found is None or mine is None:
        other = "correct it, or unset it for a new network"
        if who != SUBNET_SETTING:
            other = f"`cloudgpu infra up --cloud azure --region {request.region}` makes it anew"
        raise ProvisionError("invalid", f"{who}: there is no subnet {subnet}: {other}", scope="cloud", code="NoSubnet")
    region = str(found.get("location", "")).lower()
    if region != request.region.lower():
        message = f"{who}: the subnet {name} is in {region}, not in {request.region}"
        raise ProvisionError("not_offered", message, scope="region", code="NoSubnet")
    inside: Json = mine.get("properties") or {}
    return inside


def _has_way_out(subnet: Json) -> bool:
    """Without a public address."""
    closed = subnet.get("defaultOutboundAccess") is False
    return not closed or bool(subnet.get("natGateway") or subnet.get("routeTable"))
