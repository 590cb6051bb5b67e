"""Dispatch of requests to handlers by method, kind and verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from . import groups, lookups, reservations, resources, roles, scalesets, storage, vms
from .arm import Response, Target
from .ask import ApiRequest, group_of
from .kinds import KINDS, Kind

Handler = Callable[[ApiRequest], Response]

_VM = "microsoft.compute/virtualmachines"
_SET = scalesets.KIND.lower()
_IMAGE_NAMES = 5
"""Number of names in an image's path: location, publisher, artifact type, offer, SKU."""
_TABLE: Mapping[tuple[str, str, str], Handler] = {
    # method, kind in lower case, verb
    ("PUT", _VM, ""): vms.put,
    ("GET", _VM, ""): vms.get,
    ("PATCH", _VM, ""): vms.patch,
    ("DELETE", _VM, ""): vms.delete,
    ("GET", _VM, "instanceView"): vms.instance_view,
    ("POST", _VM, "simulateEviction"): vms.simulate_eviction,
    ("POST", _VM, "retrieveBootDiagnosticsData"): vms.boot_diagnostics,
    **{("POST", _VM, verb): vms.act for verb in ("powerOff", "deallocate", "start", "restart", "redeploy")},
    ("PUT", _SET, ""): scalesets.put,
    ("GET", _SET, ""): scalesets.get,
    ("PATCH", _SET, ""): scalesets.patch,
    ("DELETE", _SET, ""): scalesets.delete,
    ("GET", _SET, "instanceView"): scalesets.instance_view,
    ("POST", _SET, "delete"): scalesets.delete_machines,
    ("GET", _SET, "virtualMachines"): scalesets.listed,
    ("GET", _SET, "virtualMachineScaleSets"): scalesets.listed,
    ("GET", "microsoft.compute/skus", "skus"): lookups.skus,
    ("GET", "microsoft.compute/locations", "usages"): lookups.usages,
    ("GET", "microsoft.network/locations", "usages"): lookups.network_usages,
    ("GET", "microsoft.authorization/permissions", "permissions"): lookups.permissions,
    ("PUT", "microsoft.authorization/roleassignments", ""): roles.put,
    ("GET", "microsoft.authorization/roleassignments", ""): roles.get,
    ("DELETE", "microsoft.authorization/roleassignments", ""): roles.delete,
    ("GET", "microsoft.authorization/roleassignments", "roleAssignments"): roles.listed,
    ("GET", "microsoft.authorization/roledefinitions", "roleDefinitions"): roles.definitions,
    ("GET", "microsoft.authorization/roledefinitions", ""): roles.definition,
    ("PUT", "microsoft.authorization/roledefinitions", ""): roles.put_definition,
    ("DELETE", "microsoft.authorization/roledefinitions", ""): roles.delete_definition,
    **{(method, "microsoft.resources/tags", ""): groups.put_tags for method in ("GET", "PUT", "PATCH")},
    ("GET", reservations.KIND.lower(), ""): reservations.get,
    ("GET", reservations.GROUP.lower(), "capacityReservations"): reservations.listed,
    **{("PUT", kind.name.lower(), ""): put for kind, put in storage.KINDS.items()},
    **{("GET", kind.name.lower(), ""): resources.get for kind in storage.KINDS},
    **{("DELETE", kind.name.lower(), ""): partial(resources.delete, kind=kind) for kind in storage.KINDS},
}


def find(method: str, target: Target) -> Handler | None:
    if not target.namespace:
        return _of_resources(method, target)
    kind = target.kind.lower()
    if (found := _TABLE.get((method, kind, target.verb))) is not None:
        return found
    if kind in KINDS:
        return _generic(method, KINDS[kind], target.verb)
    return _of_provider(method, kind, target)


def _of_provider(method: str, kind: str, target: Target) -> Handler | None:
    """Return the handler of a request that needs more than a table lookup."""
    if (method, list(target.types)) == ("POST", ["register"]):
        return lookups.provider
    if method != "GET":
        return None
    looked_at: Mapping[bool, Handler] = {
        not target.types: lookups.provider,
        kind == _VM and target.verb.lower() == "virtualmachines": vms.listed,
        kind.endswith("/locations/operations"): lookups.operation,
        kind.endswith("/locations/operationresults"): lookups.operation_result,
        "/locations/publishers/artifacttypes" in kind and len(target.names) >= _IMAGE_NAMES: lookups.images,
    }
    return looked_at.get(True)


def _generic(method: str, kind: Kind, verb: str) -> Handler | None:
    if verb:
        return (
            partial(_listed, kind) if method == "GET" and verb.lower() == kind.name.rpartition("/")[2].lower() else None
        )
    handlers: Mapping[str, Handler] = {
        "PUT": partial(resources.put, kind=kind),
        "GET": resources.get,
        "PATCH": resources.patch,
        "DELETE": partial(resources.delete, kind=kind),
    }
    return handlers.get(method)


def _listed(kind: Kind, ask: ApiRequest) -> Response:
    """List a kind's resources in a group or the subscription, or the parts of a resource."""
    world = ask.world
    if ask.target.group:
        group_of(world, ask, writes=False)
    if ask.target.names:
        owner = ask.found()
        return resources.listed(world, owner["properties"].get(ask.target.verb, []))
    within = world.within(ask.target.scope)
    return resources.listed(world, (one for one in within if one["type"].lower() == kind.name.lower()))


def _of_resources(method: str, target: Target) -> Handler | None:
    """Return the handler of a path without a provider: resource groups, the subscription."""
    rest = [word.lower() for word in target.types]
    if target.group:
        if rest == ["resources"]:
            return groups.resources if method == "GET" else None
        handlers: Mapping[str, Handler] = {
            "PUT": groups.put,
            "GET": groups.get,
            "HEAD": groups.head,
            "PATCH": groups.patch,
            "DELETE": groups.delete,
        }
        return handlers.get(method) if not rest else None
    lists: Mapping[str, Handler] = {
        "resourcegroups": groups.groups,
        "resources": groups.resources,
        "locations": lookups.locations,
    }
    if method != "GET" or len(rest) > 1:
        return None
    return lists.get(rest[0]) if rest else lookups.subscription
