"""Fleet of a fixed number of GPU machines: a launch template and an Auto Scaling group that uses it."""

import base64
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

import pulumi
import pulumi_aws as aws

from ...jobspecs.fleets import FleetSpec
from ...provisioners.aws.machine.images import parameter_for
from ...provisioners.aws.machine.instance_spec import disk_gib
from ...provisioners.aws.machine.reservations import Reservation
from ...provisioners.aws.machine.template import (
    TemplateResources,
    buying,
    check_fleet,
    group,
    group_tags,
    is_placed,
    suspended,
    template,
)
from ...provisioners.aws.target import MAX_BYTES
from ...provisioners.shared import tags
from ..arguments import ArgumentError, check_arguments, check_fleet_name, check_size, fleet_spec
from ..components import child_of
from ..pulumi_arguments import keywords
from .children import TYPES, tags_of

# Pulumi's name of a field, where it differs from the EC2 API's.
TEMPLATE_NAMES = {"NetworkInterfaces.Groups": "security_groups"}
_GROUP_NAMES = {
    "LaunchTemplate.LaunchTemplateId": "id",
    "LifecycleHookSpecificationList": "initial_lifecycle_hooks",
    "LifecycleHookSpecificationList.LifecycleHookName": "name",
}

_LEAST_HEALTHY_PERCENT = 50
"""Minimum percentage of healthy machines during a rolling replacement.

Machines are terminated before their replacements start, since there may be no spare capacity.
"""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet. Arguments that shape the machines are plain values; values from other resources may be
    outputs."""

    machine_type: str
    """EC2 instance type, e.g. `g6.xlarge`."""
    size: pulumi.Input[int]
    """Number of machines."""
    network_id: pulumi.Input[str]
    """Id of the VPC: GpuNetwork's output."""
    subnets: pulumi.Input[dict[str, str]]
    """Zone (`use1-az1`) -> subnet id: GpuNetwork's output."""
    profile_arn: pulumi.Input[str]
    """ARN of the instance profile: MachineRole's output."""
    zones: NotRequired[list[str]]
    """Zones for the machines. Default: every zone with a subnet. Machines that use Elastic Fabric Adapters need a
    single zone."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot`, or `reservation`."""
    on_demand: NotRequired[int]
    """With market spot, the number of machines that are bought on demand."""
    reservation: NotRequired[pulumi.Input[str]]
    """With market reservation, the id of the capacity reservation or capacity block."""
    capacity_block: NotRequired[bool]
    """The reservation is a Capacity Block for ML."""
    disk_gb: NotRequired[float]
    """Disk size in GB. Default: 100."""
    peers: NotRequired[bool]
    """The machines communicate: they may connect to each other, share a placement group and use their fast fabric."""
    private: NotRequired[bool]
    """The subnets are private and have NAT or another egress, unlike GpuNetwork's: machines get no public address and
    use all their Elastic Fabric Adapters."""
    heal: NotRequired[bool]
    """Replace machines that are lost or fail their health checks. Default: true."""
    image: NotRequired[pulumi.Input[str]]
    """AMI id of an Ubuntu image with NVIDIA's driver. Omitted: AWS's newest at each `up`; when AWS publishes a new one,
    the template changes and all machines are replaced."""
    user_data: NotRequired[pulumi.Input[str]]
    """User data as text, at most 16 KiB. It must not contain secrets: everyone allowed to describe the machines can
    read it."""
    fleet_name: NotRequired[str]
    """Value of the tag cloudgpu-fleet, and the machines' name. Default: the component's name."""
    expires: NotRequired[pulumi.Input[float]]
    """Expiry in epoch seconds, set as a tag: after it the machines may be terminated by any cleanup, such as
    OrphanReaper."""
    owner: NotRequired[str]
    """Value of the tag cloudgpu-owner; see GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional tags of all resources, including the machines."""


