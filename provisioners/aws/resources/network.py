"""Where a launch's machines are attached: subnets that exist, and a security group and a placement group of its own.

The security group is made first and removed last of all that a launch makes: as long as anything of it exists, the
group does. So the group is where to look for launches (find), and deleting it proves that nothing is left: EC2 refuses
while any machine is attached to it, even one that no listing shows yet.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...base import LaunchRequest, ProvisionError
from ...shared import tags
from ...shared.infra_outputs import Infrastructure
from ..errors import tolerate

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import FilterTypeDef, IpPermissionTypeDef, TagTypeDef

SUBNET_TAG = "cloudgpu-subnet"
"""Subnets with this tag, whatever its value, are used in the place of the default VPC's."""
_PLACEMENT_TAG = "cloudgpu-placement"
"""On the security group: there may be a placement group of the same name."""
_GROUPED_TAG = "cloudgpu-grouped"
"""On the security group: the launch's machines are an Auto Scaling group (group_launch.py)."""
PROFILE_TAG = "cloudgpu-profile"
"""ARN of the instance profile of the machines: on a launch's security group, where it is not the launch's own, and on
fleets' groups, for the machines' right to leave."""
_EFA = Path(__file__).with_name("efa.csv")


class Subnet(NamedTuple):
    """A subnet that machines may be attached to."""

    subnet: str
    vpc: str
    zone: str
    """AZ id, e.g. `use1-az2`: as offers spell zones."""
    zone_name: str
    """AZ name, e.g. `us-east-1a`: as EC2's messages spell them. Names differ between accounts."""
    public: bool
    """Its machines get public addresses."""
    free: int
    """Addresses."""


class Group(NamedTuple):
    """The security group of a launch."""

    group: str
    vpc: str
    tags: Mapping[str, str]

    @property
    def token(self) -> str:
        return self.tags.get(tags.TOKEN, "")

    @property
    def has_placement(self) -> bool:
        return _PLACEMENT_TAG in self.tags

    @property
    def is_grouped(self) -> bool:
        return _GROUPED_TAG in self.tags

    @property
    def shared_profile(self) -> str:
        """Of machines that are somebody else's role, which stays; "": the launch has a role of its own."""
        return self.tags.get(PROFILE_TAG, "")


def name_of(token: str) -> str:
    """Of all that belongs to a launch and has a name."""
    return f"cloudgpu-{token}"


def tag_list(values: Mapping[str, str]) -> list[TagTypeDef]:
    """As EC2 and IAM take tags."""
    return [{"Key": key, "Value": value} for key, value in values.items()]


# --- subnets ----------------------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A subnet of the account."""

    subnet: Subnet
    tags: frozenset[str]
    """Keys."""
    default: bool
    """It is the default of its zone."""


def list_subnets(ec2: EC2Client) -> list[Listed]:
    """All of a region. Raises botocore's errors."""
    return [
        Listed(
            Subnet(
                found["SubnetId"],
                found["VpcId"],
                found.get("AvailabilityZoneId", found["AvailabilityZone"]),
                found["AvailabilityZone"],
                found.get("MapPublicIpOnLaunch", False),
                found.get("AvailableIpAddressCount", 0),
            ),
            frozenset(tag["Key"] for tag in found.get("Tags", ())),
            found.get("DefaultForAz", False),
        )
        for page in ec2.get_paginator("describe_subnets").paginate()
        for found in page["Subnets"]
    ]


def find_subnets(listed: Iterable[Listed], region: str, stack: Infrastructure | None = None) -> list[Subnet]:
    """Those of the stack, or else those tagged SUBNET_TAG (by hand before those of stacks that are not known here), or
    else the default VPC's; the one with most free addresses of each zone, by zone.

    Raises ProvisionError(invalid) if there is none, or if they are in several VPCs.
    """
    ours: list[Subnet] = []
    tagged: list[Subnet] = []
    of_stacks: list[Subnet] = []
    default: list[Subnet] = []
    of_stack = frozenset(stack.subnets.values()) if stack else frozenset()
    for subnet, keys, is_default in listed:
        if subnet.subnet in of_stack:
            ours.append(subnet)
        elif SUBNET_TAG in keys:
            (of_stacks if tags.STACK in keys else tagged).append(subnet)
        elif is_default:
            default.append(subnet)
    if stack and of_stack and not ours:
        message = (
            f"the subnets of stack {stack.stack} are not in this account: `cloudgpu infra status --cloud aws --region "
            f"{region}` looks what is there"
        )
        raise ProvisionError("invalid", message, scope="region", code="NoSubnet")
    subnets = ours or tagged or of_stacks or default
    if not subnets:
        message = (
            f"{region} has no default VPC with subnets in this account: `aws ec2 create-default-vpc --region {region}` "
            f"makes one, `cloudgpu infra up --cloud aws --region {region}` a network of its own; or tag the subnets to "
            f"be used with {SUBNET_TAG}"
        )
        raise ProvisionError("invalid", message, scope="region", code="DefaultVpcDoesNotExist")
    if len({subnet.vpc for subnet in subnets}) > 1:
        message = (
            f"{region}: the subnets tagged {SUBNET_TAG} are in several VPCs; they must be in one, or of an infra stack "
            f"that is known here: `cloudgpu infra status --cloud aws --region {region}`"
        )
        raise ProvisionError("invalid", message, scope="region")
    best = {subnet.zone: subnet for subnet in sorted(subnets, key=lambda subnet: (subnet.free, subnet.subnet))}
    return [best[zone] for zone in sorted(best)]


