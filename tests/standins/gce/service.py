"""Compute Engine's API: matches requests to the discovery document, calls handlers, validates responses.

A body that the document does not allow is rejected; an invalid response is a bug of the stand-in and reported as one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..faults import Call
from ..gcp.discovery import Match, discovery
from ..gcp.fields import FieldsError, check, parse, pruned
from ..gcp.project import Project
from ..gcp.service import RefusedError, Request, Response, Service, answer_json, error_legacy
from . import catalog, groups, instances, resources
from .ask import ApiRequest, last
from .verbs import Verbs
from .world import World

_PREFIX = "/compute/v1/"
_LISTED = (
    "acceleratorTypes",
    "disks",
    "firewalls",
    "globalOperations",
    "images",
    "instanceTemplates",
    "instances",
    "machineTypes",
    "networks",
    "regionOperations",
    "regions",
    "reservations",
    "resourcePolicies",
    "routers",
    "subnetworks",
    "zoneOperations",
    "zones",
)
_MADE_AND_DELETED = ("firewalls", "networks", "reservations", "resourcePolicies", "routers", "subnetworks")
_AGGREGATED = (
    "acceleratorTypes",
    "disks",
    "globalOperations",
    "instances",
    "machineTypes",
    "reservations",
    "resourcePolicies",
    "subnetworks",
)
HANDLERS: dict[str, Callable[[ApiRequest], dict[str, Any]]] = {
    **{f"{collection}.get": resources.get for collection in _LISTED},
    **{f"{collection}.list": resources.list_ for collection in _LISTED},
    **{f"{collection}.aggregatedList": resources.aggregated_list for collection in _AGGREGATED},
    **{f"{scope}Operations.wait": resources.wait for scope in ("global", "region", "zone")},
    **{f"{collection}.insert": resources.insert for collection in _MADE_AND_DELETED},
    **{f"{collection}.delete": resources.delete for collection in ("disks", *_MADE_AND_DELETED)},
    **{f"{collection}.patch": resources.patch for collection in ("firewalls", "networks", "routers", "subnetworks")},
    "images.getFromFamily": resources.get_from_family,
    "instances.delete": instances.delete,
    "instances.getSerialPortOutput": instances.get_serial_port_output,
    "instances.insert": instances.insert,
    "instances.reset": instances.reset,
    "instances.setLabels": instances.set_labels,
    "instances.simulateMaintenanceEvent": instances.simulate_maintenance_event,
    "instances.start": instances.start,
    "instances.stop": instances.stop,
    "instanceTemplates.delete": groups.delete_template,
    "instanceTemplates.insert": groups.insert_template,
    "instanceGroupManagers.aggregatedList": groups.aggregated_list,
    "projects.get": resources.get_project,
    "regionInstanceGroupManagers.delete": groups.delete,
    "regionInstanceGroupManagers.deleteInstances": groups.delete_instances,
    "regionInstanceGroupManagers.get": groups.get,
    "regionInstanceGroupManagers.insert": groups.insert,
    "regionInstanceGroupManagers.list": groups.list_,
    "regionInstanceGroupManagers.listErrors": groups.list_errors,
    "regionInstanceGroupManagers.listManagedInstances": groups.list_managed_instances,
    "regionInstanceGroupManagers.patch": groups.patch,
    "regionInstanceGroupManagers.resize": groups.resize,
    "regionInstanceGroups.setNamedPorts": groups.set_named_ports,
}


class ComputeEngine(Service):
    """Compute Engine of one project."""

    name = "compute"

    def __init__(self, project: Project) -> None:
        self._world = World(project)
        self._verbs = Verbs(self._world)

    def call(self, request: Request) -> Call | None:
        if not request.path.startswith(_PREFIX):
            return None
        match = discovery("compute", "v1").match(request.method, request.path)
        if match is None:
            return Call(self.name, "", f"{request.method} {request.path}", request.caller)
        params = {**request.query, **match.params}
        zone = params.get("zone", "")
        region = params.get("region") or (catalog.region_of(zone) if zone else "")
        params |= _of_body(request)
        params["resource"] = _resource_name(match, params)
        return Call(self.name, region, match.method.id, request.caller, params, zone)

    def scopes(self, call: Call) -> Collection[str]:
        match = next((one for one in discovery("compute", "v1").methods() if one.id == call.action), None)
        return match.scopes if match is not None else super().scopes(call)

    def answer(self, request: Request, call: Call) -> Response:
        match = discovery("compute", "v1").match(request.method, request.path)
        handler = HANDLERS.get(call.action)
        if match is None or handler is None:
            text = f"compute {call.action} is not implemented in the stand-in"
            return self.error("StandinNotImplemented", 501, text)
        body = request.json()
        self._check(request, match, body)
        ask = ApiRequest(self._world, match.method.id, match.params, request.query, body, request.caller)
        with self._world.lock:
            if request.method in ("POST", "DELETE"):
                known = self._world.operations.repeated(ask.scope, request.query.get("requestId", ""))
                if known is not None:
                    return answer_json(known)
            made = handler(ask)
            faults = discovery("compute", "v1").faults(match.method.response, made)
            if faults:
                raise AssertionError(f"the stand-in's answer to {call.action} is not one of Compute Engine's: {faults}")
            return answer_json(pruned(made, _asked_for(request, match)))

    def error(self, code: str, status: int, message: str) -> Response:
        return error_legacy(code, status, message, _DOMAINS.get(code, "global"))

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return self._verbs.table()

    def reset(self) -> None:
        with self._world.lock:
            self._world.stop_timers()
            machines = [vm.machine for vm in self._world.vms if vm.machine is not None]
            for vm in self._world.vms:
                vm.gone = vm.gone or time.monotonic()  # keeps its end from having further effects
            self._world.fill()
        for machine in machines:
            machine.dispose()
            shutil.rmtree(machine.root, ignore_errors=True)

    def _check(self, request: Request, match: Match, body: Any) -> None:
        found, project = discovery("compute", "v1"), match.params.get("project", "")
        own = (self._world.project.id, self._world.project.number)
        if project not in own and not match.method.id.startswith("images."):
            raise RefusedError("notFound", 404, f"The resource 'projects/{project}' was not found")
        zone, region = match.params.get("zone", ""), match.params.get("region", "")
        if zone and zone not in catalog.zones():
            raise RefusedError("invalid", 400, f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        if region and region not in catalog.regions():
            raise RefusedError("invalid", 400, f"Invalid value for field 'region': '{region}'. Unknown region.")
        if unknown := found.unknown_queries(match.method, request.query):
            text = f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot bind query parameter.'
            raise RefusedError("badRequest", 400, text)
        if match.method.request and (faults := found.faults(match.method.request, body)):
            raise RefusedError("invalid", 400, f"Invalid JSON payload received. {'; '.join(faults)}")


_DOMAINS = {"rateLimitExceeded": "usageLimits", "userRateLimitExceeded": "usageLimits", "quotaExceeded": "usageLimits"}


def _asked_for(request: Request, match: Match) -> dict[str, Any]:
    """Return the mask of a partial response. Raises RefusedError."""
    try:
        mask = parse(request.query.get("fields", ""))
        check(mask, "compute", match.method.response)
    except FieldsError as error:
        raise RefusedError("invalidParameter", 400, str(error)) from error
    return mask


def _of_body(request: Request) -> dict[str, str]:
    """Return the fields of a new instance, template or firewall that rules and permissions use; empty for an invalid
    body."""
    try:
        name = str(request.json().get("name", ""))
        body = request.json().get("properties", request.json())
        interfaces = body.get("networkInterfaces", [])
        accounts = body.get("serviceAccounts", [])
        return {
            "name": name,
            "machineType": last(str(body.get("machineType", ""))),
            "provisioningModel": str(body.get("scheduling", {}).get("provisioningModel", "")),
            "external": str(any(one.get("accessConfigs") for one in interfaces)).lower(),
            "account": str(accounts[0]["email"]) if accounts else "",
            "labels": str(bool(body.get("labels"))).lower(),
            "tags": str(bool(body.get("tags", {}).get("items"))).lower(),
            "metadata": str(bool(body.get("metadata", {}).get("items"))).lower(),
            "policies": str(bool(body.get("resourcePolicies"))).lower(),
            "reservation": str(bool(body.get("reservationAffinity", {}).get("values"))).lower(),
        }
    except (RefusedError, AttributeError, KeyError, IndexError, TypeError):
        return {}


def _resource_name(match: Match, params: Mapping[str, str]) -> str:
    """Return `projects/p/zones/z/instances/i`, without the last part for a method of a whole collection."""
    method, collection = match.method.id, match.method.id.partition(".")[0]
    parts = [f"projects/{params.get('project', '')}"]
    if collection == "projects":
        return parts[0]
    scope = "zone" if "zone" in match.params else "region" if "region" in match.params else ""
    parts.append(f"{scope}s/{match.params[scope]}" if scope else "global")
    parts.append(collection)
    if method.endswith(".insert"):
        parts.append(params.get("name", ""))
    else:
        parts += [value for name, value in match.params.items() if name not in ("project", "zone", "region")]
    return "/".join(part for part in parts if part)