class GpuFleet(pulumi.ComponentResource):
    """Fleet of a fixed number of identical machines; lost machines are replaced.

    A changed template (image, type, disk, user data) replaces the machines by a rolling update. A machine that shuts
    down is terminated. A machine gets template.GRACE_S seconds of notice before the group terminates it. Inbound
    traffic is blocked except, with `peers`, between the machines.
    """

    group: pulumi.Output[str]
    """Name of the Auto Scaling group."""
    template_id: pulumi.Output[str]
    """Id of the launch template."""
    template_version: pulumi.Output[str]
    """Version number of the launch template."""
    security_group_id: pulumi.Output[str]
    """Id of the machines' security group."""

    def __init__(self, name: str, args: GpuFleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Register the fleet's resources. Raises ValueError for arguments that EC2 does not support."""
        check_arguments("GpuFleet", name, args, GpuFleetArgs)
        super().__init__(f"{TYPES}:GpuFleet", name, {}, opts)
        fleet = fleet_of(name, args)
        self._args, self._tags = args, {**tags_of(args, expiring=True), tags.FLEET: fleet.name}
        security = self._security_group(name, fleet)
        made = self._template(name, fleet, security)
        group = self._group(name, fleet, made)
        self.group, self.template_id, self.security_group_id = group.name, made.id, security
        self.template_version = made.latest_version.apply(str)
        self.register_outputs(
            {
                "group": self.group,
                "template_id": self.template_id,
                "template_version": self.template_version,
                "security_group_id": self.security_group_id,
            }
        )

    # -- security group

    def _security_group(self, name: str, fleet: FleetSpec) -> pulumi.Output[str]:
        """Create the security group; return its id, as an output that resolves when its rules exist."""
        made = aws.ec2.SecurityGroup(
            f"{name}-machines",
            vpc_id=self._args["network_id"],
            description=f"machines of fleet {fleet.name}",
            tags={"Name": f"{name}-machines", **self._tags},
            opts=child_of(self),
        )
        rules: list[pulumi.CustomResource] = [
            aws.vpc.SecurityGroupEgressRule(
                f"{name}-out",
                security_group_id=made.id,
                ip_protocol="-1",
                cidr_ipv4="0.0.0.0/0",
                tags=self._tags,
                opts=child_of(self),
            )
        ]
        if fleet.peers:  # Elastic Fabric Adapters require the egress rule as well
            for direction, rule in (
                ("from", aws.vpc.SecurityGroupIngressRule),
                ("to", aws.vpc.SecurityGroupEgressRule),
            ):
                rules.append(
                    rule(
                        f"{name}-{direction}-peers",
                        security_group_id=made.id,
                        ip_protocol="-1",
                        referenced_security_group_id=made.id,
                        tags=self._tags,
                        opts=child_of(self),
                    )
                )
        return pulumi.Output.all(made.id, *(rule.id for rule in rules)).apply(lambda ids: str(ids[0]))

    # -- launch template

    def _template(self, name: str, fleet: FleetSpec, security: pulumi.Output[str]) -> aws.ec2.LaunchTemplate:
        ami, root_device, gib = self._image(fleet)
        given: Any = self._args.get("reservation")
        around = TemplateResources(
            ami=ami,
            root_device=root_device,
            disk_gib=gib,
            profile_arn=self._args["profile_arn"],
            group=security,
            public=not self._args.get("private", False),
            user_data=pulumi.Output.from_input(self._args.get("user_data") or "").apply(_base64),
            # Without the expiry tag, which the group adds: a new expiry would change the template and replace all
            # machines.
            tags={key: value for key, value in self._tags.items() if key != tags.EXPIRES},
            placement_group=self._placement_group(name) if is_placed(fleet) else None,
            reservation=None
            if given is None
            else Reservation(given, is_block=self._args.get("capacity_block", False), end=None),
        )
        return aws.ec2.LaunchTemplate(
            f"{name}-template",
            update_default_version=True,
            tags=self._tags,
            **keywords(aws.ec2.LaunchTemplateArgs, template(fleet, around), TEMPLATE_NAMES),
            opts=child_of(self),
        )

    def _image(self, fleet: FleetSpec) -> tuple[pulumi.Output[str], pulumi.Output[str], pulumi.Output[int]]:
        """Return the image's id and root device name, and the volume's size in GiB."""
        options = pulumi.InvokeOutputOptions(parent=self)
        given = self._args.get("image")
        if given is None:
            given = aws.ssm.get_parameter_output(name=parameter_for(fleet.machine_type), opts=options).value
        found = aws.ec2.get_ami_output(
            filters=[aws.ec2.GetAmiFilterArgs(name="image-id", values=cast("list[str]", [given]))],
            include_deprecated=True,
            opts=options,
        )
        gib = found.apply(lambda ami: disk_gib(fleet.disk_gb, _snapshot_gib(ami)))
        return found.id, found.root_device_name, gib

    def _placement_group(self, name: str) -> pulumi.Output[str]:
        made = aws.ec2.PlacementGroup(f"{name}-near", strategy="cluster", tags=self._tags, opts=child_of(self))
        return made.name

    # -- Auto Scaling group

    def _group(self, name: str, fleet: FleetSpec, made: aws.ec2.LaunchTemplate) -> aws.autoscaling.Group:
        size = pulumi.Output.from_input(self._args["size"])
        wanted = {
            **group(fleet),
            **buying(fleet, made.id, made.latest_version.apply(str)),
            "Tags": group_tags(fleet, self._tags, self._args["profile_arn"]),
        }
        subnets = pulumi.Output.from_input(self._args["subnets"]).apply(lambda known: subnets_in(known, fleet.zones))
        return aws.autoscaling.Group(
            f"{name}-group",
            max_size=size.apply(lambda count: max(int(count), 1)),
            desired_capacity=size,
            vpc_zone_identifiers=subnets,
            wait_for_capacity_timeout="0",  # `up` does not wait for capacity
            suspended_processes=suspended(fleet),
            instance_refresh={
                "strategy": "Rolling",
                "preferences": {"min_healthy_percentage": _LEAST_HEALTHY_PERCENT, "skip_matching": True},
            },
            **keywords(aws.autoscaling.GroupArgs, wanted, _GROUP_NAMES),
            opts=child_of(self),
        )


def fleet_of(name: str, args: GpuFleetArgs) -> FleetSpec:
    """Return the fleet that the arguments describe, without its size. Raises ArgumentError."""
    market = args.get("market") or "on-demand"
    if (market == "reservation") != (args.get("reservation") is not None):
        message = "market reservation and the id of a reservation belong together: give both, or neither"
        raise ArgumentError(f"GpuFleet {name!r}: {message}")
    called = args.get("fleet_name")
    if called:
        check_fleet_name(name, called)
    return fleet_spec(
        name,
        {
            "name": called or name,
            "cloud": "aws",
            "region": "",
            "zones": tuple(args.get("zones") or ()),
            "machine_type": args["machine_type"],
            "accelerator": None,
            "market": market,
            "on_demand": args.get("on_demand") or 0,
            "disk_gb": args.get("disk_gb") or 100.0,
            "peers": args.get("peers", False),
            "heal": args.get("heal", True),
        },
        check_fleet,
    )


def subnets_in(subnets: Mapping[str, str], zones: tuple[str, ...]) -> list[str]:
    """Return the subnets of the given zones, or all of them. Raises ValueError for a zone without a subnet."""
    missing = sorted(set(zones) - set(subnets))
    if missing:
        raise ValueError(f"zones: there is no subnet in {', '.join(missing)}, only in {', '.join(sorted(subnets))}")
    return [subnets[zone] for zone in sorted(zones or subnets)]


def _base64(text: str) -> str:
    return base64.b64encode(check_size("user_data", text, MAX_BYTES).encode()).decode()


def _snapshot_gib(ami: Any) -> int:  # a GetAmiResult
    """Return the size of the image's root volume in GiB."""
    sizes = [
        int(mapping["ebs"].get("volume_size") or 0)
        for mapping in ami.block_device_mappings
        if mapping["device_name"] == ami.root_device_name
    ]
    return max(sizes, default=0)