def subnets_in(subnets: Sequence[Subnet], zone: str | None, region: str) -> list[Subnet]:
    """Of one zone (id or name); None: all. Raises ProvisionError(not_offered) if the zone has none."""
    chosen = [subnet for subnet in subnets if zone in (None, subnet.zone, subnet.zone_name)]
    if not chosen:
        there = ", ".join(f"{subnet.zone} ({subnet.zone_name})" for subnet in subnets)
        message = f"no subnet of {region} is in {zone}, only in {there}; make one there, or choose another zone"
        raise ProvisionError("not_offered", message, scope="zone", code="NoSubnet")
    return chosen


# --- security group ---------------------------------------------------------------------------------------------------


def find_group(ec2: EC2Client, token: str) -> Group | None:
    """The group of a launch, if there is any of it."""
    groups = _groups(ec2, {"Name": "group-name", "Values": [name_of(token)]})
    return next(groups, None)


def groups_of(ec2: EC2Client, owner: str) -> list[Group]:
    """Of every launch of an owner."""
    return list(_groups(ec2, {"Name": f"tag:{tags.OWNER}", "Values": [owner]}))


def make_group(ec2: EC2Client, request: LaunchRequest, vpc: str, *, placement: bool, shared_profile: str = "") -> Group:
    """Make a launch's security group, with no rule for what comes in; or find it, if another has just made it."""
    values = {
        **tags.launch_tags(request),
        **({_PLACEMENT_TAG: "yes"} if placement else {}),
        **({PROFILE_TAG: shared_profile} if shared_profile else {}),
        **({_GROUPED_TAG: "yes"} if request.grouped else {}),
    }
    with tolerate("InvalidGroup.Duplicate"):
        made = ec2.create_security_group(
            GroupName=name_of(request.token),
            Description=f"cloudgpu job {request.job_id}",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tag_list(values)}],
        )
        return Group(made["GroupId"], vpc, values)
    found = find_group(ec2, request.token)
    if found is None:
        message = f"{name_of(request.token)} is there and cannot be seen yet"
        raise ProvisionError("transient", message, scope="region", code="InvalidGroup.Duplicate")
    return found


def connect_peers(ec2: EC2Client, group: str) -> None:
    """Let the group's machines reach each other, and nobody else. EFA asks for the outward rule as well."""
    rule: list[IpPermissionTypeDef] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    with tolerate("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rule)
    with tolerate("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=rule)


def remove_group(ec2: EC2Client, group: Group) -> None:
    """Raises ClientError DependencyViolation while anything is attached to it."""
    with tolerate("InvalidGroup.NotFound", "InvalidGroupId.Malformed"):
        ec2.delete_security_group(GroupId=group.group)


def free(ec2: EC2Client, group: Group) -> set[str]:
    """Delete the group's interfaces that are attached to nothing; the instances that the others are attached to."""
    instances = set()
    where: list[FilterTypeDef] = [{"Name": "group-id", "Values": [group.group]}]
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=where):
        for interface in page["NetworkInterfaces"]:
            instance = interface.get("Attachment", {}).get("InstanceId")
            if instance:
                instances.add(instance)
            elif interface.get("Status") == "available":
                with tolerate("InvalidNetworkInterfaceID.NotFound"):
                    ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    return instances


def _groups(ec2: EC2Client, where: FilterTypeDef) -> Iterator[Group]:
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=[where]):
        for found in page["SecurityGroups"]:
            values = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
            yield Group(found["GroupId"], found.get("VpcId", ""), values)


# --- placement group --------------------------------------------------------------------------------------------------


def make_placement_group(ec2: EC2Client, request: LaunchRequest) -> str:
    """A cluster placement group: machines close to each other, in one zone. Its name."""
    name = name_of(request.token)
    with tolerate("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": tag_list(tags.launch_tags(request))}],
        )
    return name


def remove_placement_group(ec2: EC2Client, token: str) -> None:
    """Raises ClientError InvalidPlacementGroup.InUse while a machine is in it."""
    with tolerate("InvalidPlacementGroup.Unknown"):
        ec2.delete_placement_group(GroupName=name_of(token))


# --- Elastic Fabric Adapter -------------------------------------------------------------------------------------------


def efa_cards(machine_type: str) -> range:
    """Network cards of a machine type that have an Elastic Fabric Adapter; empty: none."""
    first, cards = _efa().get(machine_type, (0, 0))
    return range(first, first + cards)


@functools.cache
def _efa() -> Mapping[str, tuple[int, int]]:
    """efa.csv: from DescribeInstanceTypes, NetworkInfo (as in moto 5.2.5 of 2026-10); cards without a gap."""
    with _EFA.open(encoding="utf-8", newline="") as file:
        return {row["machine_type"]: (int(row["first_card"]), int(row["cards"])) for row in csv.DictReader(file)}
