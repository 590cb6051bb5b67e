"""All resources except instances: lists of any collection, firewalls, images, networks, operations, quotas,
reservations."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..gcp.service import RefusedError
from . import catalog
from .ask import ApiRequest, invalid, last, not_found
from .capacity import GLOBAL
from .filters import FilterError, compiled
from .instances import shapes
from .world import World

Resource = dict[str, Any]
_MOST = 500


# -- lists


def get(ask: ApiRequest) -> Resource:
    """Return a resource of any collection."""
    name = ask.params[_SINGULAR[ask.collection]]
    for scope, resource in _all(ask, [ask.scope], young=True):
        if scope == ask.scope and resource["name"] == name:
            return resource
    raise not_found(f"projects/{ask.params['project']}/{_prefix(ask.scope)}{ask.collection}/{name}")


def list_(ask: ApiRequest) -> Resource:
    """Return one page of a scope's list."""
    found = [resource for _, resource in _all(ask, [ask.scope])]
    page, token = _page(ask, found)
    made = {
        "kind": f"compute#{_SINGULAR[ask.collection]}List",
        "id": f"projects/{ask.params['project']}/{_prefix(ask.scope)}{ask.collection}",
        "items": page,
        "selfLink": f"{ask.world.base()}/{_prefix(ask.scope)}{ask.collection}",
    }
    return made | ({"nextPageToken": token} if token else {})


def aggregated_list(ask: ApiRequest) -> Resource:
    """Return one page over all scopes. The first page has a warning for each empty scope."""
    scopes = _scopes(ask)
    away = ask.world.cut_off.intersection(scopes)
    pairs = _all(ask, [scope for scope in scopes if scope not in away])
    page, token = _page(ask, [resource | {"": scope} for scope, resource in pairs])
    items: dict[str, Any] = {}
    for resource in page:
        scope = resource.pop("")
        items.setdefault(scope, {}).setdefault(ask.collection.replace("globalOperations", "operations"), []).append(
            resource
        )
    if not ask.query.get("pageToken"):
        for scope in scopes:
            items.setdefault(scope, _unreachable(scope) if scope in away else _empty(scope))
    made = {
        "kind": f"compute#{_SINGULAR[ask.collection]}AggregatedList",
        "id": f"projects/{ask.params['project']}/aggregated/{ask.collection}",
        "items": items,
        "selfLink": f"{ask.world.base()}/aggregated/{ask.collection}",
    }
    return made | ({"nextPageToken": token} if token else {})


def _page(ask: ApiRequest, found: Iterable[Resource]) -> tuple[list[Resource], str]:
    try:
        fits = compiled(ask.query.get("filter", ""))
    except FilterError as error:
        raise invalid("filter", ask.query["filter"], f"Invalid list filter expression: {error}") from error
    kept = [resource for resource in found if fits(resource)]
    if ask.query.get("orderBy") == "creationTimestamp desc":
        kept.sort(
            key=lambda resource: resource.get("creationTimestamp") or resource.get("insertTime", ""), reverse=True
        )
    most = int(ask.query.get("maxResults", _MOST))
    if not 0 <= most <= _MOST:
        raise invalid("maxResults", most, f"Acceptable values are 0 to {_MOST}, inclusive")
    begin = int(ask.query.get("pageToken") or 0)
    end = begin + (most or _MOST)
    return kept[begin:end], str(end) if end < len(kept) else ""


def _all(ask: ApiRequest, scopes: Iterable[str], *, young: bool = False) -> list[tuple[str, Resource]]:
    """Return (scope, resource) of a collection; `young`: include instances that lists do not show yet."""
    world, collection, wanted = ask.world, ask.collection, set(scopes)
    if collection in _MADE:
        return [(scope, one) for scope in wanted for one in _MADE[collection](ask, scope)]
    if collection.endswith("Operations"):
        known = world.operations.known
        return [(scope, dict(one)) for (scope, _), one in known.items() if scope in wanted]
    kept = [(scope, dict(one)) for (scope, _), one in world.collection(collection).items() if scope in wanted]
    if collection == "instances" and world.lag_s and not young:
        unseen = {vm.name for vm in world.vms if time.monotonic() - vm.launched < world.lag_s}
        kept = [(scope, one) for scope, one in kept if one["name"] not in unseen]
    return kept


def _scopes(ask: ApiRequest) -> list[str]:
    zones = [f"zones/{zone}" for zone in catalog.zones()]
    regions = [f"regions/{region}" for region in catalog.regions()]
    if ask.collection == "globalOperations":
        return ["global", *regions, *zones]
    return regions if ask.collection in ("subnetworks", "resourcePolicies") else zones


def _empty(scope: str) -> Resource:
    data = [{"key": "scope", "value": scope}]
    text = f"There are no results for scope '{scope}' on this page."
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": text, "data": data}}


