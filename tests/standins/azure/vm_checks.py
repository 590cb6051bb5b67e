"""Immediate validation of a new machine beyond its model.

It follows the REST reference of Virtual Machines, "FAQ: Linux", "Azure Spot Virtual Machines" and "Troubleshooting";
texts are as quoted by users where that is known, otherwise not verified.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import replace
from typing import Any

from . import catalog, reservations
from .arm import RefusedError, key
from .capacity import Shape, not_available
from .world import World

CUSTOM_DATA = 65_535
_USER_NAMES = frozenset(
    [
        "administrator",
        "admin",
        "user",
        "user1",
        "test",
        "user2",
        "test1",
        "user3",
        "admin1",
        "1",
        "123",
        "a",
        "actuser",
        "adm",
        "admin2",
        "aspnet",
        "backup",
        "console",
        "david",
        "guest",
        "john",
        "owner",
        "root",
        "server",
        "sql",
        "support",
        "support_388945a0",
        "sys",
        "test2",
        "test3",
        "user4",
        "user5",
    ]
)
_KEY = re.compile(r"(?:ssh-rsa|ssh-ed25519) [A-Za-z0-9+/=]+(?: .*)?\s*")
_GENERATION_1 = re.compile(r"Standard_(?:NC\d+as_T4_v3|NV|D|B|F)")


def invalid(target: str, message: str, code: str = "InvalidParameter") -> RefusedError:
    return RefusedError(code, 400, message, target=target)


def shape_of(world: World, body: dict[str, Any], region: str) -> Shape:
    """Return the machine's shape. Raises RefusedError."""
    properties = body["properties"]
    size = _size(world, str((properties.get("hardwareProfile") or {}).get("vmSize", "")), region)
    zone = _zone(world, body, size, region)
    spot = properties.get("priority", "Regular") in ("Spot", "Low")
    if not spot and ("evictionPolicy" in properties or "maxPrice" in (properties.get("billingProfile") or {})):
        raise invalid("evictionPolicy", "Eviction policy and max price can be set only on Azure Spot Virtual Machines.")
    price = (properties.get("billingProfile") or {}).get("maxPrice", -1)
    if price != -1 and price <= 0:
        raise invalid("maxPrice", f"The value {price} of maxPrice is neither -1 nor greater than zero.")
    if spot and not size.spot:
        raise invalid("priority", f"The VM size {size.name} cannot be used for Azure Spot Virtual Machines.")
    if properties.get("availabilitySet") and (spot or zone):
        text = "A machine in an availability set can be neither an Azure Spot Virtual Machine nor in a zone."
        raise invalid("availabilitySet", text)
    group = (properties.get("capacityReservation") or {}).get("capacityReservationGroup")
    if not group:
        return Shape(size, region, zone, spot)
    for name in ("availabilitySet", "proximityPlacementGroup"):
        if properties.get(name):
            raise invalid("capacityReservation", f"A VM with {name} cannot be associated with a capacity reservation.")
    if spot:
        raise invalid("capacityReservation", "A Spot VM cannot be associated with a capacity reservation group.")
    shape = Shape(size, region, zone, spot, reservations.find(world, str(group["id"]), size.name, zone))
    there = [vm.shape for vm in world.vms if vm.is_placed]
    return replace(shape, reserved=reservations.has_room(world, shape, there))


def check(world: World, body: dict[str, Any], path: str, region: str) -> str:
    """Check everything except size, zone and market; return the custom data. Raises RefusedError."""
    properties = body["properties"]
    _check_storage(properties, region)
    _check_interfaces(world, properties, path, region)
    return _check_system(properties.get("osProfile"))


def _size(world: World, name: str, region: str) -> catalog.Size:
    size = catalog.sizes().get(name.lower())
    if size is None or region not in size.regions:
        known = ",".join(sorted(one.name for one in catalog.sizes().values() if region in one.regions))
        text = f"The value {name} provided for the VM size is not valid. The valid sizes in this region are: {known}."
        raise invalid("vmSize", text)
    if any(one["type"] == "Location" for one in restrictions(world, size, region)):
        raise not_available(Shape(size, region, "", spot=False))
    return size


def restrictions(world: World, size: catalog.Size, region: str) -> list[dict[str, Any]]:
    """Return a SKU's restrictions for this subscription."""
    result: list[dict[str, Any]] = world.sku_changes.get((size.name.lower(), region), {}).get("restrictions", [])
    return result


def zones_of(world: World, size: catalog.Size, region: str) -> list[str]:
    """Return the zones of a SKU in a region."""
    result: list[str] = world.sku_changes.get((size.name.lower(), region), {}).get("zones", list(catalog.zones(region)))
    return result


def _zone(world: World, body: dict[str, Any], size: catalog.Size, region: str) -> str:
    zones = body.get("zones") or []
    if not zones:
        return ""
    if len(zones) > 1:
        raise invalid("zones", "A virtual machine can be in one zone only.", "InvalidAvailabilityZone")
    zone = str(zones[0])
    if zone not in catalog.zones(region):
        text = (
            f"The zone(s) '{zone}' for resource 'Microsoft.Compute/virtualMachines' is not supported. The supported "
            f"zones for location '{region}' are '{','.join(catalog.zones(region))}'."
        )
        raise RefusedError("AvailabilityZoneNotSupported", 400, text)
    restricted = [
        one
        for result in restrictions(world, size, region)
        if result["type"] == "Zone"
        for one in result["restrictionInfo"]["zones"]
    ]
    if zone not in zones_of(world, size, region) or zone in restricted:
        raise not_available(Shape(size, region, zone, spot=False))
    return zone


