"""Virtual machines: creation, deletion, eviction, and the resources that each leaves.

They follow the REST reference, "States and billing status of Azure Virtual Machines", "Delete a VM and attached
resources", "Azure Spot Virtual Machines" and "Scheduled Events". A machine that its guest has shut down is still
allocated and billed.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

from ..machine import Ending
from . import vm_checks
from .arm import RefusedError, Response, answer, key, last
from .ask import ApiRequest, accepted, begun, check_location, check_references, check_tags, group_of, resolve
from .capacity import Shape
from .machines import AzureMachine, Vm
from .names import TENANT, identity
from .operations import FailedError, now
from .resources import check_body
from .tokens import Principal
from .world import World

KIND = "Microsoft.Compute/virtualMachines"
_FIXED = ("osProfile", "storageProfile", "networkProfile", "priority", "proximityPlacementGroup")


# -- methods of the API


def put(ask: ApiRequest) -> Response:
    """Create a machine; change the tags of an existing one; retry one that failed."""
    world, body, path = ask.world, ask.body, ask.path
    group_of(world, ask)
    check_body("compute.VirtualMachine", body)
    check_tags(body)
    region = check_location(body, KIND)
    check_references(world, body, path)
    _check_not_deleting(world, path)
    old = world.find(path)
    if old is not None and old["properties"]["provisioningState"] != "Failed":
        return _update(ask, old, body)
    shape = vm_checks.shape_of(world, body, region)
    custom_data = vm_checks.check(world, body, path, region)
    world.capacity.check_at_once(shape, shapes(world))
    if old is not None:
        forget(world, path)
    _check_disk(world, ask, body)
    resource = _resource(ask, body, region)
    vm = Vm(path, resource, shape, custom_data, time.monotonic())
    vm.boot_diagnostics = bool(
        ((body["properties"].get("diagnosticsProfile") or {}).get("bootDiagnostics") or {}).get("enabled")
    )
    world.vms.append(vm)
    world.resources[key(path)] = resource
    world.hidden[key(path)] = {"asked": body}
    _identify(world, resource, path)
    _make_disk(world, resource, shape)
    return begun(resource, 201, ask.begin(partial(_provision, world, vm)))


def get(ask: ApiRequest) -> Response:
    found = ask.found()
    check_shown(ask, KIND, ask.world.vm_at(ask.path).launched)
    return answer(_shown(ask.world, found, "instanceview" in ask.request.query.get("$expand", "").lower()))


def check_shown(ask: ApiRequest, kind: str, made: float) -> None:
    """Raise RefusedError for a resource created (monotonic time) within `cache_s`, since caches lag."""
    if time.monotonic() - made < ask.world.cache_s:
        raise RefusedError("ResourceNotFound", 404, f"The Resource '{kind}/{last(ask.path)}' was not found.")


def listed(ask: ApiRequest) -> Response:
    world = ask.world
    if ask.target.group:
        group_of(world, ask, writes=False)
    view = (
        "instanceview" in ask.request.query.get("$expand", "").lower() or ask.request.query.get("statusonly") == "true"
    )
    above = ask.target.scope
    return answer({"value": [_shown(world, one, view) for one in world.within(above) if one["type"] == KIND]})


def patch(ask: ApiRequest) -> Response:
    """Replace all tags; other changes are not implemented."""
    found, body = ask.found(), ask.body
    if set(body) - {"tags"}:
        raise RefusedError("StandinNotImplemented", 501, f"PATCH of {', '.join(sorted(set(body) - {'tags'}))}")
    check_tags(body)
    found["tags"] = body.get("tags") or {}
    return answer(found)


def delete(ask: ApiRequest) -> Response:
    """Delete a machine, with resources whose deleteOption is Delete; 204 if it does not exist."""
    world, path = ask.world, ask.path
    if world.find(path) is None:
        return Response(204)
    vm = world.vm_at(path)
    world.deleting.add(key(path))
    vm.properties["provisioningState"] = "Deleting"

    def work() -> None:
        try:
            world.check_later(KIND, "delete", path)
        except FailedError:
            world.deleting.discard(key(path))
            raise
        power_off(vm, "delete")
        forget(world, path)

    return accepted(ask.begin(work))


def act(ask: ApiRequest) -> Response:
    """Handle powerOff, deallocate, start, restart and redeploy."""
    world, verb = ask.world, ask.target.verb
    ask.found()
    _check_not_deleting(world, ask.path)
    vm = world.vm_at(ask.path)

    def work() -> None:
        if verb in ("powerOff", "deallocate"):
            _off(vm, "stopped" if verb == "powerOff" else "deallocated", verb)
        elif verb == "start":
            world.capacity.admit(vm.shape, shapes(world, but=vm))
            _run(world, vm)
        else:
            vm.properties["provisioningState"] = "Succeeded"
            reboot(world, vm)

    if verb in ("restart", "redeploy"):
        vm.properties["provisioningState"] = "Updating"
    return accepted(ask.begin(work))


def simulate_eviction(ask: ApiRequest) -> Response:
    """Evict the machine after 30 seconds; Azure documents up to 30 minutes."""
    ask.found()
    vm = ask.world.vm_at(ask.path)
    if not vm.shape.spot:
        text = "The simulate eviction operation is only supported on Spot VMs."
        raise RefusedError("OperationNotAllowed", 409, text)
    evict(ask.world, vm, 30.0)
    return Response(204)


def instance_view(ask: ApiRequest) -> Response:
    ask.found()
    return answer(view(ask.world.vm_at(ask.path)))


def boot_diagnostics(ask: ApiRequest) -> Response:
    """Return the temporary URLs of the machine's console output, which need no token."""
    ask.found()
    vm = ask.world.vm_at(ask.path)
    if not vm.boot_diagnostics:
        raise RefusedError("OperationNotAllowed", 409, f"Boot diagnostics is not enabled for VM '{vm.name}'.")
    base = f"{ask.world.url}/_diagnostics/{vm.properties['vmId']}"
    return answer(
        {
            "consoleScreenshotBlobUri": f"{base}/screenshot.bmp?sig=x",
            "serialConsoleLogBlobUri": f"{base}/serial.log?sig=x",
        }
    )