def _unreachable(scope: str) -> Resource:
    return {"warning": {"code": "UNREACHABLE", "message": f"The scope '{scope}' is not reachable."}}


def _prefix(scope: str) -> str:
    return f"{scope}/"


# -- resources computed on request


def _zones(ask: ApiRequest, _scope: str) -> list[Resource]:
    return [catalog.zone_resource(ask.world.project.id, zone) for zone in catalog.zones()]


def _regions(ask: ApiRequest, _scope: str) -> list[Resource]:
    return [_region(ask.world, region) for region in catalog.regions()]


def _region(world: World, region: str) -> Resource:
    zones = [world.base(f"zones/{zone}") for zone in catalog.zones() if catalog.region_of(zone) == region]
    return {
        "kind": "compute#region",
        "id": catalog.identity("region", region),
        "name": region,
        "description": region,
        "status": "UP",
        "zones": zones,
        "quotas": world.capacity.usage(region, shapes(world)),
        "selfLink": world.base(f"regions/{region}"),
    }


def _machine_types(ask: ApiRequest, scope: str) -> list[Resource]:
    zone, project = last(scope), ask.world.project.id
    known = catalog.machine_types().values()
    found = [catalog.machine_type_resource(project, zone, one) for one in known if zone in one.zones]
    return _described(ask, "machineTypes", zone, found)


def _accelerators(ask: ApiRequest, scope: str) -> list[Resource]:
    zone, project = last(scope), ask.world.project.id
    found = [
        catalog.accelerator_resource(project, zone, name)
        for name, zones in sorted(catalog.accelerators().items())
        if zone in zones
    ]
    return _described(ask, "acceleratorTypes", zone, found)


def _described(ask: ApiRequest, kind: str, zone: str, known: list[Resource]) -> list[Resource]:
    """Apply the tests' overrides."""
    found = {one["name"]: one for one in known}
    for (of, name), (zones, fields) in ask.world.described.items():
        if of == kind and zone in zones:
            if fields is None:
                found.pop(name, None)
            else:
                found[name] = {**found.get(name, {"kind": f"compute#{_SINGULAR[kind]}", "name": name}), **fields}
    return [found[name] for name in sorted(found)]


def _images(ask: ApiRequest, _scope: str) -> list[Resource]:
    project = ask.params["project"]
    return [catalog.image_resource(one) for one in (*catalog.images(), *ask.world.images) if one.project == project]


def get_from_family(ask: ApiRequest) -> Resource:
    """Return the newest image of a family."""
    found = [one for one in _images(ask, "global") if one["family"] == ask.params["family"]]
    if not found:
        raise not_found(f"projects/{ask.params['project']}/global/images/family/{ask.params['family']}")
    return found[-1]


def get_project(ask: ApiRequest) -> Resource:
    """Return the project with its global quotas."""
    project = ask.world.project
    return {
        "kind": "compute#project",
        "id": project.number,
        "name": project.id,
        "defaultServiceAccount": f"{project.number}-compute@developer.gserviceaccount.com",
        "quotas": ask.world.capacity.usage(GLOBAL, shapes(ask.world)),
        "selfLink": ask.world.base(),
    }


# -- operations


def wait(ask: ApiRequest) -> Resource:
    """Wait until the operation is done, for at most `wait_s` seconds."""
    until = time.monotonic() + ask.world.wait_s
    while (operation := get(ask))["status"] != "DONE" and (left := until - time.monotonic()) > 0:
        ask.world.changed.wait(left)
    return operation


# -- creation and deletion


def insert(ask: ApiRequest) -> Resource:
    """Create a resource immediately; its operation is done soon."""
    world, body = ask.world, dict(ask.body)
    name, scope = str(body.get("name", "")), ask.scope
    if (scope, name) in world.collection(ask.collection):
        path = f"projects/{world.project.id}/{_prefix(scope)}{ask.collection}/{name}"
        raise RefusedError("alreadyExists", 409, f"The resource '{path}' already exists")
    if ask.collection in _COMPLETED:
        body = _COMPLETED[ask.collection](world, body)
    made = world.put(ask.collection, _SINGULAR[ask.collection], scope, body)
    return _operation(ask, "insert", made)


def delete(ask: ApiRequest) -> Resource:
    """Delete a resource. Raises RefusedError while it is in use."""
    found = get(ask)
    _check_unused(ask, found)
    key = (ask.scope, found["name"])

    def work() -> None:
        ask.world.collection(ask.collection).pop(key, None)

    return _operation(ask, "delete", found, work)


