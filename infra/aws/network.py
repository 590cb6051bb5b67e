"""Network for machines: a VPC with a subnet in every zone and no inbound access."""

import re
from typing import NotRequired, TypedDict

import pulumi
import pulumi_aws as aws

from ...provisioners.aws.resources.network import SUBNET_TAG
from ..arguments import check_arguments
from ..components import child_of
from .children import TYPES, Tags, tags_of

CIDR = "10.90.0.0/16"


class GpuNetworkArgs(TypedDict):
    """Arguments of GpuNetwork."""

    zones: NotRequired[list[str]]
    """Zone ids, e.g. `use1-az1`. Default: all of the region."""
    cidr: NotRequired[str]
    """Address range of the network, a /16. Default: 10.90.0.0/16. A change replaces the network."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; begins with `cloudgpu-`. Default: derived from the project and the stack."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources in the network."""


class GpuNetwork(pulumi.ComponentResource):
    """VPC with a public subnet in each zone, an internet gateway, and a gateway endpoint for S3, which is free.

    Inbound access is blocked: the default security group has no rules, and machines use separate security groups.
    Machines have public addresses for outbound access, because a NAT gateway would cost more than some of them.
    cloudgpu's launches find the subnets by their tag.
    """

    network_id: pulumi.Output[str]
    """Id of the VPC."""
    subnets: pulumi.Output[dict[str, str]]
    """Zone (`use1-az1`) -> subnet id."""

    def __init__(self, name: str, args: GpuNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuNetwork", name, args, GpuNetworkArgs)
        super().__init__(f"{TYPES}:GpuNetwork", name, {}, opts)
        self._tags = tags_of(args)
        cidr = args.get("cidr") or CIDR
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self._named(name),
            opts=child_of(self),
        )
        aws.ec2.DefaultSecurityGroup(
            f"{name}-closed",
            vpc_id=vpc.id,
            ingress=[],
            egress=[],
            tags=self._named(f"{name}-closed"),
            opts=child_of(self),
        )
        routes = self._way_out(name, vpc)
        made = {zone: self._subnet(name, vpc, routes, zone, cidr) for zone in self._zones(args.get("zones"))}
        self.network_id = vpc.id
        self.subnets = pulumi.Output.all(**{zone: subnet.id for zone, subnet in made.items()})
        self.register_outputs({"network_id": self.network_id, "subnets": self.subnets})

    def _zones(self, asked: list[str] | None) -> list[str]:
        """Return the zone ids to use. Raises ValueError for a zone that the region does not have."""
        usual = aws.GetAvailabilityZonesFilterArgs(name="opt-in-status", values=["opt-in-not-required"])
        found = aws.get_availability_zones(state="available", filters=[usual], opts=pulumi.InvokeOptions(parent=self))
        unknown = sorted(set(asked or ()) - set(found.zone_ids))
        if unknown:
            raise ValueError(f"zones: the region has no {', '.join(unknown)}; it has {', '.join(found.zone_ids)}")
        return sorted(asked or found.zone_ids)

    def _way_out(self, name: str, vpc: aws.ec2.Vpc) -> aws.ec2.RouteTable:
        gateway = aws.ec2.InternetGateway(
            f"{name}-gateway", vpc_id=vpc.id, tags=self._named(f"{name}-gateway"), opts=child_of(self)
        )
        table = aws.ec2.RouteTable(
            f"{name}-routes", vpc_id=vpc.id, tags=self._named(f"{name}-routes"), opts=child_of(self)
        )
        aws.ec2.Route(
            f"{name}-out",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=child_of(self),
        )
        aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=vpc.region.apply(lambda region: f"com.amazonaws.{region}.s3"),
            route_table_ids=[table.id],
            tags=self._named(f"{name}-s3"),
            opts=child_of(self),
        )
        return table

    def _subnet(self, name: str, vpc: aws.ec2.Vpc, routes: aws.ec2.RouteTable, zone: str, cidr: str) -> aws.ec2.Subnet:
        subnet = aws.ec2.Subnet(
            f"{name}-{zone}",
            vpc_id=vpc.id,
            availability_zone_id=zone,
            cidr_block=range_of(zone, cidr),
            map_public_ip_on_launch=True,
            tags={**self._named(f"{name}-{zone}"), SUBNET_TAG: name},
            opts=child_of(self),
        )
        aws.ec2.RouteTableAssociation(
            f"{name}-{zone}", subnet_id=subnet.id, route_table_id=routes.id, opts=child_of(self)
        )
        return subnet

    def _named(self, name: str) -> Tags:
        return {"Name": name, **self._tags}


def range_of(zone: str, cidr: str) -> str:
    """Return a zone's /20 range in a /16. It depends only on the number in the zone's id, not on the other zones.

    Raises ValueError if `cidr` is not a /16 or the zone's id has no number from 0 to 15.
    """
    network = re.fullmatch(r"(\d+\.\d+)\.0\.0/16", cidr)
    number = re.search(r"az(\d+)$", zone)
    if network is None:
        raise ValueError(f"cidr: {cidr} is no /16, e.g. {CIDR}")
    if number is None or int(number[1]) > 15:
        raise ValueError(f"zones: {zone} is no zone as AWS numbers them, e.g. use1-az1")
    return f"{network[1]}.{int(number[1]) * 16}.0/20"
