"""Auto Scaling: groups that get machines as EC2 has them, lose them, and replace them. moto keeps what a group is.

Sources: Auto Scaling API reference and user guide ("Scaling activities", "Troubleshoot Amazon EC2 Auto Scaling"); words
of activities and of refusals: traces (kubernetes/autoscaler#1263 and #3241, cortex#1258, parallelcluster#1944,
terraform#1105 and #1689).

A machine is started by RunInstances with the template's data, as any other: places, quotas and Spot hold for it, it
boots, and its tags are the template's and the group's. A group looks at once when it is changed and when a machine of
it has ended, and again after RETRY_S where it got none; real groups take longer. A refresh is done when it is answered:
the machines go one after the other, and the group's new ones come in their place. SkipMatching is taken for false,
MinHealthyPercentage is kept anyway, and lifecycle hooks hold nothing up.
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
"""Activities of a group."""
_HERE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'
_CALLER = "AKIACLOUDGPUSSCALING"
_DELETING = "Delete in progress"
_FULL = ("InsufficientInstanceCapacity", "Unsupported")
_BAD_TEMPLATE = "You must use a valid fully-formed launch template. "


# -- launch templates


def create_launch_template(account: Account, call: Call, forward: Forward) -> Answer:
    """Its data is kept as it came: RunInstances takes the same parameters."""
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
    """What the group's machines are made from. Raises RefusedError."""
    template, version = group.ec2_launch_template, group.launch_template_version
    numbers = {"$Latest": template.latest_version_number, "$Default": template.default_version_number}
    data = account.templates.get((group.region, template.id, int(numbers.get(version, version))))
    if data is None or template.id not in moto_side.ec2(group.region).launch_templates:
        text = f"The specified launch template, with template ID {template.id}, does not exist."
        raise RefusedError("ValidationError", _BAD_TEMPLATE + text)
    return data


# -- groups


def create_group(account: Account, call: Call, forward: Forward) -> Answer:
    """Refused where there is one of this name, where the template is gone, or its security group."""
    groups, name = moto_side.scaling(call.region).autoscaling_groups, call.params.get("AutoScalingGroupName", "")
    if name in groups:
        text = f"AutoScalingGroup by this name already exists - A group with the name {name} already exists"
        raise RefusedError("AlreadyExists", text + (" and is pending delete" if _is_going(groups[name]) else ""))
    _check_template(account, call)
    answer = forward()
    if answer.status == 200:
        tend(account, call.region)
    return answer


def changed(account: Account, call: Call, forward: Forward) -> Answer:
    """Whatever was said of a group's size: then it looks."""
    answer = forward()
    if answer.status == 200:
        tend(account, call.region)
    return answer


def delete_group(account: Account, call: Call, forward: Forward) -> Answer:
    """With ForceDelete its machines are ended, and it is gone when they are."""
    group = _group(call)
    if call.params.get("ForceDelete") != "true" and _members(group):
        text = "You cannot delete an AutoScalingGroup while there are instances still in the group."
        raise RefusedError("ResourceInUse", text)
    group.status, group.desired_capacity, group.min_size = _DELETING, 0, 0
    tend(account, call.region)
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
    tend(account, call.region)
    told = _activity_xml(account.activities[call.region, name][0])
    return _answer(call, f"<Activity>{told}</Activity>")


def start_instance_refresh(account: Account, call: Call, forward: Forward) -> Answer:
    group = _group(call)
    for state in _members(group):
        _end(account, group, state.instance.id)
        tend(account, call.region)
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
    """As Auto Scaling does, by a launch that is tried without effect."""
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


# -- what a group does by itself


def tend(account: Account, region: str) -> None:
    """Every group of a region gets the machines that it lacks, and gives up those that are too many."""
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
            account.later(RETRY_S, lambda: tend(account, group.region))
            return


def _members(group: Any) -> list[Any]:
    return [one for one in group.instance_states if one.instance.state not in GONE]


def _end(account: Account, group: Any, instance: str) -> None:
    _note(account, group, f"Terminating EC2 instance: {instance}")
    account.end(instance, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")


def _start(account: Account, group: Any) -> bool:
    """One machine, in the zone with the fewest of them, or else in another; whether there was any to be had."""
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
    """Subnets with their zones."""
    there = [state.instance.availability_zone for state in _members(group)]
    names = (group.vpc_zone_identifier or "").split(",")
    found = moto_side.ec2(group.region).describe_subnets(subnet_ids=[name for name in names if name] or None)
    zones = sorted((there.count(one.availability_zone), one.availability_zone, one.id) for one in found)
    return ((subnet, zone) for _, zone, subnet in zones)


def _run(account: Account, group: Any, subnet: str) -> str:
    """The instance. Raises RefusedError."""
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
    """Of the next machine: the first so many of a mixed group are bought on demand."""
    if not group.mixed_instances_policy:
        return ""
    distribution = group.mixed_instances_policy["InstancesDistribution"]
    bought = [state for state in _members(group) if state.instance.lifecycle != "spot"]
    return "On-Demand" if len(bought) < int(distribution.get("OnDemandBaseCapacity", 0)) else "Spot"


def _words(group: Any, refused: RefusedError) -> str:
    market = _market(group)
    told = f"Could not launch {market} Instances. {refused.code} - {refused.message}" if market else refused.message
    return f"{told} Launching EC2 instance failed."


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
