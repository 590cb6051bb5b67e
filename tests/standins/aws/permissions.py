"""IAM authorization of calls: policies by action, resource and condition, and the implied permissions of a call.

moto checks only the action's name, and only for calls that it handles itself; for S3 it also checks bucket and key, so
S3 is left to moto. This module authorizes all other calls with their resources, request tags and resource tags:
iam:PassRole for an instance profile, ec2:CreateTags for tags on creation, and so on.

Sources: Service Authorization Reference (actions, resources and condition keys of EC2, IAM, SSM); EC2 user guide,
"Grant permission to tag resources during creation"; IAM user guide, "Policy evaluation logic". Not implemented: service
control policies, the effect of a permissions boundary, resource policies, operators other than StringEquals and
StringLike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from ..faults import Call
from . import moto_side
from .answers import RefusedError
from .calls import numbered, tags_for

if TYPE_CHECKING:
    from .account import Account

_RUN_ON = ("image", "subnet", "security-group")
_RUN_MADE = ("instance", "volume", "network-interface")
_PARAMETER_OF = {  # parameter that names the resource of an action -> type of the resource
    "InstanceId": "instance",
    "VolumeId": "volume",
    "GroupId": "security-group",
    "NetworkInterfaceId": "network-interface",
    "SpotInstanceRequestId": "spot-instances-request",
    "LaunchTemplateId": "launch-template",
}
_MADE_BY = {
    "CreateSecurityGroup": "security-group",
    "CreatePlacementGroup": "placement-group",
    "CreateLaunchTemplate": "launch-template",
}


class Permission(NamedTuple):
    """A required permission: action, resource and condition context."""

    action: str
    resource: str = "*"
    context: Mapping[str, str] = {}


def check(account: Account, call: Call, headers: Mapping[str, str]) -> None:
    """Raise RefusedError, with AWS's message, for a call that the caller's policies do not allow."""
    if call.service in ("s3", "sts"):
        return
    statements = statements_of(call, headers)
    for ask in _required_permissions(account, call):
        if not allows(statements, ask):
            raise _denied(call, ask)


def statements_of(call: Call, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the statements of all policies of the caller. Raises RefusedError for unknown credentials."""
    return [one for policy in _policies(call, headers) for one in _statements(policy)]


def allows(statements: Sequence[Mapping[str, Any]], ask: Permission) -> bool:
    matching = [one for one in statements if _matches(one, ask)]
    return bool(matching) and not any(one["Effect"] == "Deny" for one in matching)


def _policies(call: Call, headers: Mapping[str, str]) -> list[Any]:
    from moto.iam.access_control import CreateAccessKeyFailure, create_access_key

    try:
        key = create_access_key(moto_side.ACCOUNT, "aws", call.caller, dict(headers))
    except CreateAccessKeyFailure as unknown:
        code = "AuthFailure" if call.service == "ec2" else "InvalidClientTokenId"
        text = "AWS was not able to validate the provided access credentials"
        raise RefusedError(code, text, 401 if call.service == "ec2" else 403) from unknown
    return list(key.collect_policies())


def _statements(policy: Any) -> list[dict[str, Any]]:
    document = policy if isinstance(policy, str) else getattr(policy, "document", None) or policy["policy_document"]
    found = json.loads(document)["Statement"]
    return found if isinstance(found, list) else [found]


def _matches(statement: Mapping[str, Any], ask: Permission) -> bool:
    return (
        any(fnmatchcase(ask.action.lower(), glob.lower()) for glob in _listed(statement["Action"]))
        and any(fnmatchcase(ask.resource, glob) for glob in _listed(statement["Resource"]))
        and all(
            any(_fits(operator, ask.context.get(key), value) for value in _listed(values))
            for operator, conditions in statement.get("Condition", {}).items()
            for key, values in conditions.items()
        )
    )


def _fits(operator: str, value: str | None, wanted: str) -> bool:
    if operator not in ("StringEquals", "StringLike"):
        raise RefusedError("StandinNotImplemented", f"the condition operator {operator}", 501)
    return value is not None and (fnmatchcase(value, wanted) if operator == "StringLike" else value == wanted)


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _denied(call: Call, ask: Permission) -> RefusedError:
    codes = {"ec2": "UnauthorizedOperation", "iam": "AccessDenied", "autoscaling": "AccessDenied"}
    text = f"User: {call.caller} is not authorized to perform: {ask.action}"
    if ask.resource != "*":
        text += f" on resource: {ask.resource}"
    text += f" because no identity-based policy allows the {ask.action} action"
    if call.service == "ec2":
        text = f"You are not authorized to perform this operation. {text}"
    return RefusedError(codes.get(call.service, "AccessDeniedException"), text, 400 if call.service == "ssm" else 403)


# --- permissions that a call requires
# ----------------------------------------------------------------------------------


def _required_permissions(account: Account, call: Call) -> Iterator[Permission]:
    name = f"{call.service}:{call.action}"
    if call.service == "iam":
        yield from _iam(call, name)
    elif call.service == "ssm":
        for parameter in (value for key, value in call.params.items() if key.startswith("Name")):
            yield Permission(name, f"arn:aws:ssm:{call.region}::parameter{parameter}")
    elif call.service == "autoscaling" and call.action.startswith("Describe"):
        yield Permission(name)
    elif (call.service, call.action) == ("autoscaling", "CreateAutoScalingGroup"):
        yield from _scaling_group(account, call, name)
    elif call.service == "autoscaling" and "AutoScalingGroupName" in call.params:
        arn, tags = moto_side.scaling_group(call.region, call.params["AutoScalingGroupName"])
        yield Permission(name, arn, _tags(tags))
    elif call.service == "autoscaling" and "InstanceId" in call.params:
        group = moto_side.scaling_group_of(call.region, call.params["InstanceId"])
        arn, tags = moto_side.scaling_group(call.region, group)
        yield Permission(name, arn, _tags(tags))
    elif call.service != "ec2" or call.action.startswith("Describe"):
        yield Permission(name)
    elif call.action == "RunInstances":
        yield from _run_instances(call, name)
    elif call.action in _MADE_BY:
        yield from _made(call, name, _MADE_BY[call.action])
        if call.action == "CreateSecurityGroup":
            yield Permission(name, _arn(call, "vpc", call.params.get("VpcId", "")))
    else:
        yield from _about(account, call, name)