# -- events, automatic or triggered by tests


def evict(world: World, vm: Vm, seconds: float) -> None:
    """Announce an eviction; it happens after `seconds`, or when the machine acknowledges it."""
    announce(world, vm, "Preempt", seconds, partial(_evicted, world, vm))


def maintain(world: World, vm: Vm, kind: str, seconds: float) -> None:
    """Announce `Freeze`, `Reboot`, `Redeploy` or `Terminate`; it happens after `seconds`, or when the machine
    acknowledges it."""
    done = {
        "Freeze": lambda: None,
        "Reboot": partial(reboot, world, vm),
        "Redeploy": partial(reboot, world, vm),
        "Terminate": partial(_terminated, world, vm),
    }
    announce(world, vm, kind, seconds, done[kind])


def announce(world: World, vm: Vm, kind: str, seconds: float, happens: Any) -> None:
    """Publish a Scheduled Event of this machine, and remove it once it has happened."""
    if vm.machine is None:
        world.after(seconds, happens)
        return
    machine = vm.machine
    event = machine.metadata.announce(kind, seconds)
    done: list[bool] = []

    def begin() -> None:
        if done or vm.power != "running":
            return
        done.append(True)
        happens()
        machine.metadata.over(event)

    machine.begun[event] = begin
    world.after(seconds, begin)


def crash(world: World, vm: Vm) -> None:
    """Simulate a host failure: all processes end at once; the machine is restarted on another host ("service
    healing")."""
    if vm.machine is not None:
        vm.machine.cut_power()
    world.after(0.5, partial(reboot, world, vm))


def fail(vm: Vm, code: str) -> None:
    """Fail a machine that was to be restarted on another host without capacity for it."""
    if vm.machine is not None:
        vm.machine.cut_power()
    vm.power, vm.reason, vm.gone = "failed", code, time.monotonic()
    vm.properties.update(provisioningState="Failed", _error=f"{code} (stand-in)" if code else "")


def reboot(world: World, vm: Vm) -> None:
    """Kill all processes; the machine boots again with its disk after `restart_s`."""
    if vm.power != "running":
        return
    if vm.machine is not None:
        vm.machine.cut_power()
    vm.power = "starting"
    if world.restart_s:
        world.after(world.restart_s, partial(_restarted, vm))
    else:
        _restarted(vm)


