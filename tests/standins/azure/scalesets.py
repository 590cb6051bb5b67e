"""Flexible scale sets: virtual machines that Azure creates from a model, keeps at a number, repairs and upgrades.

They follow the REST reference of Virtual Machine Scale Sets, "Orchestration modes", "Spot Priority Mix", "Automatic
instance repairs" and "Rolling upgrades with MaxSurge". The machines are ordinary virtual machines (vms.py): when a user
deletes one, the set's capacity shrinks. An upgrade completes within the operation that changes the model; Azure's
continues after it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import catalog, vms
from .arm import RefusedError, Request, Response, answer, key, last, parse
from .ask import ApiRequest, accepted, begun, check_location, check_references, check_tags, group_of
from .kinds import KINDS
from .machines import Vm
from .operations import FailedError
from .resources import check_body
from .resources import put as put_resource
from .world import World

KIND = "Microsoft.Compute/virtualMachineScaleSets"
_MODEL = "compute.VirtualMachineScaleSet"
_FIXED = ("orchestrationMode", "platformFaultDomainCount", "proximityPlacementGroup")
_FIXED_OF_PROFILE = ("priority",)
_STEP_S = 0.02
_OLDEST_NETWORK_API = "2020-11-01"


@dataclass
class ScaleSet:
    """A scale set's internal state."""

    path: str
    caller: Any
    body: dict[str, Any]
    """Body of the last request."""
    wanted: int
    """Desired number of machines, without those deleted on purpose."""
    version: int = 1
    """Version of the model."""
    model_versions: dict[str, int] = field(default_factory=dict)
    """Machine's id in lower case -> version of the model that it was created from."""
    unhealthy: set[str] = field(default_factory=set)
    """Ids in lower case of machines that fail the health extension."""
    made: float = field(default_factory=time.monotonic)
    """Monotonic time of the first request."""
    asked: float = 0.0
    """Monotonic time of the last request."""
    error: FailedError | None = None
    """Error of the last reconciliation."""


# -- methods of the API


def put(ask: ApiRequest) -> Response:
    world, body, path = ask.world, ask.body, ask.path
    group_of(world, ask)
    check_body(_MODEL, body)
    check_tags(body)
    check_location(body, KIND)
    check_references(world, body, path)
    _check(body)
    old = world.find(path)
    known = _known(world, path)
    capacity = int(body["sku"].get("capacity", 0))
    if old is None or known is None:
        known = ScaleSet(path, ask.caller, body, capacity)
        world.resources[key(path)] = {"id": path, "name": last(path), "type": KIND, "location": body["location"]}
        world.hidden[key(path)] = {"set": known}
    else:
        _check_change(known.body, body)
        if _model(known.body) != _model(body):
            known.version += 1
        known.body, known.wanted, known.error = body, capacity, None
    known.asked = time.monotonic()
    found = world.resources[key(path)]
    found |= {**body, "identity": _identities(world, body), "properties": _shown_properties(body)}
    found["properties"]["provisioningState"] = "Updating"
    work = partial(_reconcile, world, known)
    return begun(_shown(world, known), 201 if old is None else 200, ask.begin(work, partial(_failed, world, known)))


def get(ask: ApiRequest) -> Response:
    ask.found()
    known = _set(ask)
    vms.check_shown(ask, KIND, known.made)
    return answer(_shown(ask.world, known))


def instance_view(ask: ApiRequest) -> Response:
    """Return the instance view with the last error; the format of its code is a machine's, from memory and not
    verified."""
    state, error = ask.found()["properties"]["provisioningState"], _set(ask).error
    result = {"code": f"ProvisioningState/{state.lower()}", "level": "Info", "displayStatus": f"Provisioning {state}"}
    if error is not None:
        result |= {"code": f"ProvisioningState/failed/{error.code}", "level": "Error", "message": error.message}
    return answer({"statuses": [result]})