def _run_instances(call: Call, name: str) -> Iterator[Permission]:
    for kind in _RUN_ON:
        yield Permission(name, _arn(call, kind, "any", account="" if kind == "image" else moto_side.ACCOUNT))
    spot = call.params.get("InstanceMarketOptions.MarketType") == "spot"
    for kind in (*_RUN_MADE, *(["spot-instances-request"] if spot else [])):
        yield from _made(call, name, kind)
    if "Placement.GroupName" in call.params:
        yield Permission(name, _arn(call, "placement-group", call.params["Placement.GroupName"]))
    reservation = call.params.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId")
    if reservation:
        yield Permission(name, _arn(call, "capacity-reservation", reservation))
    profile = call.params.get("IamInstanceProfile.Arn") or call.params.get("IamInstanceProfile.Name")
    if profile and (found := moto_side.profile(profile)) is not None:
        for role in found.roles:
            yield Permission("iam:PassRole", role.arn, {"iam:PassedToService": "ec2.amazonaws.com"})


def _scaling_group(account: Account, call: Call, name: str) -> Iterator[Permission]:
    """Yield the permissions for the group with its tags, and for launching from its template (Auto Scaling user guide,
    "Control Amazon EC2 launch template usage in Auto Scaling groups")."""
    params = call.params
    keys = {
        key.removesuffix(".Key"): value for key, value in params.items() if re.fullmatch(r"Tags\.member\.\d+\.Key", key)
    }
    tags = {f"aws:RequestTag/{key}": params.get(f"{one}.Value", "") for one, key in keys.items()}
    group = f"autoScalingGroup:*:autoScalingGroupName/{params.get('AutoScalingGroupName', '')}"
    yield Permission(name, f"arn:aws:autoscaling:{call.region}:{moto_side.ACCOUNT}:{group}", tags)
    for template in (value for key, value in params.items() if key.endswith("LaunchTemplateId")):
        yield Permission("ec2:RunInstances", _arn(call, "launch-template", template))
        data = account.templates.get((call.region, template, 1), {})
        run = Call("ec2", call.region, "RunInstances", call.caller, data)
        yield from _run_instances(run, "ec2:RunInstances")


def _made(call: Call, name: str, kind: str) -> Iterator[Permission]:
    """Yield the permissions for creating a resource, and for its tags."""
    tags = tags_for(call.params, kind)
    context = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
    yield Permission(name, _arn(call, kind, "new"), context)
    if tags:
        yield Permission("ec2:CreateTags", _arn(call, kind, "new"), {**context, "ec2:CreateAction": call.action})


def _about(account: Account, call: Call, name: str) -> Iterator[Permission]:
    """Yield the permission for existing resources. Unknown and not yet visible ones have no tags: trace
    aws/karpenter-provider-aws#2100."""
    asked = False
    for parameter, kind in _PARAMETER_OF.items():
        named = [call.params[parameter]] if parameter in call.params else numbered(call.params, parameter)
        for one in named:
            asked = True
            known = {} if account.is_young(one) else moto_side.ec2(call.region).tags.get(one, {})
            yield Permission(name, _arn(call, kind, one), _tags(known))
    if "GroupName" in call.params:
        asked = True
        group = account.groups.get(f"{call.region}/{call.params['GroupName']}", {"tags": {}})
        yield Permission(name, _arn(call, "placement-group", call.params["GroupName"]), _tags(group["tags"]))
    if not asked:
        yield Permission(name)


def _iam(call: Call, name: str) -> Iterator[Permission]:
    params = call.params
    resources = [params["PolicySourceArn"]] if "PolicySourceArn" in params else []
    if "InstanceProfileName" in params:
        profile = moto_side.profile(params["InstanceProfileName"])
        path = params.get("Path") or (profile.path if profile else "/")
        resources.append(f"arn:aws:iam::{moto_side.ACCOUNT}:instance-profile{path}{params['InstanceProfileName']}")
    if "RoleName" in params and not resources:
        path = params.get("Path") or moto_side.role_path(params["RoleName"])
        resources.append(f"arn:aws:iam::{moto_side.ACCOUNT}:role{path}{params['RoleName']}")
    tagged = {"CreateRole": "iam:TagRole", "CreateInstanceProfile": "iam:TagInstanceProfile"}.get(call.action)
    boundary = params.get("PermissionsBoundary") or moto_side.role_boundary(params.get("RoleName", ""))
    within = {"iam:PermissionsBoundary": boundary} if boundary else {}
    for resource in resources or ["*"]:
        yield Permission(name, resource, within)
        if tagged and any(key.startswith("Tags.") for key in params):
            yield Permission(tagged, resource)
    if call.action == "AddRoleToInstanceProfile":
        role = f"arn:aws:iam::{moto_side.ACCOUNT}:role{moto_side.role_path(params['RoleName'])}{params['RoleName']}"
        yield Permission("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def _arn(call: Call, kind: str, name: str, account: str = moto_side.ACCOUNT) -> str:
    return f"arn:aws:ec2:{call.region}:{account}:{kind}/{name}"


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
