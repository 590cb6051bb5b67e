"""Machines with GPUs that are kept at a number: a launch template, and an Auto Scaling group of it."""

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
    Surroundings,
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

# Where Pulumi calls a field by another name than EC2's API.
TEMPLATE_NAMES = {"NetworkInterfaces.Groups": "security_groups"}
_GROUP_NAMES = {
    "LaunchTemplate.LaunchTemplateId": "id",
    "LifecycleHookSpecificationList": "initial_lifecycle_hooks",
    "LifecycleHookSpecificationList.LifecycleHookName": "name",
}

_LEAST_HEALTHY_PERCENT = 50
"""Of the machines, while all of them are replaced. The new come after the old are gone: there may be no more to get."""


class GpuFleetArgs(TypedDict):
    """Arguments of GpuFleet. How machines are made is said in plain values; what other resources say may be outputs."""

    machine_type: str
    """e.g. `g6.xlarge`."""
    size: pulumi.Input[int]
    """How many machines."""
    network_id: pulumi.Input[str]
    """VPC: GpuNetwork's output."""
    subnets: pulumi.Input[dict[str, str]]
    """Zone (`use1-az1`) -> subnet id: GpuNetwork's output."""
    profile_arn: pulumi.Input[str]
    """Instance profile: MachineRole's output."""
    zones: NotRequired[list[str]]
    """Where machines may be; omitted: wherever there is a subnet. Machines that talk through Elastic Fabric Adapters
    must be in one."""
    market: NotRequired[str]
    """`on-demand` (the default), `spot`, or `reservation`."""
    on_demand: NotRequired[int]
    """Of market spot: so many machines are bought on demand."""
    reservation: NotRequired[pulumi.Input[str]]
    """Id of the capacity reservation or capacity block of market reservation."""
    capacity_block: NotRequired[bool]
    """The reservation is a Capacity Block for ML."""
    disk_gb: NotRequired[float]
    """Omitted: 100."""
    peers: NotRequired[bool]
    """The machines talk to each other: they may reach each other, are placed together, and use their fast fabric."""
    private: NotRequired[bool]
    """The subnets are private, with a way out of their own: machines get no public address, and use all their Elastic
    Fabric Adapters. Not so in GpuNetwork's."""
    heal: NotRequired[bool]
    """A machine that is gone, or fails its checks, is replaced; omitted: it is."""
    image: NotRequired[pulumi.Input[str]]
    """AMI id, of Ubuntu with NVIDIA's driver. Omitted: AWS's newest at each `up`, so that there is another template,
    and all machines are replaced, when AWS publishes one."""
    user_data: NotRequired[pulumi.Input[str]]
    """What a machine boots with, as text; 16 KiB at most. No secrets: whoever may describe machines reads it."""
    fleet_name: NotRequired[str]
    """Value of the tag cloudgpu-fleet, and the machines' name; omitted: the component's name."""
    expires: NotRequired[pulumi.Input[float]]
    """Epoch seconds after which anybody may end the machines: they are tagged so, and an OrphanReaper does."""
    owner: NotRequired[str]
    """As in GpuNetworkArgs."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More, of everything, machines too."""


class GpuFleet(pulumi.ComponentResource):
    """A fleet: so many machines of a kind, which come back when they are lost.

    Another template (image, type, disk, user data) replaces the machines one part after the other. Machines end for
    good when they are switched off, and are told template.GRACE_S before the group ends them. No rule lets anything in
    but, of `peers`, the machines themselves.
    """

    group: pulumi.Output[str]
    """Name of the Auto Scaling group."""
    template_id: pulumi.Output[str]
    """Of the launch template."""
    template_version: pulumi.Output[str]
    """Its number."""
    security_group_id: pulumi.Output[str]
    """Of the machines."""

    def __init__(self, name: str, args: GpuFleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Raises ValueError for what EC2 cannot have."""
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

    # -- who may reach whom

    def _security_group(self, name: str, fleet: FleetSpec) -> pulumi.Output[str]:
        """Its id, known once its rules are there."""
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
        if fleet.peers:  # Elastic Fabric Adapters ask for the outward rule as well
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

    # -- what a machine is

    def _template(self, name: str, fleet: FleetSpec, security: pulumi.Output[str]) -> aws.ec2.LaunchTemplate:
        ami, root_device, gib = self._image(fleet)
        given: Any = self._args.get("reservation")
        around = Surroundings(
            ami=ami,
            root_device=root_device,
            disk_gib=gib,
            profile_arn=self._args["profile_arn"],
            group=security,
            public=not self._args.get("private", False),
            user_data=pulumi.Output.from_input(self._args.get("user_data") or "").apply(_base64),
            # Not when they expire, which the group tells them: another time would be another template, new machines.
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
        """Id, root device, and GiB of the volume."""
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

    # -- how many of them

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
            wait_for_capacity_timeout="0",  # whether there are any to get is not the stack's to wait for
            suspended_processes=suspended(fleet),
            instance_refresh={
                "strategy": "Rolling",
                "preferences": {"min_healthy_percentage": _LEAST_HEALTHY_PERCENT, "skip_matching": True},
            },
            **keywords(aws.autoscaling.GroupArgs, wanted, _GROUP_NAMES),
            opts=child_of(self),
        )


def fleet_of(name: str, args: GpuFleetArgs) -> FleetSpec:
    """Return the fleet that the arguments describe, of which size is not a part. Raises ArgumentError."""
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
    """Of the zones, or of all. Raises ValueError for a zone without one."""
    missing = sorted(set(zones) - set(subnets))
    if missing:
        raise ValueError(f"zones: there is no subnet in {', '.join(missing)}, only in {', '.join(sorted(subnets))}")
    return [subnets[zone] for zone in sorted(zones or subnets)]


def _base64(text: str) -> str:
    return base64.b64encode(check_size("user_data", text, MAX_BYTES).encode()).decode()


def _snapshot_gib(ami: Any) -> int:  # GetAmiResult
    """Of the image's root volume."""
    sizes = [
        int(mapping["ebs"].get("volume_size") or 0)
        for mapping in ami.block_device_mappings
        if mapping["device_name"] == ami.root_device_name
    ]
    return max(sizes, default=0)