def _restarted(vm: Vm) -> None:
    if vm.power != "starting":
        return
    vm.power = "running"
    if vm.machine is not None:
        vm.machine.power_on()


def power_off(vm: Vm, reason: str) -> None:
    """Switch the machine off permanently."""
    if vm.gone is None:
        vm.gone = time.monotonic()
        vm.reason = reason
    if vm.machine is not None:
        vm.machine.dispose()


def forget(world: World, path: str) -> None:
    """Delete a resource; for a machine also the resources with deleteOption Delete."""
    resource = world.find(path)
    if resource is None:
        return
    world.remove(path)
    if resource["type"] != KIND:
        return
    vm = next(one for one in world.vms if one.resource is resource)
    vm.power = ""
    vm.resource = {**resource, "properties": {**resource["properties"], "provisioningState": ""}}
    storage, network = vm.properties["storageProfile"], vm.properties["networkProfile"]
    disks = [storage["osDisk"], *storage.get("dataDisks", [])]
    for disk in disks:
        found = world.find(str((disk.get("managedDisk") or {}).get("id", "")))
        if found is None:
            continue
        if disk.get("deleteOption") == "Delete":
            world.remove(found["id"])
        else:
            found.pop("managedBy", None)
            found["properties"]["diskState"] = "Unattached"
    for nic in network["networkInterfaces"]:
        if (nic.get("properties") or {}).get("deleteOption") == "Delete":
            forget_interface(world, str(nic["id"]))
    world.lost(vm)


def shapes(world: World, but: Vm | None = None) -> list[Shape]:
    """Return the shapes that use capacity and quotas."""
    return [vm.shape for vm in world.vms if vm.is_placed and vm is not but]


def view(vm: Vm) -> dict[str, Any]:
    """Return an instance view."""
    state = {
        "Creating": "creating",
        "Failed": f"failed/{vm.reason}".rstrip("/"),
        "Deleting": "deleting",
        "Succeeded": "succeeded",
    }
    provisioning = state.get(str(vm.properties["provisioningState"]), "updating")
    statuses = [
        {
            "code": f"ProvisioningState/{provisioning}",
            "level": "Info",
            "displayStatus": f"Provisioning {provisioning}",
            "time": now(),
        }
    ]
    if vm.properties.get("_error"):
        statuses[0] |= {"level": "Error", "message": vm.properties["_error"]}
    if vm.power in ("running", "starting", "stopped", "deallocated"):
        statuses.append({"code": f"PowerState/{vm.power}", "level": "Info", "displayStatus": f"VM {vm.power}"})
    return {"statuses": statuses, "hyperVGeneration": "V2"}


# -- life cycle


def _update(ask: ApiRequest, old: dict[str, Any], body: dict[str, Any]) -> Response:
    """Handle a PUT of an existing machine, which may change only its tags."""
    before = ask.world.hidden[key(ask.path)]["asked"]
    for name in _FIXED:
        if body["properties"].get(name) != before["properties"].get(name):
            text = f"Changing property '{name}' is not allowed."
            raise RefusedError("PropertyChangeNotAllowed", 409, text, target=name)
    if body.get("zones") != before.get("zones") or body["location"] != before["location"]:
        raise RefusedError("PropertyChangeNotAllowed", 409, "Changing property 'zones' is not allowed.", target="zones")
    if body["properties"]["hardwareProfile"] != before["properties"]["hardwareProfile"]:
        raise RefusedError("StandinNotImplemented", 501, "a change of a machine's size")
    old["tags"] = body.get("tags") or {}
    vm = ask.world.vm_at(ask.path)

    def work() -> float | None:
        state = vm.properties["provisioningState"]
        if state == "Failed":
            raise FailedError(vm.reason, str(vm.properties.get("_error", "")))
        return 0.02 if state == "Creating" else None

    return begun(_shown(ask.world, old, False), 200, ask.begin(work))


