"""Instances: creation, deletion, stop, preemption, maintenance, and the resulting operations.

It follows the pages "Instance life cycle", "Spot VMs", "Host events" and "Limit the run time of a VM". Names of system
events are those of the audit logs, except the end of a limited run, which is not verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..gcp.service import RefusedError
from ..machine import Ending
from . import catalog
from .ask import ApiRequest, last, not_found, path_of
from .capacity import Shape
from .checks import checked
from .machines import GONE, GceMachine, Vm
from .operations import FailedError, now, stamp
from .world import World

ACPI_S = 120.0
"""Seconds for a graceful shutdown, unless specified otherwise."""
SPOT_S = 30.0
QUEUE_S = 7_200.0
"""Seconds that a flex-start request waits for capacity by default."""
_LOOK_S = 0.2

PREEMPTED = "compute.instances.preempted"
GUEST = "compute.instances.guestTerminate"
HOST_ERROR = "compute.instances.hostError"
MAINTENANCE = "compute.instances.terminateOnHostMaintenance"
RESTART = "compute.instances.automaticRestart"
RUN_OVER = "compute.instances.scheduledTermination"


# -- methods of the API


def insert(ask: ApiRequest) -> dict[str, Any]:
    """Create an instance. Capacity and quotas are checked in the background operation."""
    world, name = ask.world, str(ask.body.get("name", ""))
    shape, reservation = checked(ask)
    if (ask.scope, name) in world.collection("instances"):
        path = f"projects/{world.project.id}/{ask.scope}/instances/{name}"
        raise RefusedError("alreadyExists", 409, f"The resource '{path}' already exists")
    resource = world.put("instances", "instance", ask.scope, _resource(ask, shape))
    vm = Vm(resource, shape, time.monotonic(), reservation)
    wait_s = float(ask.body.get("params", {}).get("requestValidForDuration", {}).get("seconds", QUEUE_S))
    until = time.monotonic() + (wait_s if shape.market == "flex-start" else 0.0)
    return _operation(ask, "insert", resource, partial(_provision, world, vm, until))


def delete(ask: ApiRequest) -> dict[str, Any]:
    """Delete an instance; it is STOPPING for `stopping_s` seconds. Disks with autoDelete are deleted too."""
    world, resource = ask.world, _there(ask)
    if resource["status"] == "PENDING":  # still waiting for capacity
        del world.collection("instances")[ask.scope, resource["name"]]
        return _operation(ask, "delete", resource)
    vm = _vm(ask)
    if vm.status not in GONE:
        vm.reason = "delete"
    resource["status"] = "STOPPING"
    begun = time.monotonic()

    def work() -> float | None:
        _power_off(vm)
        if (left := begun + world.stopping_s - time.monotonic()) > 0:
            return left
        _remove(world, vm)
        return None

    return _operation(ask, "delete", resource, work)


def stop(ask: ApiRequest) -> dict[str, Any]:
    """Press the power button; its disks remain and are billed."""
    vm = _vm(ask)

    def work() -> float | None:
        if vm.machine is not None and vm.machine.is_on:
            return _LOOK_S
        _stopped(vm, "stop")
        return None

    vm.cause = "stop"
    vm.resource["status"] = "STOPPING"
    if vm.machine is not None:
        vm.machine.acpi(ACPI_S)
    return _operation(ask, "stop", vm.resource, work)


def start(ask: ApiRequest) -> dict[str, Any]:
    vm = _vm(ask)

    def work() -> None:
        ask.world.capacity.admit(vm.shape, shapes(ask.world))
        _runs(ask.world, vm)

    return _operation(ask, "start", vm.resource, work)


def reset(ask: ApiRequest) -> dict[str, Any]:
    """Press the reset button: it boots again with its disk."""
    vm = _vm(ask)
    return _operation(ask, "reset", vm.resource, lambda: reboot(vm))


def simulate_maintenance_event(ask: ApiRequest) -> dict[str, Any]:
    """Announce maintenance and carry it out: here immediately, in reality within a minute."""
    vm = _vm(ask)
    return _operation(ask, "simulateMaintenanceEvent", vm.resource, lambda: maintain(ask.world, vm, 0.0))


def set_labels(ask: ApiRequest) -> dict[str, Any]:
    resource = _there(ask)
    if ask.body.get("labelFingerprint") != resource["labelFingerprint"]:
        raise RefusedError("conditionNotMet", 412, "Labels fingerprint either invalid or resource labels have changed")
    resource["labels"] = dict(ask.body.get("labels", {}))
    return _operation(ask, "setLabels", resource)


def get_serial_port_output(ask: ApiRequest) -> dict[str, Any]:
    """Return the machine's console output."""
    vm = _vm(ask)
    text, begin = vm.machine.console if vm.machine else "", int(ask.query.get("start", "0"))
    link = f"{vm.resource['selfLink']}/serialPort"
    return {
        "kind": "compute#serialPortOutput",
        "contents": text[begin:],
        "start": str(begin),
        "next": str(len(text)),
        "selfLink": link,
    }


