"""Launch template data and Auto Scaling group settings of a fleet. Pure functions.

Both are in the format of AWS's APIs (RequestLaunchTemplateData, CreateAutoScalingGroup); infra/aws registers them
through infra/pulumi_arguments.py, group_launch.py sends them directly. Machines are defined by the same functions as
those of a direct launch (instance_spec.py); template() lists the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....jobspecs.fleets import FleetSpec
from ...base import ProvisionError
from ..resources.network import PROFILE_TAG, efa_cards
from .instance_spec import Attachment, Number, Text, cards_of, interfaces, machine, root_disk, tagged
from .reservations import Reservation

MARKETS = ("on-demand", "spot", "reservation")
GRACE_S = 120
"""Seconds of notice before the group terminates a machine: the same as for a Spot interruption."""
_YOUNG_S = 300
"""Grace period in seconds of the health check, while a machine boots."""


@dataclass(frozen=True, slots=True)
class TemplateResources:
    """Resources outside the fleet that its template refers to, as text or as Pulumi Outputs."""

    ami: Text
    root_device: Text
    """Root device of the image, e.g. `/dev/sda1`."""
    disk_gib: Number
    """Size of the volume: the result of instance_spec.disk_gib()."""
    profile_arn: Text
    group: Text
    """Id of the security group."""
    public: bool
    """True if the subnets are public."""
    user_data: Text
    """User data in base64."""
    tags: Mapping[str, Text]
    placement_group: Text | None = None
    reservation: Reservation | None = None


def template(fleet: FleetSpec, around: TemplateResources) -> dict[str, Any]:
    """Return RequestLaunchTemplateData for a fleet's machines.

    Differences from run_instances(): all machines have the same tags and user data, and the group sets the subnet and
    the market Spot (see buying()), since a mixed group does not accept a template that requests Spot. Spot requests
    therefore have no tags.
    """
    cards = cards_of(fleet.machine_type, wants_efa=wants_efa(fleet))
    return {
        **machine(
            fleet.machine_type,
            "on-demand" if fleet.market == "spot" else fleet.market,
            ami=around.ami,
            disk=root_disk(around.root_device, around.disk_gib),
            profile_arn=around.profile_arn,
            interfaces=interfaces(Attachment(around.group, around.public), cards),
            reservation=around.reservation,
            placement_group=around.placement_group,
        ),
        "UserData": around.user_data,
        "TagSpecifications": tagged({"Name": fleet.name, **around.tags}),
    }


def buying(fleet: FleetSpec, template_id: Text, version: Text) -> dict[str, Any]:
    """Return LaunchTemplate or MixedInstancesPolicy for CreateAutoScalingGroup.

    In the market `spot` the first `fleet.on_demand` machines are on-demand. The others are Spot machines from the zones
    where interruptions are least likely at a low price. As in a direct launch, no maximum price is set.
    """
    named = {"LaunchTemplateId": template_id, "Version": version}
    if fleet.market != "spot":
        return {"LaunchTemplate": named}
    distribution = {
        "OnDemandBaseCapacity": fleet.on_demand,
        "OnDemandPercentageAboveBaseCapacity": 0,
        "SpotAllocationStrategy": "price-capacity-optimized",
    }
    policy = {"LaunchTemplate": {"LaunchTemplateSpecification": named}, "InstancesDistribution": distribution}
    return {"MixedInstancesPolicy": policy}


def group(fleet: FleetSpec) -> dict[str, Any]:
    """Return settings for CreateAutoScalingGroup, except size, subnets, tags and buying()."""
    hook = {
        "LifecycleHookName": "save",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "HeartbeatTimeout": GRACE_S,
        "DefaultResult": "CONTINUE",
    }
    return {
        "MinSize": 0,  # machines may leave the group themselves
        "CapacityRebalance": fleet.market == "spot" and fleet.heal,
        "HealthCheckType": "EC2",
        "HealthCheckGracePeriod": _YOUNG_S,
        "LifecycleHookSpecificationList": [hook],
    }


def suspended(fleet: FleetSpec) -> list[str]:
    """Return the group's processes to suspend: AZRebalance would terminate training machines to balance zones."""
    return ["AZRebalance"] if fleet.heal else ["AZRebalance", "ReplaceUnhealthy"]


def group_tags(fleet: FleetSpec, values: Mapping[str, Text], profile_arn: Text) -> list[dict[str, Any]]:
    """Return tags for CreateAutoScalingGroup. The machines get all except PROFILE_TAG, which lets them leave the
    group."""
    own = {"Name": fleet.name, **values}
    propagated = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in own.items()]
    return [*propagated, {"Key": PROFILE_TAG, "Value": profile_arn, "PropagateAtLaunch": False}]


def wants_efa(fleet: FleetSpec) -> bool:
    """Return whether the machines use Elastic Fabric Adapters."""
    return fleet.peers and bool(efa_cards(fleet.machine_type))


def is_placed(fleet: FleetSpec) -> bool:
    """Return whether the fleet needs a cluster placement group (in one zone), that is, whether its machines use EFA."""
    return wants_efa(fleet)


def check_fleet(fleet: FleetSpec) -> None:
    """Raise ProvisionError(invalid) if the fleet cannot run on EC2."""
    if fleet.cloud != "aws":
        raise ProvisionError("invalid", f"fleet {fleet.name} is of {fleet.cloud}, not of aws", scope="cloud")
    if fleet.market not in MARKETS:
        raise ProvisionError("invalid", f"EC2 has no market {fleet.market}", scope="cloud")
    if wants_efa(fleet) and len(fleet.zones) != 1:
        message = (
            f"fleet {fleet.name}: machines of {fleet.machine_type} talk through Elastic Fabric Adapters, which reach "
            "no other zone: name one zone"
        )
        raise ProvisionError("invalid", message, scope="zone")
