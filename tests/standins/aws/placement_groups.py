"""Placement groups, which moto lacks. Fields follow botocore's service model, error codes the API reference."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from ..faults import Call
from . import moto_side
from .account import Account
from .answers import Answer, RefusedError, ec2_answer
from .calls import filters, numbered, tags_for
from .handlers import Forward, Handler


def create_placement_group(account: Account, call: Call, forward: Forward) -> Answer:
    name, key = call.params.get("GroupName", ""), f"{call.region}/{call.params.get('GroupName', '')}"
    if key in account.groups:
        raise RefusedError("InvalidPlacementGroup.Duplicate", f"Placement Group '{name}' already exists.")
    account.groups[key] = {
        "groupName": name,
        "strategy": call.params.get("Strategy", "cluster"),
        "state": "available",
        "groupId": f"pg-{uuid.uuid4().hex[:17]}",
        "groupArn": f"arn:aws:ec2:{call.region}:{moto_side.ACCOUNT}:placement-group/{name}",
        "tags": tags_for(call.params, "placement-group"),
    }
    return ec2_answer(call.action, f"<placementGroup>{_group_xml(account.groups[key])}</placementGroup>")


def delete_placement_group(account: Account, call: Call, forward: Forward) -> Answer:
    name = call.params.get("GroupName", "")
    if f"{call.region}/{name}" not in account.groups:
        raise RefusedError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    for instance in moto_side.ec2(call.region).all_instances():
        if instance.state != "terminated" and instance.placement.group_name == name:
            raise RefusedError(
                "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
            )
    del account.groups[f"{call.region}/{name}"]
    return ec2_answer(call.action, "<return>true</return>")


def describe_placement_groups(account: Account, call: Call, forward: Forward) -> Answer:
    names, ids = set(numbered(call.params, "GroupName")), set(numbered(call.params, "GroupId"))
    here = {key.partition("/")[2]: group for key, group in account.groups.items() if key.startswith(call.region + "/")}
    for name in names - set(here):
        raise RefusedError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    found = [
        group
        for name, group in here.items()
        if (not names or name in names)
        and (not ids or group["groupId"] in ids)
        and all(_group_passes(group, name_, values) for name_, values in filters(call.params))
    ]
    items = "".join(f"<item>{_group_xml(group)}</item>" for group in found)
    return ec2_answer(call.action, f"<placementGroupSet>{items}</placementGroupSet>")


def _group_passes(group: Mapping[str, Any], name: str, values: list[str]) -> bool:
    known = {"group-name": [group["groupName"]], "state": [group["state"]], "strategy": [group["strategy"]]}
    known["tag-key"] = list(group["tags"])
    if name.startswith("tag:"):
        known[name] = [value for key, value in group["tags"].items() if key == name[4:]]
    if name not in known:
        raise RefusedError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return bool(set(known[name]) & set(values))


def _group_xml(group: Mapping[str, Any]) -> str:
    tags = "".join(
        f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in group["tags"].items()
    )
    fields = "".join(f"<{name}>{escape(group[name])}</{name}>" for name in group if name != "tags")
    return f"{fields}<tagSet>{tags}</tagSet>"


HANDLERS: dict[tuple[str, str], Handler] = {
    ("ec2", "CreatePlacementGroup"): create_placement_group,
    ("ec2", "DeletePlacementGroup"): delete_placement_group,
    ("ec2", "DescribePlacementGroups"): describe_placement_groups,
}
