"""Validation of a new instance before an operation is created.

Messages about machine types, accelerators, live migration, existing names and reservations are as quoted by users; the
others are not verified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..gcp.service import RefusedError
from . import catalog
from .ask import ApiRequest, invalid, last, not_found, path_of, required
from .capacity import Shape
from .world import World

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_VALUE_BYTES, _ALL_BYTES = 262_144, 524_288
_RESERVATION = "compute.googleapis.com/reservation-name"
_NO_PERSISTENT_DISK = ("a4", "a4x", "g4")
"""Series that support only Hyperdisk (Compute Engine, "Accelerator-optimized machine family")."""
_MARKETS = {"": "on-demand", "STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "flex-start"}


def checked(ask: ApiRequest) -> tuple[Shape, str]:
    """Return an instance's shape, and the name of the reservation to use. Raises RefusedError."""
    body, zone = ask.body, ask.params["zone"]
    if not _NAME.fullmatch(str(body.get("name", ""))):
        raise invalid("resource.name", body.get("name", ""), f"Must be a match of regex '(?:{_NAME.pattern})'")
    shape = _shape(body, zone)
    _check_scheduling(body.get("scheduling", {}), shape)
    _check_disks(ask.world, body, shape)
    _check_interfaces(ask.world, body, shape)
    _check_texts(body)
    _check_account(ask.world, body)
    for policy in body.get("resourcePolicies", []):
        if (f"regions/{shape.region}", last(policy)) not in ask.world.collection("resourcePolicies"):
            raise not_found(path_of(policy))
    return shape, _reservation(ask.world, body, shape)


def _shape(body: Mapping[str, Any], zone: str) -> Shape:
    link = str(body.get("machineType", ""))
    if not link:
        raise required("resource.machineType")
    if f"zones/{zone}/machineTypes/" not in link:
        raise invalid("resource.machineType", link, "The URL is malformed, or of another zone.")
    found = catalog.machine_types().get(last(link))
    if found is None or zone not in found.zones:
        text = f"Machine type with name '{last(link)}' does not exist in zone '{zone}'."
        raise invalid("resource.machineType", link, text)
    accelerator, count = _accelerator(body, found, zone)
    market = "reservation" if _is_specific(body) else _market(body.get("scheduling", {}))
    return Shape(found.name, zone, market, accelerator, count, found.vcpus)


def _accelerator(body: Mapping[str, Any], machine: catalog.MachineType, zone: str) -> tuple[str, int]:
    asked = body.get("guestAccelerators", [])
    if not asked:
        return machine.accelerator, machine.count
    link, count = str(asked[0].get("acceleratorType", "")), int(asked[0].get("acceleratorCount", 0))
    if f"zones/{zone}/acceleratorTypes/" not in link:
        raise invalid("resource.guestAccelerators[0].acceleratorType", link, "The URL is malformed.")
    if zone not in catalog.accelerators().get(last(link), frozenset()):
        raise not_found(path_of(link))
    if machine.accelerator:
        if (last(link), count) != (machine.accelerator, machine.count):
            raise _incompatible(machine.name, f"{last(link)}:{count}")
    elif machine.family != "n1" or last(link) not in catalog.attachable():
        raise _incompatible(machine.name, last(link))
    return last(link), count


def _incompatible(machine_type: str, what: str) -> RefusedError:
    text = f"[{what}] features are not compatible for creating instance of machine type {machine_type}."
    return RefusedError("badRequest", 400, text)


def _market(scheduling: Mapping[str, Any]) -> str:
    if scheduling.get("preemptible"):
        return "spot"
    return _MARKETS.get(str(scheduling.get("provisioningModel", "")), "reservation")


def _check_scheduling(scheduling: Mapping[str, Any], shape: Shape) -> None:
    if shape.accelerator and scheduling.get("onHostMaintenance", "MIGRATE") != "TERMINATE":
        raise RefusedError("badRequest", 400, "Instances with guest accelerators do not support live migration.")
    if shape.market in ("spot", "flex-start") and scheduling.get("automaticRestart", shape.market == "flex-start"):
        model = scheduling.get("provisioningModel", "SPOT")
        text = f"automaticRestart must be false where the provisioning model is {model}."
        raise invalid("resource.scheduling.automaticRestart", "true", text)
    limited = bool(scheduling.get("maxRunDuration") or scheduling.get("terminationTime"))
    action = scheduling.get("instanceTerminationAction")
    is_bound = scheduling.get("provisioningModel") == "RESERVATION_BOUND"
    if action and shape.market != "spot" and not limited and not is_bound:
        text = "It needs the provisioning model SPOT or RESERVATION_BOUND, or a limit of the run."
        raise invalid("resource.scheduling.instanceTerminationAction", action, text)
    if (limited or is_bound) and not action:
        raise required("resource.scheduling.instanceTerminationAction")
    if shape.market == "flex-start" and not limited:
        raise required("resource.scheduling.maxRunDuration")
    seconds = float(scheduling.get("maxRunDuration", {}).get("seconds", 60))
    if not 30 <= seconds <= 120 * 86_400 or (shape.market == "flex-start" and seconds > 7 * 86_400):
        raise invalid("resource.scheduling.maxRunDuration", seconds, "It must be between 30 seconds and 120 days.")