# -- system events, or triggered by tests


def preempt(world: World, vm: Vm, seconds: float) -> None:
    """Preempt a Spot machine: send the notice, and cut the power after `seconds`."""
    if vm.machine is not None:
        vm.machine.metadata.preempt()
    _press(world, vm, PREEMPTED, seconds)


def maintain(world: World, vm: Vm, lead_s: float, repair_s: float = 0.5, shutdown_s: float = 60.0) -> None:
    """Announce host maintenance in `lead_s` seconds, then shut the machine down and, with automatic restart, start it
    again `repair_s` seconds later."""
    vm.resource["resourceStatus"]["upcomingMaintenance"] = _window(lead_s)
    if vm.machine is not None:
        vm.machine.metadata.announce_maintenance(lead_s)
    vm.repair_s = repair_s

    def begin() -> None:
        if vm.status == "RUNNING":
            if vm.machine is not None:
                vm.machine.metadata.begin_maintenance()
            _press(world, vm, MAINTENANCE, shutdown_s)

    world.after(lead_s, begin)


def crash(world: World, vm: Vm, repair_s: float = 0.5) -> None:
    """Simulate a host failure: cut the power; with automatic restart it starts again later."""
    vm.cause, vm.repair_s = HOST_ERROR, repair_s
    if vm.machine is not None:
        vm.machine.cut_power()
    _went_off(world, vm)


def end_run(world: World, vm: Vm) -> None:
    """End the run as if maxRunDuration had passed."""
    if vm.status == "RUNNING":
        _press(world, vm, RUN_OVER, ACPI_S)


def reboot(vm: Vm) -> None:
    """Kill all processes at once; the machine boots again with its disk."""
    if vm.machine is not None:
        vm.machine.cut_power()
        vm.machine.power_on()


def shapes(world: World) -> list[Shape]:
    """Return the shapes of running instances."""
    return [vm.shape for vm in world.vms if vm.status not in GONE]


# -- life cycle


def _provision(world: World, vm: Vm, until: float) -> float | None:
    """Provision an instance; return seconds until the next try, or None. Raises FailedError after removing the
    instance."""
    if world.collection("instances").get((vm.scope, vm.name)) is not vm.resource:
        raise FailedError("OPERATION_CANCELED_BY_USER", 409, "The instance was deleted while it waited for capacity.")
    try:
        world.capacity.admit(vm.shape, shapes(world))
        _use_reservation(world, vm)
    except FailedError as failed:
        if failed.status == 503 and time.monotonic() < until:
            vm.resource["status"] = "PENDING"
            return _LOOK_S
        world.collection("instances").pop((vm.scope, vm.name), None)
        raise
    vm.launched = time.monotonic()
    world.vms.append(vm)
    _make_disks(world, vm)
    if world.project.boot:
        root = world.project.folder / f"{vm.name}-{vm.resource['id']}"
        root.mkdir()
        vm.machine = GceMachine(world, vm, root, partial(_ended_itself, world, vm))
        if not _has_route(world, vm):
            vm.machine.trouble.append("no external address and no Private Google Access: it cannot reach any API")
    _runs(world, vm)
    if duration := vm.scheduling.get("maxRunDuration"):
        lasts = float(duration.get("seconds", 0))
        vm.resource["resourceStatus"]["scheduling"] = {"terminationTimestamp": stamp(time.time() + lasts)}
        world.after(lasts, lambda: end_run(world, vm))
    return None


def _runs(world: World, vm: Vm) -> None:
    vm.resource |= {"status": "RUNNING", "lastStartTimestamp": now()}
    vm.gone, vm.cause, vm.reason = None, "", ""
    if vm.machine is not None and _has_route(world, vm):
        vm.machine.power_on()


def _press(world: World, vm: Vm, cause: str, seconds: float) -> None:
    """Press the power button; _went_off() handles the rest."""
    vm.cause = cause
    vm.resource["status"] = "STOPPING"
    if vm.machine is not None and vm.machine.is_on:
        vm.machine.acpi(seconds)
    else:
        world.after(min(seconds, 0.1), lambda: _went_off(world, vm))