def listed(ask: ApiRequest) -> Response:
    """List the scale sets of a group, or the machines of one."""
    world = ask.world
    if ask.target.verb.lower() == "virtualmachines":
        ask.found()
        return answer({"value": [vm.resource for vm in members(world, _set(ask))]})
    found = [one for one in world.within(ask.target.scope) if one["type"] == KIND]
    return answer({"value": [_shown(world, world.hidden[key(one["id"])]["set"]) for one in found]})


def patch(ask: ApiRequest) -> Response:
    """Change tags and capacity."""
    found, body, known = ask.found(), ask.body, _set(ask)
    check_body("compute.VirtualMachineScaleSetUpdate", body)
    if set(body) - {"tags", "sku"}:
        raise RefusedError("StandinNotImplemented", 501, f"PATCH of {', '.join(sorted(set(body) - {'tags', 'sku'}))}")
    check_tags(body)
    found["tags"] = body.get("tags", found.get("tags"))
    known.wanted = int((body.get("sku") or {}).get("capacity", known.wanted))
    return begun(_shown(ask.world, known), 200, ask.begin(partial(_reconcile, ask.world, known)))


def delete(ask: ApiRequest) -> Response:
    """Delete a set with its machines and their resources."""
    world, path = ask.world, ask.path
    if world.find(path) is None:
        return Response(204)
    known = _set(ask)
    world.deleting.add(key(path))
    world.resources[key(path)]["properties"]["provisioningState"] = "Deleting"

    def work() -> None:
        try:
            world.check_later(KIND, "delete", path)
        except FailedError:
            world.deleting.discard(key(path))
            raise
        for vm in members(world, known):
            _remove(world, vm)
        world.remove(path)

    return accepted(ask.begin(work))


def delete_machines(ask: ApiRequest) -> Response:
    """Delete the named machines. The set's capacity shrinks."""
    ask.found()
    body, known, world = ask.body, _set(ask), ask.world
    check_body("compute.VirtualMachineScaleSetVMInstanceRequiredIDs", body)
    there = {vm.name: vm for vm in members(world, known)}
    unknown = sorted(set(body["instanceIds"]) - set(there))
    if unknown:
        text = f"The provided instanceId {unknown[0]} is not an active Virtual Machine Scale Set VM instanceId."
        raise RefusedError("InvalidParameter", 400, text, target="instanceIds")

    def work() -> None:
        for name in body["instanceIds"]:
            vms.power_off(there[name], "delete")
            vms.forget(world, there[name].id)

    return accepted(ask.begin(work))


# -- events, automatic or triggered by tests


def on_machine_lost(world: World, vm: Vm) -> None:
    """Handle a lost machine: an evicted Spot machine is replaced if the set's policy says so; for others the capacity
    shrinks."""
    path = str((vm.properties.get("virtualMachineScaleSet") or {}).get("id", ""))
    known = _known(world, path)
    if known is None or key(path) in world.deleting or vm.reason == SCALE_IN:
        return
    if vm.reason == "evicted":
        if (known.body["properties"].get("spotRestorePolicy") or {}).get("enabled"):
            world.after(_STEP_S, partial(_refill, world, known))
        return
    known.wanted = max(0, known.wanted - 1)


def sicken(world: World, vm: Vm) -> None:
    """Make a machine fail its health extension; it is replaced if the set's policy says so."""
    path = str((vm.properties.get("virtualMachineScaleSet") or {}).get("id", ""))
    known = _known(world, path)
    if known is None:
        raise ValueError(f"{vm.name} is in no scale set")
    known.unhealthy.add(key(vm.id))
    if (known.body["properties"].get("automaticRepairsPolicy") or {}).get("enabled"):
        world.after(_STEP_S, partial(_repair, world, known, vm))


def members(world: World, known: ScaleSet) -> list[Vm]:
    """Return the set's existing machines, oldest first."""
    return [
        vm
        for vm in world.vms
        if vm.power and key(str((vm.properties.get("virtualMachineScaleSet") or {}).get("id", ""))) == key(known.path)
    ]


# -- reconciliation

SCALE_IN = "scale-in"
"""Reason of a machine's deletion by the set itself."""


