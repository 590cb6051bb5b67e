"""Resource groups, their tags, and lists of their resources.

They follow the REST reference of Microsoft.Resources and "Resource group and resource deletion": a group that is being
deleted accepts no new resources; lists show a new group late (`set_times(lag=…)`), a GET at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from . import catalog, vms
from .arm import RefusedError, Response, answer, error, key
from .ask import ApiRequest, accepted, check_tags
from .resources import check_body, listed, shown
from .world import World

KIND = "Microsoft.Resources/resourceGroups"
_FILTER = re.compile(r"(?P<name>\w+) eq '(?P<value>(?:[^']|'')*)'")
_NAME = re.compile(r"[-\w._()]{1,90}(?<!\.)")


def put(ask: ApiRequest) -> Response:
    world, body, path = ask.world, ask.body, _path(ask)
    check_body("resource.resources.ResourceGroup", body)
    check_tags(body)
    if not _NAME.fullmatch(ask.target.group):
        raise RefusedError(
            "InvalidResourceGroup", 400, f"The provided resource group name '{ask.target.group}' is invalid."
        )
    region = catalog.region_name(body["location"])
    if region not in catalog.regions():
        text = f"The provided location '{body['location']}' is not available for resource group."
        raise RefusedError("LocationNotAvailableForResourceGroup", 400, text)
    old = world.find(path)
    if key(path) in world.deleting:
        text = f"The resource group '{ask.target.group}' is in deprovisioning state and cannot perform this operation."
        raise RefusedError("ResourceGroupBeingDeleted", 409, text)
    if old is not None and old["location"] != region:
        text = (
            f"Invalid resource group location '{region}'. The Resource group already exists in location "
            f"'{old['location']}'."
        )
        raise RefusedError("InvalidResourceGroupLocation", 409, text)
    made = {
        "id": path,
        "name": ask.target.group,
        "type": KIND,
        "location": region,
        "tags": body.get("tags") or {},
        "properties": {"provisioningState": "Succeeded"},
    }
    if "managedBy" in body:
        made["managedBy"] = body["managedBy"]
    world.resources[key(path)] = made
    world.seen_from.setdefault(key(path), time.monotonic() + world.lag_s)
    return answer(made, 201 if old is None else 200)


def get(ask: ApiRequest) -> Response:
    return answer(_there(ask))


def head(ask: ApiRequest) -> Response:
    return Response(204 if ask.world.find(_path(ask)) is not None else 404)


def patch(ask: ApiRequest) -> Response:
    """Replace all tags."""
    found, body = _there(ask), ask.body
    check_body("resource.resources.ResourceGroupPatchable", body)
    check_tags(body)
    if "tags" in body:
        found["tags"] = body["tags"] or {}
    return answer(found)


def delete(ask: ApiRequest) -> Response:
    """Delete a group with its resources: machines stop at once, the group goes last."""
    world, path = ask.world, _path(ask)
    found = _there(ask)
    until = time.monotonic() + world.group_s
    for vm in world.vms:
        if key(vm.id).startswith(key(path) + "/") and vm.power:
            vms.power_off(vm, "delete")
    found["properties"]["provisioningState"] = "Deleting"
    world.deleting.add(key(path))

    def work() -> float | None:
        world.check_later(KIND, "delete", path)
        if (left := until - time.monotonic()) > 0:
            return left
        for one in world.within(path):
            vms.forget(world, str(one["id"]))
        world.remove(path)
        return None

    def failed() -> None:
        found["properties"]["provisioningState"] = "Succeeded"
        world.deleting.discard(key(path))

    headers = ask.begin(work, failed)
    # For a group the SDK polls Location only: 202 until it is gone, then 200.
    del headers["Azure-AsyncOperation"]
    return accepted(headers)


def put_tags(ask: ApiRequest) -> Response:
    """Handle `Microsoft.Resources/tags/default` of a group or resource: Merge, Replace or Delete. 202 if it is
    asynchronous."""
    found = ask.world.find(ask.target.scope)
    if found is None:
        raise RefusedError("ResourceNotFound", 404, f"The resource {ask.target.scope} was not found.")
    if ask.request.method == "GET":
        return _tags_of(ask, found)
    body = ask.body
    result = (body.get("properties") or {}).get("tags") or {}
    check_tags({"tags": result})
    how = body.get("operation", "Replace") if ask.request.method == "PATCH" else "Replace"
    check_tags({"tags": _changed(found, how, result)})
    if ask.world.tags_s == 0:
        found["tags"] = _changed(found, how, result)
        return _tags_of(ask, found)
    until = time.monotonic() + ask.world.tags_s

    def work() -> float | None:
        if (left := until - time.monotonic()) > 0:
            return left
        found["tags"] = _changed(found, how, result)
        return None

    return accepted(ask.begin(work))


def groups(ask: ApiRequest) -> Response:
    world = ask.world
    return listed(world, _filtered(ask, (one for one in world.of_kind(KIND) if _seen(world, one))))


def resources(ask: ApiRequest) -> Response:
    """List the resources of a group or the subscription, with their common fields."""
    world = ask.world
    within = world.within(_there(ask)["id"] if ask.target.group else f"/subscriptions/{ask.target.subscription}")
    chosen = [one for one in within if "location" in one and one["type"] != KIND and _seen(world, one)]
    result: list[dict[str, Any]] = [
        {name: one[name] for name in ("id", "name", "type", "location", "tags", "sku", "zones") if name in one}
        for one in chosen
    ]
    if "createdTime" in ask.request.query.get("$expand", ""):
        for item, one in zip(result, chosen, strict=True):
            if made := one["properties"].get("timeCreated"):
                item["createdTime"] = made
    return answer({"value": list(_filtered(ask, result))})


def unavailable(ask: ApiRequest) -> Response:
    return error("StandinNotImplemented", 501, f"{ask.request.method} {ask.request.path}")


# -- helpers


def _path(ask: ApiRequest) -> str:
    return f"/subscriptions/{ask.target.subscription}/resourceGroups/{ask.target.group}"


def _there(ask: ApiRequest) -> dict[str, Any]:
    found = ask.world.find(_path(ask))
    if found is None:
        raise RefusedError("ResourceGroupNotFound", 404, f"Resource group '{ask.target.group}' could not be found.")
    return found


def _tags_of(ask: ApiRequest, found: dict[str, Any]) -> Response:
    result = {"id": ask.path, "name": "default", "type": "Microsoft.Resources/tags"}
    return answer({**result, "properties": {"tags": found.get("tags") or {}}})


def _changed(found: dict[str, Any], how: str, told: dict[str, str]) -> dict[str, str]:
    known = dict(found.get("tags") or {})
    if how == "Merge":
        return known | told
    if how == "Delete":
        return {name: value for name, value in known.items() if told.get(name) not in (value, "")}
    return told


def _seen(world: World, one: dict[str, Any]) -> bool:
    return time.monotonic() >= world.seen_from.get(key(one["id"]), 0.0)


def _filtered(ask: ApiRequest, found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the resources that match `$filter` of tagName, tagValue, resourceType, name and location, joined by `and`.
    Raises RefusedError."""
    text = ask.request.query.get("$filter", "")
    asked = {one["name"].lower(): one["value"].replace("''", "'") for one in _FILTER.finditer(text)}
    rest = _FILTER.sub("", text).replace(" and ", "").strip()
    if rest or not set(asked) <= {"tagname", "tagvalue", "resourcetype", "name", "location"}:
        raise RefusedError(
            "InvalidFilterInQueryString", 400, f"Invalid $filter '{text}' specified in the query string."
        )
    if "tagvalue" in asked and "tagname" not in asked:
        raise RefusedError("InvalidFilterInQueryString", 400, "tagValue is only allowed with tagName.")
    for one in list(found):
        tags = {name.lower(): value for name, value in (one.get("tags") or {}).items()}
        wanted = asked.get("tagname", "").lower()
        fits = "tagname" not in asked or (wanted in tags and asked.get("tagvalue", tags[wanted]) == tags[wanted])
        fits = fits and asked.get("resourcetype", one["type"]).lower() == one["type"].lower()
        fits = fits and asked.get("name", one["name"]).lower() == one["name"].lower()
        if fits and asked.get("location", one["location"]) == one["location"]:
            yield shown(one)
