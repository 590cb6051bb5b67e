"""Regional managed instance groups, and instance templates.

They follow the API reference of regionInstanceGroupManagers and the pages "About repairing VMs in a MIG" and
"Automatically apply VM configuration updates in a MIG". A group is reconciled periodically: missing or stopped
instances are recreated with the same name and zone; instances of an older template are replaced under new names, at
most maxUnavailable at once; then instances are added or removed to reach the target size. After a failed creation the
next zone is tried after a pause (target shapes ANY and ANY_SINGLE_ZONE); the last errors are in `listErrors`.

Known differences: EVEN and BALANCED spread like ANY; only maxSurge 0 is supported; nothing is stateful, and there are
no health checks; whether a template that only machines under replacement use may be deleted is not verified.
"""

from __future__ import annotations

import re
import secrets
import string
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..gcp.service import RefusedError
from . import catalog, instances
from .ask import ApiRequest, invalid, last, not_found, path_of
from .filters import compiled
from .operations import now
from .world import World

GROUPS, TEMPLATES = "regionInstanceGroupManagers", "instanceTemplates"
AGENT = "cloudservices.gserviceaccount.com"
_EVERY_S = 0.05
_AGAIN_S = 0.3
"""Seconds of pause after a failed creation; a real group's are longer."""
_AT_MOST = 1_000
_LETTERS = string.ascii_lowercase + string.digits


@dataclass
class Member:
    """A managed instance."""

    zone: str
    template: str
    """Path of the template, without uniqueId."""
    making: str = ""
    """Name of the operation that last created it."""


@dataclass
class Group:
    """A group's internal state."""

    resource: dict[str, Any]
    members: dict[str, Member] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    turn: int = 0
    """Index of the zone to try next."""
    not_before: float = 0.0
    """Monotonic time before which it creates no machines."""
    is_ending: bool = False

    @property
    def region(self) -> str:
        return last(self.resource["region"])

    @property
    def zones(self) -> list[str]:
        result = self.resource.get("distributionPolicy", {}).get("zones", [])
        own = [zone for zone in catalog.zones() if catalog.region_of(zone) == self.region]
        return [last(one["zone"]) for one in result] or own[:3]

    @property
    def template(self) -> str:
        return _template_path(self.resource["versions"][0]["instanceTemplate"])


# -- methods of the API


def insert(ask: ApiRequest) -> dict[str, Any]:
    world, body = ask.world, dict(ask.body)
    name = str(body.get("name", ""))
    if (ask.scope, name) in world.collection(GROUPS):
        path = f"projects/{world.project.id}/{ask.scope}/instanceGroupManagers/{name}"
        raise RefusedError("alreadyExists", 409, f"The resource '{path}' already exists")
    _check(ask, body)
    made = world.put(GROUPS, "instanceGroupManager", ask.scope, {"baseInstanceName": name, **body, "fingerprint": "a="})
    made["selfLink"] = made["selfLink"].replace(GROUPS, "instanceGroupManagers")
    made["instanceGroup"] = made["selfLink"].replace("instanceGroupManagers", "instanceGroups")
    group = Group(made)
    world.groups[ask.scope, name] = group
    world.after(_EVERY_S, lambda: _reconcile(world, group))
    return _operation(ask, "compute.regionInstanceGroupManagers.insert", made)


def get(ask: ApiRequest) -> dict[str, Any]:
    return _shown(_group(ask))


def list_(ask: ApiRequest) -> dict[str, Any]:
    fits = compiled(ask.query.get("filter", ""))
    found = [_shown(one) for (scope, _), one in ask.world.groups.items() if scope == ask.scope and fits(one.resource)]
    return {"kind": "compute#regionInstanceGroupManagerList", "items": found}


def aggregated_list(ask: ApiRequest) -> dict[str, Any]:
    """List the groups of all regions, on one page."""
    fits, items = compiled(ask.query.get("filter", "")), dict[str, Any]()
    for (scope, _), one in ask.world.groups.items():
        if fits(one.resource):
            items.setdefault(scope, {"instanceGroupManagers": []})["instanceGroupManagers"].append(_shown(one))
    return {"kind": "compute#instanceGroupManagerAggregatedList", "items": items}


def set_named_ports(ask: ApiRequest) -> dict[str, Any]:
    """Set the group's named ports, by a method of its instanceGroups resource; machines are not changed."""
    found = ask.world.groups.get((ask.scope, ask.params["instanceGroup"]))
    if found is None:
        raise not_found(f"projects/{ask.world.project.id}/{ask.scope}/instanceGroups/{ask.params['instanceGroup']}")
    _check_ports(ask.body)
    found.resource["namedPorts"] = ask.body.get("namedPorts", [])
    return _operation(ask, "compute.regionInstanceGroups.setNamedPorts", found.resource)