def _ended_itself(world: World, vm: Vm, ending: Ending) -> None:
    """Handle a machine that is off, or reboots."""
    with world.lock:
        if vm.machine is None or vm.gone is not None:
            return
        if ending == "reboot" and not vm.cause:
            vm.machine.power_on()
        elif vm.cause != "stop":
            vm.cause = vm.cause or GUEST
            _went_off(world, vm)


def _went_off(world: World, vm: Vm) -> None:
    """Handle a power-off according to its cause."""
    if not vm.status or vm.status == "TERMINATED":
        return
    cause = vm.cause
    world.operations.happened(cause, vm.scope, vm.resource["selfLink"], vm.resource["id"], _MESSAGES[cause])
    deleted = vm.scheduling.get("instanceTerminationAction") == "DELETE" and cause in (PREEMPTED, RUN_OVER)
    if deleted:
        vm.reason = cause
        _power_off(vm)
        vm.resource["status"] = "STOPPING"
        world.after(world.stopping_s, lambda: _remove(world, vm))
    elif cause in (MAINTENANCE, HOST_ERROR) and vm.scheduling.get("automaticRestart"):
        vm.resource["status"] = "REPAIRING"
        world.after(vm.repair_s, lambda: _restart(world, vm))
    else:
        _stopped(vm, cause)


def _restart(world: World, vm: Vm) -> None:
    if vm.status != "REPAIRING":
        return
    if vm.machine is not None:
        vm.machine.metadata.end_maintenance()
    vm.resource["resourceStatus"].pop("upcomingMaintenance", None)
    world.operations.happened(RESTART, vm.scope, vm.resource["selfLink"], vm.resource["id"], _MESSAGES[RESTART])
    _runs(world, vm)


def _stopped(vm: Vm, reason: str) -> None:
    vm.resource |= {"status": "TERMINATED", "lastStopTimestamp": now()}
    vm.gone, vm.reason, vm.cause = time.monotonic(), reason, ""


def _power_off(vm: Vm) -> None:
    """Switch the machine off permanently."""
    if vm.gone is None:
        vm.gone = time.monotonic()
    if vm.machine is not None:
        vm.machine.dispose()


def _remove(world: World, vm: Vm) -> None:
    key = (vm.scope, vm.name)
    if world.collection("instances").get(key) is vm.resource:
        del world.collection("instances")[key]
    for disk in vm.resource["disks"]:
        found = world.collection("disks").get((vm.scope, last(disk.get("source", ""))))
        if found is not None and disk.get("autoDelete"):
            del world.collection("disks")[vm.scope, found["name"]]
        elif found is not None:
            found.pop("users", None)
    vm.resource = {**vm.resource, "status": ""}


# -- helpers


def _resource(ask: ApiRequest, shape: Shape) -> dict[str, Any]:
    """Return the instance's initial resource."""
    body = {key: value for key, value in ask.body.items() if key != "params"}
    interfaces = [_interface(ask.world, one, shape, number) for number, one in enumerate(body["networkInterfaces"])]
    disks = [_disk(ask.world, one, shape, str(body["name"]), number) for number, one in enumerate(body["disks"])]
    return {
        **body,
        "status": "PROVISIONING",
        "machineType": ask.world.link("machineTypes", f"zones/{shape.zone}", shape.machine_type),
        "networkInterfaces": interfaces,
        "disks": disks,
        "cpuPlatform": "Unknown CPU Platform",
        "fingerprint": "x7ZkhnH6VJU=",
        "labelFingerprint": "42WmSpB8rSM=",
        "startRestricted": False,
        "deletionProtection": False,
        "resourceStatus": {},
    }


def _interface(world: World, asked: dict[str, Any], shape: Shape, number: int) -> dict[str, Any]:
    subnet = last(str(asked.get("subnetwork") or asked.get("network") or "default"))
    found = world.collection("subnetworks")[f"regions/{shape.region}", subnet]
    configs = [
        {"kind": "compute#accessConfig", "name": "External NAT", **one, "natIP": f"203.0.113.{number + 1}"}
        for one in asked.get("accessConfigs", [])
    ]
    made = {
        "kind": "compute#networkInterface",
        "name": f"nic{number}",
        **asked,
        "network": found["network"],
        "subnetwork": found["selfLink"],
        "networkIP": world.address(),
        "stackType": "IPV4_ONLY",
    }
    return {**made, "accessConfigs": configs} if configs else made


