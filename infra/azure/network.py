"""Network for machines: a virtual network without inbound access."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_azure_native import network

from ...provisioners.azure.names import SHARED, SUBNET
from ...provisioners.azure.resources.security_rules import NETWORK_RANGE, SUBNET_RANGE, subnet_rules
from ..arguments import check_arguments
from ..components import child_of
from ..pulumi_arguments import keywords
from .resource_groups import TYPES, group_of, tags_of

_RULES = {"securityRules.properties": ""}


class GpuNetworkArgs(TypedDict):
    """Arguments of GpuNetwork."""

    region: pulumi.Input[str]
    """Name of the Azure region, e.g. `eastus`."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources in the network."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds, set as a tag: after it any cleanup may delete the resource group with all its contents.
    Default: never."""
    resource_group: NotRequired[pulumi.Input[str]]
    """Name of an existing resource group. Default: a new group with the component's name."""
    nat: NotRequired[bool]
    """Route outbound traffic through a NAT gateway, at its hourly price. Default: false, each machine has a public
    address instead, which costs a tenth while the machine exists and allows no inbound traffic either."""


class GpuNetwork(pulumi.ComponentResource):
    """Virtual network with one subnet for machines in all zones, and a security group that blocks traffic from outside.

    Machines have another security group on their interfaces, which decides which of them reach each other.
    """

    resource_group: pulumi.Output[str]
    """Name of the network's resource group."""
    network_id: pulumi.Output[str]
    """Resource id of the virtual network."""
    subnet_id: pulumi.Output[str]
    """Resource id of the subnet."""

    def __init__(self, name: str, args: GpuNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuNetwork", name, args, GpuNetworkArgs)
        super().__init__(f"{TYPES}:GpuNetwork", name, {}, opts)
        self._region, self._tags = args["region"], tags_of(args)
        self.resource_group = group_of(self, name, args, self._tags)
        closed = network.NetworkSecurityGroup(
            f"{name}-closed",
            network_security_group_name=SHARED,
            resource_group_name=self.resource_group,
            location=self._region,
            tags=self._tags,
            **keywords(network.NetworkSecurityGroupInitArgs, {"securityRules": subnet_rules()}, _RULES),
            opts=child_of(self),
        )
        made = network.VirtualNetwork(
            f"{name}-network",
            virtual_network_name=SHARED,
            resource_group_name=self.resource_group,
            location=self._region,
            tags=self._tags,
            address_space=network.AddressSpaceArgs(address_prefixes=[NETWORK_RANGE]),
            # The subnet is a separate resource, which Azure also lists in the network's properties.
            opts=child_of(self, ignore_changes=["subnets"]),
        )
        gateway = self._gateway(name) if args.get("nat") else None
        subnet = network.Subnet(
            f"{name}-subnet",
            subnet_name=SUBNET,
            resource_group_name=self.resource_group,
            virtual_network_name=made.name,
            address_prefix=SUBNET_RANGE,
            default_outbound_access=False,
            network_security_group=network.NetworkSecurityGroupArgs(id=closed.id),
            nat_gateway=None if gateway is None else network.SubResourceArgs(id=gateway.id),
            opts=child_of(self),
        )
        self.network_id, self.subnet_id = made.id, subnet.id
        self.register_outputs(
            {"resource_group": self.resource_group, "network_id": self.network_id, "subnet_id": self.subnet_id}
        )

    def _gateway(self, name: str) -> network.NatGateway:
        address = network.PublicIPAddress(
            f"{name}-out",
            public_ip_address_name=f"{SHARED}-out",
            resource_group_name=self.resource_group,
            location=self._region,
            tags=self._tags,
            sku=network.PublicIPAddressSkuArgs(name="Standard"),
            public_ip_allocation_method="Static",
            public_ip_address_version="IPv4",
            opts=child_of(self),
        )
        return network.NatGateway(
            f"{name}-gateway",
            nat_gateway_name=SHARED,
            resource_group_name=self.resource_group,
            location=self._region,
            tags=self._tags,
            sku=network.NatGatewaySkuArgs(name="Standard"),
            public_ip_addresses=[network.SubResourceArgs(id=address.id)],
            opts=child_of(self),
        )
