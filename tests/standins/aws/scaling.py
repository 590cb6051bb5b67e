"""Auto Scaling: groups that launch, lose and replace EC2 machines. moto only stores a group's configuration.

Sources: Auto Scaling API reference and user guide ("Scaling activities", "Troubleshoot Amazon EC2 Auto Scaling");
messages of activities and errors: traces (kubernetes/autoscaler#1263 and #3241, cortex#1258, parallelcluster#1944,
terraform#1105 and #1689).

A machine is started by RunInstances with the template's data, so capacity, quotas and Spot apply; it boots, with the
tags of the template and the group. A group is reconciled immediately when it changes or when one of its machines ends,
and after RETRY_S if a launch failed; real groups are slower. A refresh completes within its call: the machines are
replaced one by one. SkipMatching counts as false, MinHealthyPercentage is always satisfied, and lifecycle hooks do not
delay anything.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, unescape

from ..faults import Call
from . import moto_side
from .account import GONE, Account
from .answers import Answer, RefusedError
from .handlers import Forward, Handler

RETRY_S = 1.0
KEPT = 50
"""Number of activities kept for a group."""
_HERE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'
_CALLER = "AKIACLOUDGPUSSCALING"
_DELETING = "Delete in progress"
_FULL = ("InsufficientInstanceCapacity", "Unsupported")
_BAD_TEMPLATE = "You must use a valid fully-formed launch template. "


# -- launch templates


def create_launch_template(account: Account, call: Call, forward: Forward) -> Answer:
    """Create a launch template and keep its data, in the form of RunInstances' parameters."""
    answer = forward()
    if answer.status == 200:
        template = _told(answer, "launchTemplateId")
        account.templates[call.region, template, 1] = _data_of(call.params)
    return answer


def create_launch_template_version(account: Account, call: Call, forward: Forward) -> Answer:
    answer = forward()
    if answer.status == 200:
        key = call.region, _told(answer, "launchTemplateId"), int(_told(answer, "versionNumber"))
        account.templates[key] = _data_of(call.params)
    return answer


def _data_of(params: Mapping[str, str]) -> dict[str, str]:
    head = "LaunchTemplateData."
    return {name.removeprefix(head): value for name, value in params.items() if name.startswith(head)}