def patch(ask: ApiRequest) -> Resource:
    """Replace the top-level fields of the body."""
    found = ask.world.collection(ask.collection).get((ask.scope, ask.params[_SINGULAR[ask.collection]]))
    if found is None:
        return get(ask)  # raises the not-found error
    found |= ask.body
    return _operation(ask, "patch", found)


def _firewall(world: World, body: Resource) -> Resource:
    network = last(str(body.get("network", "default")))
    if ("global", network) not in world.collection("networks"):
        raise invalid("resource.network", network, "The referenced network resource cannot be found.")
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource", "", "Exactly one of allowed and denied must be specified.")
    if body.get("direction", "INGRESS") == "INGRESS" and not (body.get("sourceRanges") or body.get("sourceTags")):
        body = {**body, "sourceRanges": ["0.0.0.0/0"]}
    defaults = {"direction": "INGRESS", "priority": 1_000, "disabled": False, "logConfig": {"enable": False}}
    return {**defaults, **body, "network": world.link("networks", "global", network)}


def _network(_world: World, body: Resource) -> Resource:
    return {"autoCreateSubnetworks": True, "routingConfig": {"routingMode": "REGIONAL"}, **body}


def _subnetwork(world: World, body: Resource) -> Resource:
    network = _of_network(world, body)
    defaults = {"privateIpGoogleAccess": False, "purpose": "PRIVATE", "stackType": "IPV4_ONLY"}
    try:
        ipaddress.ip_network(str(body.get("ipCidrRange", "")))
    except ValueError as error:
        raise invalid("resource.ipCidrRange", body.get("ipCidrRange", ""), str(error)) from error
    return {**defaults, **body, "network": network}


def _router(world: World, body: Resource) -> Resource:
    return {**body, "network": _of_network(world, body)}


def _of_network(world: World, body: Resource) -> str:
    network = last(str(body.get("network", "")))
    if ("global", network) not in world.collection("networks"):
        raise invalid("resource.network", network, "The referenced network resource cannot be found.")
    return world.link("networks", "global", network)


def _check_unused(ask: ApiRequest, found: Resource) -> None:
    users = found.get("users") or [
        vm.resource["selfLink"]
        for vm in ask.world.vms
        if vm.status and found["selfLink"] in [*vm.resource.get("resourcePolicies", [])]
    ]
    users = users or _attached(ask, found)
    if users:
        path = f"projects/{ask.world.project.id}/{_prefix(ask.scope)}{ask.collection}/{found['name']}"
        text = f"The {_SINGULAR[ask.collection]} resource '{path}' is already being used by '{users[0]}'"
        raise RefusedError("resourceInUseByAnotherResource", 400, text)


def _attached(ask: ApiRequest, found: Resource) -> list[str]:
    """Return the resources in a network, or the instances on a subnetwork."""
    if ask.collection == "networks":
        kinds = ("subnetworks", "firewalls", "routers")
        inside = [one for kind in kinds for one in ask.world.collection(kind).values()]
        return [str(one["selfLink"]) for one in inside if last(str(one.get("network", ""))) == found["name"]]
    if ask.collection == "subnetworks":
        used = [(vm, interface) for vm in ask.world.vms if vm.status for interface in vm.resource["networkInterfaces"]]
        return [vm.resource["selfLink"] for vm, interface in used if interface["subnetwork"] == found["selfLink"]]
    return []


def _operation(ask: ApiRequest, kind: str, resource: Resource, work: Callable[[], None] = lambda: None) -> Resource:
    return ask.world.operations.begin(
        kind,
        ask.scope,
        resource["selfLink"],
        resource["id"],
        user=ask.caller,
        request_id=ask.query.get("requestId", ""),
        work=work,
    )


_SINGULAR = {
    "acceleratorTypes": "acceleratorType",
    "disks": "disk",
    "firewalls": "firewall",
    "globalOperations": "operation",
    "images": "image",
    "instanceTemplates": "instanceTemplate",
    "instances": "instance",
    "machineTypes": "machineType",
    "networks": "network",
    "regionOperations": "operation",
    "regions": "region",
    "reservations": "reservation",
    "resourcePolicies": "resourcePolicy",
    "routers": "router",
    "subnetworks": "subnetwork",
    "zoneOperations": "operation",
    "zones": "zone",
}
_MADE: dict[str, Callable[[ApiRequest, str], list[Resource]]] = {
    "zones": _zones,
    "regions": _regions,
    "machineTypes": _machine_types,
    "acceleratorTypes": _accelerators,
    "images": _images,
}
_COMPLETED: dict[str, Callable[[World, Resource], Resource]] = {
    "firewalls": _firewall,
    "networks": _network,
    "reservations": lambda _world, body: {"status": "READY", **body},
    "routers": _router,
    "subnetworks": _subnetwork,
}
"""Function by collection that adds Compute Engine's defaults to a new resource."""