def patch(ask: ApiRequest) -> dict[str, Any]:
    """Merge the body at the top level, which suffices for the fields that are patched here."""
    group = _group(ask)
    changed = {**group.resource, **ask.body}
    _check(ask, changed)
    group.resource.update(ask.body)
    return _operation(ask, "compute.regionInstanceGroupManagers.patch", group.resource)


def resize(ask: ApiRequest) -> dict[str, Any]:
    group = _group(ask)
    group.resource["targetSize"] = int(ask.query["size"])
    return _operation(ask, "compute.regionInstanceGroupManagers.resize", group.resource)


def delete_instances(ask: ApiRequest) -> dict[str, Any]:
    """Delete these instances and reduce the target size."""
    group = _group(ask)
    names = [last(link) for link in ask.body.get("instances", [])]
    unknown = [name for name in names if name not in group.members]
    if unknown and not ask.body.get("skipInstancesOnValidationError"):
        raise invalid("instances", unknown[0], "The instance is not a member of the instance group manager.")
    for name in names:
        if (member := group.members.pop(name, None)) is not None:
            group.resource["targetSize"] = max(0, group.resource["targetSize"] - 1)
            _end(ask.world, name, member)
    return _operation(ask, "compute.regionInstanceGroupManagers.deleteInstances", group.resource)


def delete(ask: ApiRequest) -> dict[str, Any]:
    """Delete a group with all its instances."""
    world, group = ask.world, _group(ask)
    group.is_ending, group.resource["targetSize"] = True, 0
    key = (ask.scope, group.resource["name"])

    def work() -> float | None:
        if any((f"zones/{one.zone}", name) in world.collection("instances") for name, one in group.members.items()):
            return _EVERY_S
        world.collection(GROUPS).pop(key, None)
        world.groups.pop(key, None)
        return None

    for name, member in group.members.items():
        _end(world, name, member)
    return _operation(ask, "compute.regionInstanceGroupManagers.delete", group.resource, work)


def list_managed_instances(ask: ApiRequest) -> dict[str, Any]:
    group = _group(ask)
    return {"managedInstances": [_managed(ask.world, group, name) for name in sorted(group.members)]}


def list_errors(ask: ApiRequest) -> dict[str, Any]:
    return {"items": _group(ask).errors[-10:]}


def insert_template(ask: ApiRequest) -> dict[str, Any]:
    """Create a template. Only its form is checked, as in Compute Engine; other errors appear when instances are
    created."""
    world, body = ask.world, dict(ask.body)
    name = str(body.get("name", ""))
    if ("global", name) in world.collection(TEMPLATES):
        raise RefusedError("alreadyExists", 409, f"The resource '{_template(world, name)}' already exists")
    properties = body.get("properties", {})
    if not properties.get("machineType") or "/" in str(properties["machineType"]):
        kind = properties.get("machineType", "")
        raise invalid("resource.properties.machineType", kind, "It is the name of a machine type.")
    for number, disk in enumerate(properties.get("disks", [])):
        if "/" in str(disk.get("initializeParams", {}).get("diskType", "")):
            field_ = f"resource.properties.disks[{number}].initializeParams.diskType"
            raise invalid(field_, disk["initializeParams"]["diskType"], "It is the name of a disk type.")
    made = world.put(TEMPLATES, "instanceTemplate", "global", body)
    return _operation(ask, "insert", made)


def delete_template(ask: ApiRequest) -> dict[str, Any]:
    world, name = ask.world, ask.params["instanceTemplate"]
    found = world.collection(TEMPLATES).get(("global", name))
    if found is None:
        raise not_found(_template(world, name))
    for group in world.groups.values():
        if last(group.template) == name:
            text = (
                f"The instance_template resource '{_template(world, name)}' is already being used by "
                f"'{path_of(group.resource['selfLink'])}'"
            )
            raise RefusedError("resourceInUseByAnotherResource", 400, text)
    del world.collection(TEMPLATES)["global", name]
    return _operation(ask, "delete", found)


# -- reconciliation


def _reconcile(world: World, group: Group) -> None:
    if group.is_ending:
        return
    _repair(world, group)
    _replace(world, group)
    wanted = int(group.resource.get("targetSize", 0))
    missing = 0 if time.monotonic() < group.not_before else wanted - len(group.members)
    for name in sorted(group.members, reverse=True)[: max(0, len(group.members) - wanted)]:
        _end(world, name, group.members.pop(name))
    for _ in range(missing):
        suffix = "".join(secrets.choice(_LETTERS) for _ in range(4))
        _make(world, group, f"{group.resource['baseInstanceName']}-{suffix}", _next_zone(group))
    world.after(_EVERY_S, lambda: _reconcile(world, group))


