"""Network of a launch's machines: a dedicated virtual network or an existing subnet, without inbound access.

A network security group on every interface denies all inbound traffic, including what Azure's default rules allow (load
balancers, the rest of the network). Machines of a launch with several nodes may reach each other through an application
security group. In a dedicated network each machine has a public address for outbound traffic, because new networks have
no other egress (default outbound access ended with API version 2025-07-01). An address costs a tenth of a NAT gateway;
neither allows inbound traffic. A subnet named by CLOUDGPU_AZURE_SUBNET must have its own egress. In an infra stack's
subnet machines have public addresses unless the subnet has other egress, such as a NAT gateway.

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
from ..clients import Clients, Json, answer_of, ignore_not_found
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
    """Network resources that a launch's machines are attached to."""

    subnet: str
    """Resource ids of the subnet and of the network security group."""
    security_group: str
    peers: str | None
    """Resource id of the application security group; None: there is only one machine."""
    public: bool
    """True if each machine has a public address."""


def make_network(clients: Clients, request: LaunchRequest, stack: Infrastructure | None = None) -> Attachment:
    """Create the network resources except interfaces, or find those of an earlier try.

    It uses the configured subnet, otherwise the stack's, otherwise a new network. Raises ProvisionError.
    """
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
    """Create a node's network interface and address, and return its resource id. Idempotent. Raises ProvisionError."""
    name = node_name(node.node)
    address = None
    if at.public:
        address = _put(clients, request, "public_ip_addresses", public_address(request, node), name)
    body = interface(request, node, at, address, accelerated=size.accelerated)
    return _put(clients, request, "network_interfaces", body, name)


def interfaces_of(clients: Clients, group: str) -> frozenset[str]:
    """Return the names of a group's interfaces; empty if the group does not exist. Raises ProvisionError."""

    def ask() -> frozenset[str]:
        with ignore_not_found():
            return frozenset(str(one["name"]) for one in clients.network.network_interfaces.list(group))
        return frozenset()

    return clients.ask(f"look for interfaces in {group}", ask)


def remove_interface(clients: Clients, group: str, name: str) -> None:
    """Start deleting an interface without a machine. Its address is deleted with it or with the group."""
    begin = partial(clients.network.network_interfaces.begin_delete, group, name)
    operations.delete(clients, f"delete the interface {name} in {group}", begin)


# --- bodies -----------------------------------------------------------------------------------------------------------


def own_network(request: LaunchRequest) -> Json:
    subnet = {"name": SUBNET, "properties": {"addressPrefix": SUBNET_RANGE, "defaultOutboundAccess": False}}
    return with_tags(request, {"addressSpace": {"addressPrefixes": [NETWORK_RANGE]}, "subnets": [subnet]})


def public_address(request: LaunchRequest, node: NodeRequest) -> Json:
    """Return a regional Standard address, which fits a machine in any zone."""
    body = with_tags(request, {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"})
    return {**body, "tags": tags.node_tags(request, node), "sku": {"name": "Standard"}}


def interface(
    request: LaunchRequest, node: NodeRequest, at: Attachment, address: str | None, *, accelerated: bool
) -> Json:
    """Return the body of an interface; interface and address are deleted with the machine."""
    how: Json = {"privateIPAllocationMethod": "Dynamic"}
    if address is not None:
        how["publicIPAddress"] = {"id": address, "properties": {"deleteOption": "Delete"}}
    properties = vm_profile.interface(
        subnet=at.subnet, security_group=at.security_group, peers=at.peers, accelerated=accelerated, address=how
    )
    return {**with_tags(request, properties), "tags": tags.node_tags(request, node)}


# --- calls ------------------------------------------------------------------------------------------------------------


def _put(clients: Clients, request: LaunchRequest, kind: str, body: Json, name: str = SHARED) -> str:
    """Create a resource through `clients.network` in the launch's group, and return its resource id."""
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
    """Return the properties of a subnet. Raises ProvisionError if it cannot be used in the request's region.

    `who`: the setting or stack that names it, for messages.
    """
    group, network, name = (part_of(subnet, kind) for kind in ("resourceGroups", "virtualNetworks", "subnets"))
    if not (group and network and name) or part_of(subnet, "subscriptions").lower() != clients.subscription.lower():
        message = (
            f"{who}: {subnet} is no subnet of subscription {clients.subscription}; it must be "
            "/subscriptions/…/resourceGroups/…/providers/Microsoft.Network/virtualNetworks/…/subnets/…"
        )
        raise ProvisionError("invalid", message, scope="cloud", code="NoSubnet")

    def ask() -> Json | None:
        with ignore_not_found():
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
    """Return True if machines without public addresses have egress."""
    closed = subnet.get("defaultOutboundAccess") is False
    return not closed or bool(subnet.get("natGateway") or subnet.get("routeTable"))
