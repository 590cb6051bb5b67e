"""Network of a launch's machines: existing subnets, and a dedicated security group and placement group.

The security group is created first and deleted last: it exists as long as any resource of the launch does. Launches are
therefore found by their security groups, and its deletion proves that nothing is left: EC2 refuses it while any machine
is attached, even one that is not listed yet.
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
from ..errors import ignore_errors

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import FilterTypeDef, IpPermissionTypeDef, TagTypeDef

SUBNET_TAG = "cloudgpu-subnet"
"""Key of a tag; subnets that have it, with any value, are used instead of those of the default VPC."""
_PLACEMENT_TAG = "cloudgpu-placement"
"""Tag of the security group: a placement group of the same name may exist."""
_GROUPED_TAG = "cloudgpu-grouped"
"""Tag of the security group: the launch's machines are in an Auto Scaling group (group_launch.py)."""
PROFILE_TAG = "cloudgpu-profile"
"""Tag with the ARN of the machines' instance profile: on a launch's security group if the profile is shared, and on
fleets' Auto Scaling groups, where it permits the machines to leave."""
_EFA = Path(__file__).with_name("efa.csv")


class Subnet(NamedTuple):
    """Subnet for machines."""

    subnet: str
    vpc: str
    zone: str
    """AZ id, e.g. `use1-az2`, as in offers."""
    zone_name: str
    """AZ name, e.g. `us-east-1a`, as in EC2's messages. Names differ between accounts."""
    public: bool
    """True if machines in the subnet get public addresses."""
    free: int
    """Number of free addresses."""


class Group(NamedTuple):
    """Security group of a launch."""

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
        """Return the ARN of a shared instance profile, which teardown keeps; "": the launch has a dedicated role."""
        return self.tags.get(PROFILE_TAG, "")


def name_of(token: str) -> str:
    """Return the name of a launch's resources."""
    return f"cloudgpu-{token}"


def tag_list(values: Mapping[str, str]) -> list[TagTypeDef]:
    """Return tags in the format of EC2 and IAM."""
    return [{"Key": key, "Value": value} for key, value in values.items()]


# --- subnets ----------------------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """Subnet of the account with its tag keys."""

    subnet: Subnet
    tags: frozenset[str]
    """Tag keys."""
    default: bool
    """True for the default subnet of its zone."""


def list_subnets(ec2: EC2Client) -> list[Listed]:
    """Return all subnets of a region. Raises botocore's errors."""
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
    """Return the subnets to use, one for each zone (the one with the most free addresses), sorted by zone.

    Uses the first non-empty group of: the stack's subnets; those tagged SUBNET_TAG by users; those tagged by
    stacks without a record on this computer; those of the default VPC. Raises ProvisionError(invalid) if there are
    none, or if they are in several VPCs.
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
    """Filter subnets by zone (id or name; None: any). Raises ProvisionError(not_offered) if none is left."""
    chosen = [subnet for subnet in subnets if zone in (None, subnet.zone, subnet.zone_name)]
    if not chosen:
        there = ", ".join(f"{subnet.zone} ({subnet.zone_name})" for subnet in subnets)
        message = f"no subnet of {region} is in {zone}, only in {there}; make one there, or choose another zone"
        raise ProvisionError("not_offered", message, scope="zone", code="NoSubnet")
    return chosen


# --- security group ---------------------------------------------------------------------------------------------------


def find_group(ec2: EC2Client, token: str) -> Group | None:
    """Return the security group of a launch; None: no resource of the launch exists."""
    groups = _groups(ec2, {"Name": "group-name", "Values": [name_of(token)]})
    return next(groups, None)


def groups_of(ec2: EC2Client, owner: str) -> list[Group]:
    """Return the security groups of all launches of an owner."""
    return list(_groups(ec2, {"Name": f"tag:{tags.OWNER}", "Values": [owner]}))


def make_group(ec2: EC2Client, request: LaunchRequest, vpc: str, *, placement: bool, shared_profile: str = "") -> Group:
    """Create a launch's security group, without ingress rules, or find it if it exists. Raises ProvisionError."""
    values = {
        **tags.launch_tags(request),
        **({_PLACEMENT_TAG: "yes"} if placement else {}),
        **({PROFILE_TAG: shared_profile} if shared_profile else {}),
        **({_GROUPED_TAG: "yes"} if request.grouped else {}),
    }
    with ignore_errors("InvalidGroup.Duplicate"):
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
    """Allow traffic between the group's machines only. EFA needs the egress rule as well. Idempotent."""
    rule: list[IpPermissionTypeDef] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    with ignore_errors("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rule)
    with ignore_errors("InvalidPermission.Duplicate"):
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=rule)


def remove_group(ec2: EC2Client, group: Group) -> None:
    """Delete a security group. Raises ClientError DependencyViolation while anything is attached to it."""
    with ignore_errors("InvalidGroup.NotFound", "InvalidGroupId.Malformed"):
        ec2.delete_security_group(GroupId=group.group)


def free(ec2: EC2Client, group: Group) -> set[str]:
    """Delete the security group's unattached network interfaces; return the ids of instances with attached ones."""
    instances = set()
    where: list[FilterTypeDef] = [{"Name": "group-id", "Values": [group.group]}]
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=where):
        for interface in page["NetworkInterfaces"]:
            instance = interface.get("Attachment", {}).get("InstanceId")
            if instance:
                instances.add(instance)
            elif interface.get("Status") == "available":
                with ignore_errors("InvalidNetworkInterfaceID.NotFound"):
                    ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    return instances


def _groups(ec2: EC2Client, where: FilterTypeDef) -> Iterator[Group]:
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=[where]):
        for found in page["SecurityGroups"]:
            values = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
            yield Group(found["GroupId"], found.get("VpcId", ""), values)


# --- placement group --------------------------------------------------------------------------------------------------


def make_placement_group(ec2: EC2Client, request: LaunchRequest) -> str:
    """Create a cluster placement group (machines close together, in one zone) and return its name. Idempotent."""
    name = name_of(request.token)
    with ignore_errors("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": tag_list(tags.launch_tags(request))}],
        )
    return name


def remove_placement_group(ec2: EC2Client, token: str) -> None:
    """Delete a launch's placement group. Raises ClientError InvalidPlacementGroup.InUse while a machine is in it."""
    with ignore_errors("InvalidPlacementGroup.Unknown"):
        ec2.delete_placement_group(GroupName=name_of(token))


# --- Elastic Fabric Adapter -------------------------------------------------------------------------------------------


def efa_cards(machine_type: str) -> range:
    """Return the network cards of a machine type that have Elastic Fabric Adapters; empty: none."""
    first, cards = _efa().get(machine_type, (0, 0))
    return range(first, first + cards)


@functools.cache
def _efa() -> Mapping[str, tuple[int, int]]:
    """Return machine type -> (first card, number of cards), from efa.csv. Cards have contiguous indices.

    Source: DescribeInstanceTypes, NetworkInfo (as in moto 5.2.5 of 2026-10)."""
    with _EFA.open(encoding="utf-8", newline="") as file:
        return {row["machine_type"]: (int(row["first_card"]), int(row["cards"])) for row in csv.DictReader(file)}
