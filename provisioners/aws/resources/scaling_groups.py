"""Launch template and Auto Scaling group of a launch: create, find and delete them by name.

Both are named by the launch's token and its security group, which is created before and deleted after them. A retried
call therefore finds its own resources. A delayed call that takes effect after the teardown refers to a deleted security
group, so that EC2 starts no machines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base import ProvisionError
from ...shared.errors import classify
from ..clients import Clients
from ..errors import ignore_errors, translate_errors
from .network import Group, name_of

if TYPE_CHECKING:
    from types_boto3_autoscaling.type_defs import ActivityTypeDef, AutoScalingGroupTypeDef
    from types_boto3_ec2 import EC2Client

VERSION = "1"
"""Version of a launch's template, which is immutable."""
_DELETING = "Delete in progress"
_ENOUGH = 20
"""Number of the newest scaling activities to read, enough to see an answer from every zone."""
_FAILED = re.compile(
    r"(?:Could not launch \S+ Instances\. )?(?:(?P<code>[A-Z][\w.]+) - )?(?P<words>.*?)"
    r"(?: Launching EC2 instance failed\.)?",
    re.DOTALL,
)
"""Pattern of a failed activity's StatusMessage, with EC2's error code if the group has a mixed instances policy.
Examples: kubernetes/autoscaler#1263 and #3241, cortex#1258, aws-parallelcluster#1944."""


class ScalingGroup(NamedTuple):
    """Auto Scaling group as last listed."""

    name: str
    wanted: int
    """Desired number of machines."""
    machines: int
    """Number of its machines, including those that start or end."""
    zones: frozenset[str]
    """AZ names."""
    suspended: frozenset[str]
    tags: Mapping[str, str]
    is_going: bool
    """True if it is being deleted, and waits for its machines to end."""


def group_name(group: Group) -> str:
    """Return the name of a launch's Auto Scaling group and launch template."""
    return f"{name_of(group.token)}-{group.group}"


def seen(group: AutoScalingGroupTypeDef) -> ScalingGroup:
    """Parse a group of Auto Scaling's answer."""
    return ScalingGroup(
        name=group["AutoScalingGroupName"],
        wanted=group["DesiredCapacity"],
        machines=len(group.get("Instances", ())),
        zones=frozenset(group["AvailabilityZones"]),
        suspended=frozenset(one["ProcessName"] for one in group.get("SuspendedProcesses", ()) if "ProcessName" in one),
        tags={tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", ()) if "Key" in tag},
        is_going=group.get("Status") == _DELETING,
    )


def find_scaling_group(clients: Clients, region: str, name: str) -> ScalingGroup | None:
    """Return a group by name; None: there is none. Raises ProvisionError."""
    with translate_errors(f"look for {name} in {region}", clients.clock):
        answer = clients.autoscaling(region).describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return next((seen(group) for group in answer["AutoScalingGroups"]), None)


# --- make -------------------------------------------------------------------------------------------------------------


def make_template(ec2: EC2Client, name: str, data: Mapping[str, Any], tags: list[Any]) -> str:
    """Create a launch template, or find it if it exists, and return its id. Raises botocore's errors,
    ProvisionError."""
    specification: list[Any] = [{"ResourceType": "launch-template", "Tags": tags}]
    with ignore_errors("InvalidLaunchTemplateName.AlreadyExistsException"):
        wanted: Any = data
        made = ec2.create_launch_template(
            LaunchTemplateName=name, LaunchTemplateData=wanted, TagSpecifications=specification
        )
        return made["LaunchTemplate"]["LaunchTemplateId"]
    found = _find_template(ec2, name)
    if found is None:
        raise ProvisionError("transient", f"{name} is there and cannot be seen yet", scope="region", code="NotSeen")
    return found


def make_scaling_group(clients: Clients, region: str, wanted: Mapping[str, Any]) -> None:
    """Create a group unless it exists. Raises ProvisionError(transient) if it is being deleted or not listed yet."""
    name = wanted["AutoScalingGroupName"]
    with translate_errors(f"make {name} in {region}", clients.clock), ignore_errors("AlreadyExists"):
        clients.autoscaling(region).create_auto_scaling_group(**wanted)
        return
    found = find_scaling_group(clients, region, name)
    if found is None or found.is_going:
        message = f"{name} is there, and {'is being deleted' if found else 'cannot be seen yet'}"
        raise ProvisionError("transient", message, scope="region", code="AlreadyExists")


def suspend(clients: Clients, region: str, name: str, processes: list[str]) -> None:
    with translate_errors(f"set up {name} in {region}", clients.clock):
        clients.autoscaling(region).suspend_processes(AutoScalingGroupName=name, ScalingProcesses=processes)


# --- remove -----------------------------------------------------------------------------------------------------------


def close(clients: Clients, region: str, name: str) -> bool:
    """Delete a group with its machines; return whether it still exists. Raises ProvisionError.

    Idempotent. The group exists until its machines have ended."""
    found = find_scaling_group(clients, region, name)
    if found is not None and not found.is_going:
        with translate_errors(f"delete {name} in {region}", clients.clock):
            clients.autoscaling(region).delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    return found is not None


def remove_template(ec2: EC2Client, group: Group) -> None:
    found = _find_template(ec2, group_name(group))
    if found is not None:
        delete_template(ec2, found)


def delete_template(ec2: EC2Client, template: str) -> None:
    with ignore_errors("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"):
        ec2.delete_launch_template(LaunchTemplateId=template)


def _find_template(ec2: EC2Client, name: str) -> str | None:
    where: list[Any] = [{"Name": "launch-template-name", "Values": [name]}]
    for page in ec2.get_paginator("describe_launch_templates").paginate(Filters=where):
        for found in page["LaunchTemplates"]:
            return found["LaunchTemplateId"]
    return None


# --- diagnose ---------------------------------------------------------------------------------------------------------


def trouble(clients: Clients, region: str, group: ScalingGroup) -> ProvisionError | None:
    """Return the error that keeps a group from getting machines; None if Auto Scaling's own retries may succeed.

    An error is returned if the latest activities failed in all zones, or for a reason that does not depend on the zone.
    One call. Raises ProvisionError if the call fails."""
    with translate_errors(f"ask why {group.name} lacks machines", clients.clock):
        answer = clients.autoscaling(region).describe_scaling_activities(
            AutoScalingGroupName=group.name, MaxRecords=_ENOUGH
        )
    refusals: dict[str, ProvisionError] = {}
    for activity in answer["Activities"]:  # newest first
        if activity["StatusCode"] != "Failed":
            break
        refusal = _refusal(activity, f"start machines of {group.name}")
        if refusal.scope != "zone":
            return refusal
        refusals.setdefault(_zone_of(activity), refusal)
    tried = frozenset(refusals)
    if not refusals or not (group.zones <= tried or "" in tried):
        return None
    first = next(iter(refusals.values()))
    if len(group.zones) > 1:
        first.scope = "region"
    return first


def _refusal(activity: ActivityTypeDef, doing: str) -> ProvisionError:
    said = _FAILED.fullmatch(activity.get("StatusMessage", ""))
    code, words = (said["code"] or "", said["words"]) if said else ("", "")
    return classify("aws", code=code, message=words, doing=doing, is_operation=True)


def _zone_of(activity: ActivityTypeDef) -> str:
    """Return the activity's AZ name; "": it names none."""
    try:
        return str(json.loads(activity.get("Details") or "{}").get("Availability Zone", ""))
    except (ValueError, AttributeError):
        return ""