def _check_disks(world: World, body: Mapping[str, Any], shape: Shape) -> None:
    disks = body.get("disks", [])
    if not disks or not disks[0].get("boot"):
        raise invalid("resource.disks[0]", "", "At least one disk should be specified, and the first be a boot disk.")
    source = str(disks[0].get("initializeParams", {}).get("sourceImage", ""))
    image = _image(world, source)
    size = int(disks[0]["initializeParams"].get("diskSizeGb", image.disk_gb))
    if size < image.disk_gb:
        text = f"Requested disk size cannot be smaller than the image size ({image.disk_gb} GB)"
        raise invalid("resource.disks[0].initializeParams.diskSizeGb", size, text)
    if image.architecture != catalog.machine_types()[shape.machine_type].architecture:
        raise _incompatible(shape.machine_type, f"architecture: {image.architecture}")
    for number, disk in enumerate(disks):
        field, kind = f"resource.disks[{number}]", str(disk.get("initializeParams", {}).get("diskType", ""))
        if kind and f"zones/{shape.zone}/diskTypes/" not in kind:
            raise invalid(f"{field}.initializeParams.diskType", kind, "The URL is malformed, or of another zone.")
        if (disk.get("type") == "SCRATCH") != (last(kind) == "local-ssd"):
            raise invalid(f"{field}.type", disk.get("type", ""), "Scratch disks are local SSDs.")
        if last(kind or "pd-standard").startswith("pd-") and shape.machine_type.startswith(
            tuple(f"{series}-" for series in _NO_PERSISTENT_DISK)
        ):
            raise _incompatible(shape.machine_type, last(kind or "pd-standard"))
    shielded = body.get("shieldedInstanceConfig", {})
    if any(shielded.values()) and not image.uefi:
        raise RefusedError(
            "conditionNotMet", 412, "Shielded VM Config can only be set when using a UEFI-compatible disk."
        )


def _image(world: World, source: str) -> catalog.Image:
    path = path_of(source)
    if not source:
        raise required("resource.disks[0].initializeParams.sourceImage")
    for image in (*catalog.images(), *world.images):
        if path in (image.path, f"projects/{image.project}/global/images/family/{image.family}"):
            return image
    raise not_found(path)


def _check_interfaces(world: World, body: Mapping[str, Any], shape: Shape) -> None:
    interfaces = body.get("networkInterfaces", [])
    if not interfaces:
        raise invalid("resource.networkInterfaces", "", "At least one network interface is required.")
    for number, one in enumerate(interfaces):
        network, subnet = str(one.get("network", "")), str(one.get("subnetwork", ""))
        if network and ("global", last(network)) not in world.collection("networks"):
            field = f"resource.networkInterfaces[{number}].network"
            raise invalid(field, network, "The referenced network resource cannot be found.")
        key = (f"regions/{shape.region}", last(subnet or network or "default"))
        if key not in world.collection("subnetworks"):
            field = f"resource.networkInterfaces[{number}].subnetwork"
            raise invalid(field, subnet, "The referenced subnetwork resource cannot be found.")


def _check_texts(body: Mapping[str, Any]) -> None:
    for key, value in body.get("labels", {}).items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid("resource.labels", f"{key}={value}", "Label keys and values must fit their patterns.")
    if len(body.get("labels", {})) > 64:
        raise invalid("resource.labels", len(body["labels"]), "At most 64 labels.")
    for tag in body.get("tags", {}).get("items", []):
        if not _NAME.fullmatch(tag):
            raise invalid("resource.tags.items[0]", tag, f"Must be a match of regex '(?:{_NAME.pattern})'")
    items = body.get("metadata", {}).get("items", [])
    sizes = [len(str(item.get("value", "")).encode()) for item in items]
    if any(size > _VALUE_BYTES for size in sizes) or sum(sizes) > _ALL_BYTES:
        raise invalid("resource.metadata", f"{max(sizes)} bytes", "The value is too large.")


def _check_account(world: World, body: Mapping[str, Any]) -> None:
    for account in body.get("serviceAccounts", []):
        email = str(account.get("email", ""))
        if email not in world.project.accounts:
            path = f"projects/{world.project.id}/serviceAccounts/{email}"
            raise RefusedError("invalid", 400, f"The resource '{path}' of type 'serviceAccount' was not found.")


def _is_specific(body: Mapping[str, Any]) -> bool:
    return bool(body.get("reservationAffinity", {}).get("consumeReservationType") == "SPECIFIC_RESERVATION")


def _reservation(world: World, body: Mapping[str, Any], shape: Shape) -> str:
    if not _is_specific(body):
        return ""
    affinity = body["reservationAffinity"]
    values = affinity.get("values", [])
    if affinity.get("key") != _RESERVATION or len(values) != 1:
        raise invalid("resource.reservationAffinity", affinity, "It names one reservation by its key.")
    name = last(values[0])
    found = world.collection("reservations").get((f"zones/{shape.zone}", name))
    field = "resource.reservationAffinity"
    if found is None:
        raise invalid(field, name, f"Could not find the given reservation with the following name: {name}.")
    if not found.get("specificReservationRequired"):
        text = (
            f"Specified reservations [projects/{world.project.id}/reservations/{name}] can not be targeted as "
            "specificReservationRequired is not set"
        )
        raise invalid(field, name, text)
    reserved = found["specificReservation"]["instanceProperties"]
    if reserved["machineType"] != shape.machine_type:
        text = f"Specified reservation [{name}] does not match the machine type {shape.machine_type}."
        raise invalid(field, name, text)
    return name