def _check_storage(properties: dict[str, Any], region: str) -> None:
    storage = properties.get("storageProfile") or {}
    asked = storage.get("imageReference") or {}
    if "id" in asked or not asked:
        raise invalid("imageReference", "The stand-in knows platform images only: publisher, offer, sku, version.")
    words = [str(asked.get(name, "")) for name in ("publisher", "offer", "sku", "version")]
    image = catalog.find_image(*words[:3])
    if image is None or words[3] not in ("latest", image.version):
        text = (
            f"The platform image '{':'.join(words)}' is not available. Verify that all fields in the storage profile "
            f"are correct. For more details about storage profile information, please refer to https://aka.ms/storageprofile"
        )
        raise RefusedError("PlatformImageNotFound", 404, text, target="imageReference")
    size = str(properties["hardwareProfile"]["vmSize"])
    if image.generation == "V1" and not _GENERATION_1.match(size):
        text = f"The selected VM size '{size}' cannot boot Hypervisor Generation '1'."
        raise RefusedError("BadRequest", 400, text)
    disk = storage.get("osDisk") or {}
    if disk.get("createOption") != "FromImage":
        raise invalid("osDisk.createOption", "osDisk.createOption must be FromImage with an image reference.")
    if disk.get("diskSizeGB", image.disk_gb) < image.disk_gb:
        text = (
            f"The specified disk size {disk['diskSizeGB']} GB is smaller than the size of the corresponding disk in "
            f"the VM image: {image.disk_gb} GB. This is not allowed. Please choose equal or greater size or do not "
            "specify an explicit size."
        )
        raise invalid("osDisk.diskSizeGB", text)


def _check_interfaces(world: World, properties: dict[str, Any], path: str, region: str) -> None:
    network = properties.get("networkProfile") or {}
    if network.get("networkInterfaceConfigurations"):
        raise RefusedError("StandinNotImplemented", 501, "networkInterfaceConfigurations of a machine")
    asked = network.get("networkInterfaces") or []
    if not asked:
        raise invalid("networkProfile", "Virtual machine has no network interfaces.", "MissingNetworkInterface")
    if len(asked) > 1 and sum(bool((one.get("properties") or {}).get("primary")) for one in asked) != 1:
        raise invalid(
            "networkProfile",
            "Exactly one network interface must be primary.",
            "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary",
        )
    for one in asked:
        nic = world.find(str(one["id"]))
        if nic is None or nic["properties"]["provisioningState"] != "Succeeded":
            raise invalid("networkProfile", f"Network interface {one['id']} is not ready.", "NetworkInterfaceNotReady")
        if catalog.region_name(nic["location"]) != region:
            raise invalid(
                "networkProfile",
                f"Network interface {one['id']} is in {nic['location']}, not in {region}.",
                "InvalidResourceReference",
            )
        holder = [user for user in world.users(nic["id"]) if key(user) != key(path) and "/virtualMachines/" in user]
        if holder:
            text = f"Network Interface {nic['id']} is used by existing resource {holder[0]}."
            raise RefusedError("NicInUse", 400, text)


def _check_system(system: dict[str, Any] | None) -> str:
    """Check the OS profile; return the custom data in base64. Raises RefusedError."""
    if not system:
        raise invalid("osProfile", "Required parameter 'osProfile' is missing (null).")
    name, user = str(system.get("computerName", "")), str(system.get("adminUsername", ""))
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9.]{0,63}", name) or name[-1] in "-.":
        raise invalid(
            "computerName", f"Linux host name '{name}' is empty, too long or has characters that are not allowed."
        )
    if user.lower() in _USER_NAMES or not re.fullmatch(r"[a-z_][-a-z0-9_]{0,63}", user):
        text = (
            "The Admin Username specified is not allowed. For more information about disallowed usernames, see "
            f"https://aka.ms/vmosprofile ({user})"
        )
        raise invalid("adminUsername", text)
    linux = system.get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    if linux.get("disablePasswordAuthentication") and not keys:
        raise invalid(
            "linuxConfiguration",
            "Authentication using either SSH or by user name and password must be enabled in Linux profile.",
        )
    if not keys and not system.get("adminPassword"):
        raise invalid("adminPassword", "Required parameter 'adminPassword' is missing (null).")
    for one in keys:
        if one.get("path") != f"/home/{user}/.ssh/authorized_keys" or not _KEY.fullmatch(str(one.get("keyData", ""))):
            text = f"The value of parameter linuxConfiguration.ssh.publicKeys is invalid: {one.get('path')}."
            raise invalid("linuxConfiguration.ssh.publicKeys", text)
    data = str(system.get("customData") or "")
    try:
        whole = base64.b64decode(data, validate=True)
    except binascii.Error as wrong:
        raise invalid("customData", "Custom data in OSProfile must be in Base64 encoding.") from wrong
    if len(whole) > CUSTOM_DATA:
        raise invalid(
            "customData",
            "Custom data in OSProfile must be in Base64 encoding and with a maximum length of 87380 characters.",
        )
    return data