def _provision(world: World, vm: Vm) -> None:
    """Allocate and boot the machine. On failure it remains, as failed."""
    if vm.power != "creating" or key(vm.id) in world.deleting:
        text = f"The operation has been preempted by a more recent operation on '{vm.name}'."
        raise FailedError("OperationPreempted", text)
    try:
        _place(world, vm)
    except FailedError as failed:
        vm.reason = failed.code
        vm.properties.update(provisioningState="Failed", _error=failed.message)
        if vm.power == "creating":
            vm.power, vm.gone = "failed", time.monotonic()
        raise
    vm.properties["provisioningState"] = "Succeeded"


def _place(world: World, vm: Vm) -> None:
    world.capacity.admit(vm.shape, shapes(world, but=vm))
    world.check_later(KIND, "write", vm.id)
    if world.boot:
        root = world.folder / f"{vm.name}-{world.number()}"
        root.mkdir()
        vm.machine = AzureMachine(world, vm, root, partial(_ended_itself, world, vm))
        if not has_route(world, vm):
            vm.machine.trouble.append("no way out: its subnet has no NAT gateway, and its interface no public address")
    vm.launched, vm.ran = time.monotonic(), True
    vm.was_external = any(one.get("publicIPAddress") for one in interfaces(world, vm))
    vm.opened = open_rules(world, vm) if vm.was_external else []
    _run(world, vm)
    world.check_later(KIND, "provision", vm.id)


def _run(world: World, vm: Vm) -> None:
    vm.power, vm.gone, vm.reason = "running", None, ""
    if vm.machine is not None and has_route(world, vm):
        vm.machine.power_on()


def _off(vm: Vm, power: str, reason: str) -> None:
    if vm.machine is not None:
        vm.machine.cut_power()
    vm.power, vm.reason = power, reason
    vm.gone = vm.gone or time.monotonic()


def _ended_itself(world: World, vm: Vm, ending: Ending) -> None:
    with world.lock:
        if vm.power != "running" or vm.machine is None:
            return
        if ending == "reboot":
            vm.machine.power_on()
        else:
            vm.power, vm.gone, vm.reason = "stopped", time.monotonic(), "guest"


def _evicted(world: World, vm: Vm) -> None:
    if vm.properties.get("evictionPolicy", "Deallocate") == "Delete":
        power_off(vm, "evicted")
        forget(world, vm.id)
    else:
        _off(vm, "deallocated", "evicted")


def _terminated(world: World, vm: Vm) -> None:
    power_off(vm, "delete")
    forget(world, vm.id)


# -- helpers


def _check_not_deleting(world: World, path: str) -> None:
    if key(path) in world.deleting:
        text = (
            f"Operation 'PUT' is not allowed on VM '{last(path)}' since the VM is marked for deletion. You can only "
            "retry the Delete operation (or wait for an ongoing one to complete)."
        )
        raise RefusedError("OperationNotAllowed", 409, text)


def _check_disk(world: World, ask: ApiRequest, body: dict[str, Any]) -> None:
    """Check that the disk's name is free. Raises RefusedError."""
    name = body["properties"]["storageProfile"]["osDisk"].get("name")
    path = f"{ask.path.partition('/providers/')[0]}/providers/Microsoft.Compute/disks/{name}"
    if name and world.find(path) is not None:
        text = (
            f"Disk {name} already exists in resource group {ask.target.group}. Only CreateOption.Attach is supported."
        )
        raise RefusedError("ConflictingUserInput", 409, text, target="disk.name")


def _resource(ask: ApiRequest, body: dict[str, Any], region: str) -> dict[str, Any]:
    """Return the machine's initial resource, without secrets."""
    asked = body["properties"]
    system = {name: value for name, value in asked["osProfile"].items() if name not in ("customData", "adminPassword")}
    storage = {**asked["storageProfile"]}
    name, number = last(ask.path), uuid.uuid4().hex
    disk = {**storage["osDisk"], "osType": "Linux"}
    disk["name"] = disk.get("name") or f"{name}_OsDisk_1_{number}"
    group = f"/subscriptions/{ask.target.subscription}/resourceGroups/{ask.target.group}"
    managed = {"storageAccountType": "Standard_LRS", **(disk.get("managedDisk") or {})}
    disk["managedDisk"] = {**managed, "id": f"{group}/providers/Microsoft.Compute/disks/{disk['name']}"}
    disk.setdefault("deleteOption", "Detach")
    properties = {
        **asked,
        "osProfile": system,
        "storageProfile": {**storage, "osDisk": disk},
        "vmId": str(uuid.uuid4()),
        "timeCreated": now(),
        "provisioningState": "Creating",
    }
    made = {**body, "id": ask.path, "name": name, "type": KIND, "location": region, "properties": properties}
    return {**made, "identity": dict(body["identity"])} if body.get("identity") else made


