"""A fleet's machines as launch template data, and what its Auto Scaling group is told. Pure.

Both are the words of AWS's APIs (RequestLaunchTemplateData, CreateAutoScalingGroup); infra/aws registers them through
infra/pulumi_arguments.py, group_launch.py sends them itself. The machines are those of a direct launch, made by the
same functions (instance_spec.py); what differs is said in template().
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
"""A machine that the group ends is told so long before: as long as a Spot machine has to save."""
_YOUNG_S = 300
"""So long a machine is not judged: it boots."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fleet's template names that is not the fleet's: text, or a Pulumi Output of it."""

    ami: Text
    root_device: Text
    """The image's, e.g. `/dev/sda1`."""
    disk_gib: Number
    """Of the volume: machine.disk_gib()."""
    profile_arn: Text
    group: Text
    """Security group."""
    public: bool
    """The subnets are public."""
    user_data: Text
    """As base64."""
    tags: Mapping[str, Text]
    placement_group: Text | None = None
    reservation: Reservation | None = None


def template(fleet: FleetSpec, around: Surroundings) -> dict[str, Any]:
    """RequestLaunchTemplateData of a fleet's machines.

    As run_instances() asks for them, but: the subnet is the group's to say; Spot too (buying()), for a template that
    asks for Spot itself cannot be a part of a mixed group, so that requests for Spot have no tags of their own; and
    all machines have the same tags and user data.
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
    """LaunchTemplate or MixedInstancesPolicy of CreateAutoScalingGroup.

    Spot machines, of which the first `on_demand` are not, come from the zone where they are least likely to be taken
    at a low price; without a maximum price, as in a launch.
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
    """What CreateAutoScalingGroup is told of every fleet, beside size, subnets, tags and buying()."""
    hook = {
        "LifecycleHookName": "save",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "HeartbeatTimeout": GRACE_S,
        "DefaultResult": "CONTINUE",
    }
    return {
        "MinSize": 0,  # machines may leave by themselves
        "CapacityRebalance": fleet.market == "spot" and fleet.heal,
        "HealthCheckType": "EC2",
        "HealthCheckGracePeriod": _YOUNG_S,
        "LifecycleHookSpecificationList": [hook],
    }


def suspended(fleet: FleetSpec) -> list[str]:
    """Processes that the group is to leave alone: a machine that trains is not moved for the sake of even zones."""
    return ["AZRebalance"] if fleet.heal else ["AZRebalance", "ReplaceUnhealthy"]


def group_tags(fleet: FleetSpec, values: Mapping[str, Text], profile_arn: Text) -> list[dict[str, Any]]:
    """Tags of CreateAutoScalingGroup: the machines get them too, but for the one that gives them the right to leave."""
    own = {"Name": fleet.name, **values}
    propagated = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in own.items()]
    return [*propagated, {"Key": PROFILE_TAG, "Value": profile_arn, "PropagateAtLaunch": False}]


def wants_efa(fleet: FleetSpec) -> bool:
    """Whether the machines talk through Elastic Fabric Adapters."""
    return fleet.peers and bool(efa_cards(fleet.machine_type))


def is_placed(fleet: FleetSpec) -> bool:
    """Whether there is a placement group: a cluster is in one zone, and is for those who talk fast."""
    return wants_efa(fleet)


def check_fleet(fleet: FleetSpec) -> None:
    """Raises ProvisionError(invalid) for a fleet that cannot be on EC2."""
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