def _repair(world: World, group: Group) -> None:
    """Recreate instances that are missing or stopped without the group's doing."""
    repairs = group.resource.get("instanceLifecyclePolicy", {}).get("defaultActionOnFailure", "REPAIR") == "REPAIR"
    for name, member in list(group.members.items()):
        resource = world.collection("instances").get((f"zones/{member.zone}", name))
        if resource is None:
            if _note_failure(world, group, name, member) and not any(vm.name == name for vm in world.vms):
                del group.members[name]  # a new one is tried in another zone
            elif repairs and time.monotonic() >= group.not_before:
                _make(world, group, name, member.zone)
        elif resource["status"] == "TERMINATED" and repairs:
            _end(world, name, member)


def _note_failure(world: World, group: Group, name: str, member: Member) -> bool:
    """Record the error if the missing instance could not be created; return whether that is the case."""
    errors = world.operations.known.get((f"zones/{member.zone}", member.making), {}).get("error", {}).get("errors", [])
    if not errors:
        return False
    member.making = ""
    _failed(group, world.link("instances", f"zones/{member.zone}", name), errors[0]["code"], errors[0]["message"])
    return True


def _replace(world: World, group: Group) -> None:
    """Replace instances of other templates, at most maxUnavailable at once."""
    policy = group.resource.get("updatePolicy", {})
    if policy.get("type", "PROACTIVE") != "PROACTIVE":
        return
    at_once = int(policy.get("maxUnavailable", {}).get("fixed", len(group.zones)))
    coming = [name for name, one in group.members.items() if _status(world, name, one) != "RUNNING"]
    old = [name for name, one in group.members.items() if one.template != group.template]
    missing = int(group.resource.get("targetSize", 0)) - len(group.members)
    for name in sorted(old)[: max(0, at_once - len(coming) - max(0, missing))]:
        _end(world, name, group.members.pop(name))


def _make(world: World, group: Group, name: str, zone: str) -> None:
    template = world.collection(TEMPLATES).get(("global", last(group.template)))
    link = world.link("instances", f"zones/{zone}", name)
    if template is None:
        text = f"The resource '{group.template}' was not found"
        return _failed(group, link, "RESOURCE_NOT_FOUND", text)
    member = group.members[name] = Member(zone, group.template)
    body = _instance(world, group, name, zone, template["properties"])
    params = {"project": world.project.id, "zone": zone}
    try:
        member.making = instances.insert(ApiRequest(world, "instances.insert", params, {}, body, AGENT))["name"]
    except RefusedError as error:
        del group.members[name]
        _failed(group, link, error.code, error.message)
    return None