def _reconcile(world: World, known: ScaleSet) -> float | None:
    """Make one step towards the desired state; return seconds until the next, or None when it is reached."""
    if key(known.path) in world.deleting:
        return None
    if time.monotonic() < known.asked + world.sets_s:
        return _STEP_S
    try:
        return _step(world, known)
    except FailedError as error:
        known.error = error
        raise


def _step(world: World, known: ScaleSet) -> float | None:
    world.check_later(KIND, "write", known.path)
    there = members(world, known)
    failed = [vm for vm in there if vm.power == "failed"]
    for vm in failed:
        code, text = vm.reason, str(vm.properties.get("_error", ""))
        _remove(world, vm)
        raise FailedError(code, text)
    if any(vm.power == "creating" for vm in there):
        return _STEP_S
    old = [vm for vm in there if known.model_versions.get(key(vm.id)) != known.version]
    new = [vm for vm in there if vm not in old]
    if len(there) < known.wanted or (old and len(new) < known.wanted):
        _make(world, known, _batch(known) if old else known.wanted - len(there), len(new))
        return _STEP_S
    if old or len(there) > known.wanted:
        too_many = len(there) - known.wanted
        for vm in _to_remove(known, old, new, too_many):
            _remove(world, vm)
        if old:
            return _STEP_S
    world.resources[key(known.path)]["properties"]["provisioningState"] = "Succeeded"
    return None


def _to_remove(known: ScaleSet, old: list[Vm], new: list[Vm], too_many: int) -> list[Vm]:
    """Return the surplus machines: those of old models first, then in a mix those above the regular base."""
    mix = known.body["properties"].get("priorityMixPolicy")
    ordered = [*old, *(sorted(new, key=lambda vm: not vm.shape.spot) if mix else new)]
    return ordered[:too_many]


def _make(world: World, known: ScaleSet, batch: int, new: int) -> None:
    for _ in range(min(batch, known.wanted - new)):
        _make_machine(world, known)