def _disk(world: World, asked: dict[str, Any], shape: Shape, name: str, number: int) -> dict[str, Any]:
    made = {"kind": "compute#attachedDisk", "index": number, "mode": "READ_WRITE", "type": "PERSISTENT", **asked}
    params = made.pop("initializeParams", {})
    if made["type"] == "SCRATCH":
        return made
    disk = str(params.get("diskName") or (name if number == 0 else f"{name}-{number}"))
    image = path_of(str(params.get("sourceImage", "")))
    size = params.get("diskSizeGb") or next((i.disk_gb for i in catalog.images() if image == i.path), 10)
    made["source"] = world.link("disks", f"zones/{shape.zone}", disk)
    made["diskSizeGb"] = str(size)
    world.pending_disks[made["source"]] = {**params, "name": disk, "sizeGb": str(size)}
    return made


def _make_disks(world: World, vm: Vm) -> None:
    for disk in vm.resource["disks"]:
        params = world.pending_disks.pop(disk.get("source", ""), None)
        if params is None:
            continue
        body = {
            "name": params["name"],
            "sizeGb": params["sizeGb"],
            "status": "READY",
            "type": params.get("diskType") or world.link("diskTypes", vm.scope, "pd-standard"),
            "sourceImage": params.get("sourceImage", ""),
            "labels": params.get("labels", {}),
            "users": [vm.resource["selfLink"]],
        }
        world.put("disks", "disk", vm.scope, body)


def _use_reservation(world: World, vm: Vm) -> None:
    if not vm.reservation:
        return
    found = world.collection("reservations").get((vm.scope, vm.reservation))
    users = sum(one.reservation == vm.reservation and one.status not in GONE for one in world.vms)
    if found is None or users >= int(found["specificReservation"]["count"]):
        text = f"Specified reservation [{vm.reservation}] does not have available resources for the request."
        raise FailedError("ZONE_RESOURCE_POOL_EXHAUSTED", 503, text)
    found["specificReservation"]["inUseCount"] = str(users + 1)


def _has_route(world: World, vm: Vm) -> bool:
    """Return whether it can reach Google's APIs, by an external address or its subnetwork's Private Google Access."""
    first = vm.resource["networkInterfaces"][0]
    subnet = world.collection("subnetworks").get((f"regions/{vm.shape.region}", last(first["subnetwork"])), {})
    return bool(first.get("accessConfigs")) or bool(subnet.get("privateIpGoogleAccess"))


def _there(ask: ApiRequest) -> dict[str, Any]:
    found = ask.world.collection("instances").get((ask.scope, ask.params["instance"]))
    if found is None:
        raise not_found(f"projects/{ask.world.project.id}/{ask.scope}/instances/{ask.params['instance']}")
    return found


def _vm(ask: ApiRequest) -> Vm:
    """Return the requested instance. Raises RefusedError if it is not provisioned yet."""
    resource = _there(ask)
    if resource["status"] in ("PROVISIONING", "PENDING"):
        path = f"projects/{ask.world.project.id}/{ask.scope}/instances/{resource['name']}"
        raise RefusedError("resourceNotReady", 400, f"The resource '{path}' is not ready")
    return ask.world.vm(resource["name"])


def _operation(
    ask: ApiRequest, kind: str, resource: dict[str, Any], work: Callable[[], float | None] = lambda: None
) -> dict[str, Any]:
    return ask.world.operations.begin(
        kind,
        ask.scope,
        resource["selfLink"],
        resource["id"],
        user=ask.caller,
        request_id=ask.query.get("requestId", ""),
        work=work,
    )


def _window(lead_s: float) -> dict[str, Any]:
    begins = time.time() + lead_s
    return {
        "type": "SCHEDULED",
        "canReschedule": False,
        "maintenanceStatus": "PENDING",
        "windowStartTime": stamp(begins),
        "windowEndTime": stamp(begins + 3_600),
        "latestWindowStartTime": stamp(begins),
    }


_MESSAGES = {
    PREEMPTED: "Instance was preempted.",
    GUEST: "Instance terminated by guest OS shutdown.",
    HOST_ERROR: "Instance terminated by Compute Engine.",
    MAINTENANCE: "Instance terminated during Compute Engine maintenance.",
    RESTART: "Instance automatically restarted by Compute Engine.",
    RUN_OVER: "Instance reached the end of its run.",
}