def _told(answer: Answer, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", answer.body.decode())
    assert found is not None, answer.body
    return found[1]


def data_of_group(account: Account, group: Any) -> dict[str, str]:
    """Return the data from which the group's machines are launched. Raises RefusedError."""
    template, version = group.ec2_launch_template, group.launch_template_version
    numbers = {"$Latest": template.latest_version_number, "$Default": template.default_version_number}
    data = account.templates.get((group.region, template.id, int(numbers.get(version, version))))
    if data is None or template.id not in moto_side.ec2(group.region).launch_templates:
        text = f"The specified launch template, with template ID {template.id}, does not exist."
        raise RefusedError("ValidationError", _BAD_TEMPLATE + text)
    return data


# -- groups


def create_group(account: Account, call: Call, forward: Forward) -> Answer:
    """Create a group. Refuse if the name exists, or if the template or its security group does not."""
    groups, name = moto_side.scaling(call.region).autoscaling_groups, call.params.get("AutoScalingGroupName", "")
    if name in groups:
        text = f"AutoScalingGroup by this name already exists - A group with the name {name} already exists"
        raise RefusedError("AlreadyExists", text + (" and is pending delete" if _is_going(groups[name]) else ""))
    _check_template(account, call)
    answer = forward()
    if answer.status == 200:
        reconcile(account, call.region)
    return answer


def changed(account: Account, call: Call, forward: Forward) -> Answer:
    """Pass on a change of a group's size and reconcile."""
    answer = forward()
    if answer.status == 200:
        reconcile(account, call.region)
    return answer


def delete_group(account: Account, call: Call, forward: Forward) -> Answer:
    """Delete a group. With ForceDelete its machines are ended first."""
    group = _group(call)
    if call.params.get("ForceDelete") != "true" and _members(group):
        text = "You cannot delete an AutoScalingGroup while there are instances still in the group."
        raise RefusedError("ResourceInUse", text)
    group.status, group.desired_capacity, group.min_size = _DELETING, 0, 0
    reconcile(account, call.region)
    return _answer(call)


def terminate_member(account: Account, call: Call, forward: Forward) -> Answer:
    instance = call.params.get("InstanceId", "")
    name = moto_side.scaling_group_of(call.region, instance)
    if not name:
        text = f"Instance Id not found - No managed instance found for instance ID {instance}"
        raise RefusedError("ValidationError", text)
    group = moto_side.scaling(call.region).autoscaling_groups[name]
    if call.params.get("ShouldDecrementDesiredCapacity") == "true":
        if group.desired_capacity <= group.min_size:
            text = f"Currently, desiredSize equals minSize ({group.min_size})."
            raise RefusedError("ValidationError", text)
        group.desired_capacity -= 1
    _end(account, group, instance)
    reconcile(account, call.region)
    result = _activity_xml(account.activities[call.region, name][0])
    return _answer(call, f"<Activity>{result}</Activity>")


def start_instance_refresh(account: Account, call: Call, forward: Forward) -> Answer:
    group = _group(call)
    for state in _members(group):
        _end(account, group, state.instance.id)
        reconcile(account, call.region)
    return _answer(call, f"<InstanceRefreshId>{uuid.uuid4()}</InstanceRefreshId>")


def describe_activities(account: Account, call: Call, forward: Forward) -> Answer:
    name, most = call.params.get("AutoScalingGroupName", ""), int(call.params.get("MaxRecords", "100"))
    found = account.activities.get((call.region, name), [])[:most]
    items = "".join(f"<member>{_activity_xml(one)}</member>" for one in found)
    return _answer(call, f"<Activities>{items}</Activities>")


def _group(call: Call) -> Any:
    name = call.params.get("AutoScalingGroupName", "")
    found = moto_side.scaling(call.region).autoscaling_groups.get(name)
    if found is None:
        text = f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found"
        raise RefusedError("ValidationError", text)
    return found


def _check_template(account: Account, call: Call) -> None:
    """Check the template as Auto Scaling does, with a dry-run launch."""
    named = [value for name, value in call.params.items() if name.endswith("LaunchTemplateId")]
    backend = moto_side.ec2(call.region)
    for template in named:
        if template not in backend.launch_templates:
            text = f"The specified launch template, with template ID {template}, does not exist."
            raise RefusedError("ValidationError", _BAD_TEMPLATE + text)
        data = account.templates.get((call.region, template, 1), {})
        groups = {value for name, value in data.items() if ".SecurityGroupId." in name}
        for missing in groups - {group for of_vpc in backend.groups.values() for group in of_vpc}:
            text = f"The security group '{missing}' does not exist"
            raise RefusedError("ValidationError", _BAD_TEMPLATE + text)
        profile = data.get("IamInstanceProfile.Arn")
        if profile is not None and moto_side.profile(profile) is None:
            text = (
                f"Value ({profile}) for parameter iamInstanceProfile.arn is invalid. Invalid IAM Instance Profile arn"
            )
            raise RefusedError("ValidationError", _BAD_TEMPLATE + text)


def _is_going(group: Any) -> bool:
    return getattr(group, "status", None) == _DELETING


# -- reconciliation


def reconcile(account: Account, region: str) -> None:
    """Launch missing machines and end surplus ones in every group of a region."""
    with account.lock:
        scaling = moto_side.scaling(region)
        for name, group in list(scaling.autoscaling_groups.items()):
            _tend(account, group)
            group.instance_states = [one for one in group.instance_states if one.instance.state != "terminated"]
            if _is_going(group) and not group.instance_states:
                del scaling.autoscaling_groups[name]


def _tend(account: Account, group: Any) -> None:
    members, wanted = _members(group), int(group.desired_capacity or 0)
    for state in members[: max(0, len(members) - wanted)]:
        _end(account, group, state.instance.id)
    for _ in range(wanted - len(members)):
        if not _start(account, group):
            account.later(RETRY_S, lambda: reconcile(account, group.region))
            return


def _members(group: Any) -> list[Any]:
    return [one for one in group.instance_states if one.instance.state not in GONE]


def _end(account: Account, group: Any, instance: str) -> None:
    _note(account, group, f"Terminating EC2 instance: {instance}")
    account.end(instance, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")


def _start(account: Account, group: Any) -> bool:
    """Launch one machine, preferring the zone with the fewest; return whether it succeeded."""
    from moto.autoscaling.models import InstanceState

    for subnet, zone in _places(group):
        where = {"Subnet ID": subnet, "Availability Zone": zone}
        try:
            instance = account.instance(_run(account, group, subnet))
        except RefusedError as refused:
            _note(account, group, "Launching a new EC2 instance", where, refused=_words(group, refused))
            if refused.code not in _FULL:
                return False
            continue
        instance.autoscaling_group = group
        own = {tag["Key"]: tag["Value"] for tag in group.tags if str(tag["PropagateAtLaunch"]).lower() == "true"}
        instance.add_tags({**own, "aws:autoscaling:groupName": group.name})
        group.instance_states.append(InstanceState(instance))
        _note(account, group, f"Launching a new EC2 instance: {instance.id}", where)
        return True
    return False


def _places(group: Any) -> Iterator[tuple[str, str]]:
    """Return subnets with their zones, the one with the fewest members first."""
    there = [state.instance.availability_zone for state in _members(group)]
    names = (group.vpc_zone_identifier or "").split(",")
    found = moto_side.ec2(group.region).describe_subnets(subnet_ids=[name for name in names if name] or None)
    zones = sorted((there.count(one.availability_zone), one.availability_zone, one.id) for one in found)
    return ((subnet, zone) for _, zone, subnet in zones)


def _run(account: Account, group: Any, subnet: str) -> str:
    """Launch an instance; return its id. Raises RefusedError."""
    data = data_of_group(account, group)
    interfaces = {name.rpartition(".")[0] for name in data if re.fullmatch(r"NetworkInterface\.\d+\.DeviceIndex", name)}
    params = {**data, **{f"{one}.SubnetId": subnet for one in interfaces or ()}, "MinCount": "1", "MaxCount": "1"}
    if not interfaces:
        params["SubnetId"] = subnet
    if _market(group) == "Spot":
        options = {"MarketType": "spot", "SpotOptions.SpotInstanceType": "one-time"}
        params |= {f"InstanceMarketOptions.{name}": value for name, value in options.items()}
    answer = account.internally(Call("ec2", group.region, "RunInstances", _CALLER, params))
    if answer.status != 200:
        raise RefusedError(_told(answer, "Code"), unescape(_told(answer, "Message")))
    return _told(answer, "instanceId")


def _market(group: Any) -> str:
    """Return the market of the next machine: in a mixed group on-demand up to the base capacity, then Spot."""
    if not group.mixed_instances_policy:
        return ""
    distribution = group.mixed_instances_policy["InstancesDistribution"]
    bought = [state for state in _members(group) if state.instance.lifecycle != "spot"]
    return "On-Demand" if len(bought) < int(distribution.get("OnDemandBaseCapacity", 0)) else "Spot"


def _words(group: Any, refused: RefusedError) -> str:
    market = _market(group)
    result = f"Could not launch {market} Instances. {refused.code} - {refused.message}" if market else refused.message
    return f"{result} Launching EC2 instance failed."


# -- activities


def _note(
    account: Account, group: Any, what: str, where: Mapping[str, str] | None = None, *, refused: str = ""
) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = account.activities.setdefault((group.region, group.name), [])
    done = {
        "ActivityId": str(uuid.uuid4()),
        "AutoScalingGroupName": group.name,
        "Description": f"{what}.  Status Reason: {refused}" if refused else what,
        "Cause": f"At {stamp} the difference between desired and actual capacity was {group.desired_capacity}.",
        "StartTime": stamp,
        "EndTime": stamp,
        "StatusCode": "Failed" if refused else "Successful",
        **({"StatusMessage": refused} if refused else {}),
        "Progress": "100",
        "Details": json.dumps(dict(where or {})),
    }
    kept[:] = itertools.islice(itertools.chain([done], kept), KEPT)


def _activity_xml(activity: Mapping[str, str]) -> str:
    return "".join(f"<{name}>{escape(value)}</{name}>" for name, value in activity.items())


def _answer(call: Call, content: str = "") -> Answer:
    result = f"<{call.action}Result>{content}</{call.action}Result>"
    text = f"<{call.action}Response {_HERE}>{result}</{call.action}Response>"
    return Answer(200, text.encode(), {"Content-Type": "text/xml"})


HANDLERS: dict[tuple[str, str], Handler] = {
    ("autoscaling", "CreateAutoScalingGroup"): create_group,
    ("autoscaling", "DeleteAutoScalingGroup"): delete_group,
    ("autoscaling", "DescribeScalingActivities"): describe_activities,
    ("autoscaling", "SetDesiredCapacity"): changed,
    ("autoscaling", "StartInstanceRefresh"): start_instance_refresh,
    ("autoscaling", "TerminateInstanceInAutoScalingGroup"): terminate_member,
    ("autoscaling", "UpdateAutoScalingGroup"): changed,
    ("ec2", "CreateLaunchTemplate"): create_launch_template,
    ("ec2", "CreateLaunchTemplateVersion"): create_launch_template_version,
}