def _batch(known: ScaleSet) -> int:
    """Return an upgrade's batch size."""
    policy = known.body["properties"]["upgradePolicy"]["rollingUpgradePolicy"]
    return max(1, known.wanted * int(policy["maxBatchInstancePercent"]) // 100)


def _failed(world: World, known: ScaleSet) -> None:
    if key(known.path) in world.resources:
        world.resources[key(known.path)]["properties"]["provisioningState"] = "Failed"


def _refill(world: World, known: ScaleSet) -> None:
    if len(members(world, known)) < known.wanted and key(known.path) not in world.deleting:
        _make_machine(world, known)


def _repair(world: World, known: ScaleSet, vm: Vm) -> None:
    if vm.power and key(known.path) not in world.deleting:
        _remove(world, vm)
        _refill(world, known)


def _remove(world: World, vm: Vm) -> None:
    vms.power_off(vm, SCALE_IN)
    vms.forget(world, vm.id)


# -- one machine


def _make_machine(world: World, known: ScaleSet) -> None:
    """Create a machine with its interface and address, by ordinary request bodies that are checked like a user's."""
    body, group = known.body, known.path.partition("/providers/")[0]
    profile, number = body["properties"]["virtualMachineProfile"], uuid.uuid4().hex[:8]
    name = f"{last(known.path)}_{number}"
    zones = _zones(world, known)
    (configuration,) = profile["networkProfile"]["networkInterfaceConfigurations"]
    interface = _make_interface(world, known, group, configuration, f"{name}-nic")
    system = {**profile["osProfile"]}
    system["computerName"] = f"{system.pop('computerNamePrefix')}{number[:6]}"
    properties = {
        "hardwareProfile": {"vmSize": body["sku"]["name"]},
        "storageProfile": profile["storageProfile"],
        "osProfile": system,
        "networkProfile": {
            "networkInterfaces": [
                {"id": interface, "properties": {"primary": True, "deleteOption": _deletes(configuration)}}
            ]
        },
        "virtualMachineScaleSet": {"id": known.path},
        **{key: profile[key] for key in ("diagnosticsProfile", "capacityReservation") if key in profile},
        **_market(world, known, profile),
    }
    if group_ := body["properties"].get("proximityPlacementGroup"):
        properties["proximityPlacementGroup"] = group_
    asked = {"location": body["location"], "tags": body.get("tags") or {}, "properties": properties, **zones}
    if body.get("identity"):
        asked["identity"] = body["identity"]
    path = f"{group}/providers/{vms.KIND}/{name}"
    try:
        vms.put(_ask(world, known, path, asked))
    except RefusedError as refused:
        vms.forget_interface(world, interface)
        raise FailedError(refused.code, refused.message) from refused
    known.model_versions[key(path)] = known.version


def _deletes(configuration: Mapping[str, Any]) -> str:
    return str(configuration["properties"].get("deleteOption", "Detach"))


def _make_interface(world: World, known: ScaleSet, group: str, told: Mapping[str, Any], name: str) -> str:
    properties = {key: value for key, value in told["properties"].items() if key not in ("primary", "deleteOption")}
    properties["ipConfigurations"] = [
        _addressed(world, known, group, one, name) for one in properties["ipConfigurations"]
    ]
    path = f"{group}/providers/Microsoft.Network/networkInterfaces/{name}"
    asked = {"location": known.body["location"], "tags": known.body.get("tags") or {}, "properties": properties}
    _put(world, known, path, asked)
    return path


def _addressed(world: World, known: ScaleSet, group: str, one: Mapping[str, Any], name: str) -> dict[str, Any]:
    inner = dict(one["properties"])
    wanted = inner.pop("publicIPAddressConfiguration", None)
    if wanted is not None:
        path = f"{group}/providers/Microsoft.Network/publicIPAddresses/{name}-{wanted['name']}"
        how = dict(wanted.get("properties") or {})
        delete = {"deleteOption": how.pop("deleteOption", "Detach")}
        asked = {
            "location": known.body["location"],
            "tags": known.body.get("tags") or {},
            "sku": {"name": (wanted.get("sku") or {}).get("name", "Basic")},
            "properties": {**how, "publicIPAllocationMethod": "Static"},
        }
        _put(world, known, path, asked)
        inner["publicIPAddress"] = {"id": path, "properties": delete}
    return {"name": one["name"], "properties": inner}


def _put(world: World, known: ScaleSet, path: str, body: Mapping[str, Any]) -> None:
    """Create a resource that is ready immediately."""
    put_resource(_ask(world, known, path, body), KINDS[parse(path).kind.lower()])
    world.resources[key(path)]["properties"]["provisioningState"] = "Succeeded"


def _market(world: World, known: ScaleSet, profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the market's properties: in a mix, regular up to the base count, then Spot."""
    base = int((known.body["properties"].get("priorityMixPolicy") or {}).get("baseRegularPriorityCount", 0))
    regular = [vm for vm in members(world, known) if not vm.shape.spot]
    if profile.get("priority") != "Spot" or len(regular) < base:
        return {}
    return {name: profile[name] for name in ("priority", "evictionPolicy", "billingProfile") if name in profile}


def _zones(world: World, known: ScaleSet) -> dict[str, Any]:
    """Return the zone with the fewest machines."""
    zones = known.body.get("zones") or []
    if not zones:
        return {}
    there = [vm.shape.zone for vm in members(world, known)]
    return {"zones": [min(zones, key=lambda zone: (there.count(zone), zone))]}


def _ask(world: World, known: ScaleSet, path: str, body: Mapping[str, Any]) -> ApiRequest:
    request = Request("PUT", path, {"api-version": _OLDEST_NETWORK_API}, json.dumps(body).encode())
    return ApiRequest(world, request, parse(path), known.caller)


# -- checks


def _check(body: dict[str, Any]) -> None:
    result = body.get("properties") or {}
    if result.get("orchestrationMode") != "Flexible":
        raise RefusedError("StandinNotImplemented", 501, "the stand-in knows Flexible orchestration only")
    if result.get("platformFaultDomainCount") is None:
        text = "The property 'platformFaultDomainCount' must be set for Flexible orchestration."
        raise RefusedError("InvalidParameter", 400, text, target="platformFaultDomainCount")
    profile = result.get("virtualMachineProfile") or {}
    version = str((profile.get("networkProfile") or {}).get("networkApiVersion", ""))
    if version < _OLDEST_NETWORK_API:
        text = f"networkApiVersion must be {_OLDEST_NETWORK_API} or later for Flexible orchestration."
        raise RefusedError("InvalidParameter", 400, text, target="networkProfile.networkApiVersion")
    if str((body.get("sku") or {}).get("name", "")).lower() not in catalog.sizes():
        raise RefusedError("InvalidParameter", 400, "The value of sku.name is not valid.", target="vmSize")
    spot = profile.get("priority") == "Spot"
    for policy in ("priorityMixPolicy", "spotRestorePolicy"):
        if result.get(policy) and not spot:
            raise RefusedError("InvalidParameter", 400, f"{policy} requires priority Spot.", target=policy)
    if len(body.get("zones") or []) > 1 and result.get("proximityPlacementGroup"):
        text = "A proximity placement group cannot be used with more than one zone."
        raise RefusedError("InvalidParameter", 400, text, target="zones")
    _check_health(result, profile)


def _check_health(told: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    """Check the health extension, which repairs and rolling upgrades require without a load balancer's probe. Raises
    RefusedError."""
    extensions = (profile.get("extensionProfile") or {}).get("extensions") or []
    kinds = {(one.get("properties") or {}).get("type") for one in extensions}
    needs = {
        "automatic repairs": (told.get("automaticRepairsPolicy") or {}).get("enabled"),
        "rolling upgrades": (told.get("upgradePolicy") or {}).get("mode") == "Rolling",
    }
    for what, needed in needs.items():
        if needed and not kinds & {"ApplicationHealthLinux", "ApplicationHealthWindows"}:
            text = f"{what} need a health probe or an application health extension."
            raise RefusedError("OperationNotAllowed", 409, text)


def _check_change(before: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    old, new = before["properties"], body["properties"]
    changed = [name for name in _FIXED if old.get(name) != new.get(name)]
    if new.get("singlePlacementGroup") and not old.get("singlePlacementGroup"):
        changed.append("singlePlacementGroup")
    profiles = old["virtualMachineProfile"], new["virtualMachineProfile"]
    changed += [name for name in _FIXED_OF_PROFILE if profiles[0].get(name) != profiles[1].get(name)]
    if set(before.get("zones") or []) - set(body.get("zones") or []):
        changed.append("zones")
    if changed:
        text = f"Changing property '{changed[0]}' is not allowed."
        raise RefusedError("PropertyChangeNotAllowed", 409, text, target=changed[0])


# -- helpers


def _model(body: Mapping[str, Any]) -> Any:
    """Return the part of the body from which machines are created."""
    return body["sku"]["name"], body["properties"]["virtualMachineProfile"], body.get("identity")


def _known(world: World, path: str) -> ScaleSet | None:
    found = world.hidden.get(key(path), {}).get("set") if path else None
    assert found is None or isinstance(found, ScaleSet)
    return found


def _set(ask: ApiRequest) -> ScaleSet:
    found = _known(ask.world, ask.path)
    assert found is not None
    return found


def _shown(world: World, known: ScaleSet) -> dict[str, Any]:
    found = world.resources[key(known.path)]
    capacity = len([vm for vm in members(world, known) if vm.power != "failed"])
    changing = found["properties"]["provisioningState"] == "Updating"
    return {**found, "sku": {**found["sku"], "capacity": known.wanted if changing else capacity}}


def _shown_properties(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties without secrets."""
    result: dict[str, Any] = json.loads(json.dumps(body["properties"]))
    result["virtualMachineProfile"]["osProfile"].pop("customData", None)
    return {**result, "uniqueId": str(uuid.uuid4())}


def _identities(world: World, body: Mapping[str, Any]) -> dict[str, Any]:
    asked = dict(body.get("identity") or {"type": "None"})
    if asked.get("userAssignedIdentities"):
        found = {one: world.identities[key(one)] for one in asked["userAssignedIdentities"]}
        asked["userAssignedIdentities"] = {
            one: {"principalId": who.object_id, "clientId": who.client_id} for one, who in found.items()
        }
    return asked