def _instance(world: World, group: Group, name: str, zone: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance's body from template properties, with names as URLs of the zone."""
    at = f"projects/{world.project.id}/zones/{zone}"
    body = {**properties, "name": name, "machineType": f"{at}/machineTypes/{properties['machineType']}"}
    body["disks"] = [_disk(one, at) for one in properties.get("disks", [])]
    body["guestAccelerators"] = [
        {**one, "acceleratorType": f"{at}/acceleratorTypes/{one['acceleratorType']}"}
        for one in properties.get("guestAccelerators", [])
    ]
    items = properties.get("metadata", {}).get("items", [])
    created_by = f"projects/{world.project.number}/regions/{group.region}/instanceGroupManagers/"
    own = [
        {"key": "created-by", "value": created_by + group.resource["name"]},
        {"key": "instance-template", "value": group.template},
    ]
    body["metadata"] = {**properties.get("metadata", {}), "items": [*items, *own]}
    return {key: value for key, value in body.items() if value != []}


def _disk(disk: Mapping[str, Any], at: str) -> dict[str, Any]:
    params = dict(disk.get("initializeParams", {}))
    if "diskType" in params:
        params["diskType"] = f"{at}/diskTypes/{params['diskType']}"
    return {**disk, "initializeParams": params}


def _end(world: World, name: str, member: Member) -> None:
    if (f"zones/{member.zone}", name) not in world.collection("instances"):
        return
    params = {"project": world.project.id, "zone": member.zone, "instance": name}
    try:
        instances.delete(ApiRequest(world, "instances.delete", params, {}, {}, AGENT))
    except RefusedError as error:
        if error.code != "resourceNotReady":
            raise
        world.after(_EVERY_S, lambda: _end(world, name, member))


def _next_zone(group: Group) -> str:
    """Return the zone for the next instance; ANY_SINGLE_ZONE: the zone of the existing ones, if any."""
    if group.resource.get("distributionPolicy", {}).get("targetShape") == "ANY_SINGLE_ZONE":
        there = [one.zone for one in group.members.values()]
        if there:
            return there[0]
    group.turn += 1
    return group.zones[group.turn % len(group.zones)]


def _failed(group: Group, instance: str, code: str, message: str) -> None:
    """Record a failure; `instance`: its URL."""
    action = {"instance": instance, "action": "CREATING"}
    result = {"error": {"code": code, "message": message}, "instanceActionDetails": action, "timestamp": now()}
    group.errors.append(result)
    group.not_before = time.monotonic() + _AGAIN_S


# -- helpers


def _check(ask: ApiRequest, body: Mapping[str, Any]) -> None:
    versions = body.get("versions", [])
    if len(versions) != 1 or not versions[0].get("instanceTemplate"):
        raise invalid("resource.versions", versions, "The stand-in knows one version, with a template.")
    template = _template_path(versions[0]["instanceTemplate"])
    if ("global", last(template)) not in ask.world.collection(TEMPLATES):
        raise not_found(template)
    if len(str(body.get("baseInstanceName", ""))) > 58:
        raise invalid("resource.baseInstanceName", body["baseInstanceName"], "It has 58 characters at most.")
    region = ask.params["region"]
    zones = [last(one["zone"]) for one in body.get("distributionPolicy", {}).get("zones", [])]
    if any(catalog.region_of(zone) != region for zone in zones):
        raise invalid("resource.distributionPolicy.zones", zones, f"They are not all in {region}.")
    if not 0 <= int(body.get("targetSize", 0)) <= _AT_MOST:
        raise invalid("resource.targetSize", body["targetSize"], f"It is between 0 and {_AT_MOST}.")
    _check_update(body, len(zones) or 3)
    _check_ports(body)


def _check_ports(body: Mapping[str, Any]) -> None:
    """Check named ports. Source: API reference of NamedPort."""
    for number, one in enumerate(body.get("namedPorts", [])):
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", str(one.get("name", ""))):
            raise invalid(f"resource.namedPorts[{number}].name", one.get("name"), "It must match RFC 1035.")
        if not 1 <= int(one.get("port", 0)) <= 65_535:
            raise invalid(f"resource.namedPorts[{number}].port", one.get("port"), "It is between 1 and 65535.")


def _check_update(body: Mapping[str, Any], zones: int) -> None:
    """Check the update policy. Source: API reference of updatePolicy and of targetShape."""
    policy = body.get("updatePolicy", {})
    limits = {name: policy.get(name, {}).get("fixed", zones) for name in ("maxSurge", "maxUnavailable")}
    for name, value in limits.items():
        if value and value < zones:
            text = (
                f"Fixed updatePolicy.{name} for regional managed instance group has to be either 0 or at least {zones}"
            )
            raise invalid(f"resource.updatePolicy.{name}.fixed", value, text)
    if not any(limits.values()):
        raise invalid("resource.updatePolicy", policy, "maxSurge and maxUnavailable cannot both be 0.")
    shape = body.get("distributionPolicy", {}).get("targetShape", "EVEN")
    if shape != "EVEN" and policy.get("instanceRedistributionType", "PROACTIVE") != "NONE":
        text = f"Proactive redistribution must be off where the target shape is {shape}."
        raise invalid("resource.updatePolicy.instanceRedistributionType", "PROACTIVE", text)


def _group(ask: ApiRequest) -> Group:
    name = ask.params["instanceGroupManager"]
    found = ask.world.groups.get((ask.scope, name))
    if found is None:
        raise not_found(f"projects/{ask.world.project.id}/{ask.scope}/instanceGroupManagers/{name}")
    return found


def _shown(group: Group) -> dict[str, Any]:
    current = [one.template == group.template for one in group.members.values()]
    stable = all(current) and len(current) == int(group.resource.get("targetSize", 0))
    return {**group.resource, "status": {"isStable": stable, "versionTarget": {"isReached": all(current)}}}


def _managed(world: World, group: Group, name: str) -> dict[str, Any]:
    member = group.members[name]
    status = _status(world, name, member)
    made: dict[str, Any] = {
        "instance": world.link("instances", f"zones/{member.zone}", name),
        "name": name,
        "currentAction": "NONE" if status == "RUNNING" else "CREATING",
        "version": {"name": group.resource["versions"][0].get("name", ""), "instanceTemplate": member.template},
    }
    return made | ({"instanceStatus": status} if status else {})


def _status(world: World, name: str, member: Member) -> str:
    resource = world.collection("instances").get((f"zones/{member.zone}", name))
    return str(resource["status"]) if resource else ""


def _template(world: World, name: str) -> str:
    return f"projects/{world.project.id}/global/instanceTemplates/{name}"


def _template_path(link: str) -> str:
    """Return the path without host and `?uniqueId=…`."""
    return path_of(link).partition("?")[0]


def _operation(ask: ApiRequest, kind: str, resource: dict[str, Any], work: Any = lambda: None) -> dict[str, Any]:
    return ask.world.operations.begin(
        kind,
        ask.scope,
        resource["selfLink"],
        resource["id"],
        user=ask.caller,
        request_id=ask.query.get("requestId", ""),
        work=work,
    )