def _identify(world: World, resource: dict[str, Any], path: str) -> None:
    """Add the properties of its identities, as the service does."""
    result = resource.get("identity")
    if not result:
        return
    if "SystemAssigned" in str(result.get("type")):
        own = Principal(
            last(path), identity("principal", path, str(uuid.uuid4())), identity("client", path), machine=True
        )
        world.identities[key(path)] = own
        result |= {"principalId": own.object_id, "tenantId": TENANT}
    if result.get("userAssignedIdentities"):
        found = {one: world.identities[key(one)] for one in result["userAssignedIdentities"]}
        result["userAssignedIdentities"] = {
            one: {"principalId": known.object_id, "clientId": known.client_id} for one, known in found.items()
        }


def _make_disk(world: World, resource: dict[str, Any], shape: Shape) -> None:
    disk = resource["properties"]["storageProfile"]["osDisk"]
    path = str(disk["managedDisk"]["id"])
    world.resources[key(path)] = {
        "id": path,
        "name": disk["name"],
        "type": "Microsoft.Compute/disks",
        "location": shape.region,
        "managedBy": resource["id"],
        "sku": {"name": disk["managedDisk"]["storageAccountType"]},
        "tags": dict(resource.get("tags") or {}),
        "properties": {
            "diskSizeGB": disk.get("diskSizeGB", 30),
            "diskState": "Attached",
            "provisioningState": "Succeeded",
        },
    }


def forget_interface(world: World, path: str) -> None:
    found = world.find(path)
    if found is None:
        return
    world.remove(path)
    for one in found["properties"]["ipConfigurations"]:
        public = one["properties"].get("publicIPAddress")
        if public and (public.get("properties") or {}).get("deleteOption") == "Delete":
            world.remove(str(public["id"]))


def _shown(world: World, resource: dict[str, Any], with_view: bool) -> dict[str, Any]:
    properties = {name: value for name, value in resource["properties"].items() if name != "_error"}
    if with_view:
        properties["instanceView"] = view(world.vm_at(resource["id"]))
    return {**resource, "properties": properties}


def interfaces(world: World, vm: Vm) -> list[dict[str, Any]]:
    """Return the configurations of its network interfaces."""
    found = [world.find(str(one["id"])) for one in vm.properties["networkProfile"]["networkInterfaces"]]
    return [
        {"networkSecurityGroup": nic["properties"].get("networkSecurityGroup"), **one["properties"]}
        for nic in found
        if nic is not None
        for one in nic["properties"]["ipConfigurations"]
    ]


def has_route(world: World, vm: Vm) -> bool:
    """Return whether it has outbound access; new networks have none by default."""
    for one in interfaces(world, vm):
        subnet = resolve(world, str(one["subnet"]["id"])) or {}
        result = subnet.get("properties", {})
        if (
            one.get("publicIPAddress")
            or result.get("natGateway")
            or result.get("routeTable")
            or result.get("defaultOutboundAccess")
        ):
            return True
    return False


def open_rules(world: World, vm: Vm) -> list[str]:
    """Return the names of security rules of its interfaces and their subnets that admit the whole internet."""
    found: list[str] = []
    for one in interfaces(world, vm):
        subnet = resolve(world, str(one["subnet"]["id"])) or {}
        for path in (subnet.get("properties", {}).get("networkSecurityGroup"), one.get("networkSecurityGroup")):
            group = world.find(str(path["id"])) if path else None
            found += [
                rule["name"] for rule in (group or {}).get("properties", {}).get("securityRules", []) if _lets_in(rule)
            ]
    return found


def _lets_in(rule: dict[str, Any]) -> bool:
    result = rule["properties"]
    sources = {result.get("sourceAddressPrefix"), *result.get("sourceAddressPrefixes", [])}
    return (result["direction"], result["access"]) == ("Inbound", "Allow") and bool(
        sources & {"*", "Internet", "0.0.0.0/0", "any"}
    )
