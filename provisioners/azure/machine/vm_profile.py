"""Parts of a virtual machine in wire format, shared by launches (request.py) and fleets' scale sets (template.py).

Pure functions. Values of type Text are only passed on, since they may be Pulumi Outputs.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from .images import Image

ADMIN = "cloudgpu"
Text: TypeAlias = Any
"""A string, or a Pulumi Output of one."""
_SMALLEST_GB = 64
"""Minimum disk size in GB: the HPC image uses about 57 GB (a public report of 7 GB left of 64)."""


def image_reference(image: Image) -> dict[str, Any]:
    """Return the image with its version number instead of `latest`, so a retry sends the same request."""
    return {**image.urn._asdict(), "version": image.version}


def disk(image: Image, disk_gb: float) -> dict[str, Any]:
    """Return the machine's only disk: encrypted, like all Azure disks, and deleted with the machine.

    Standard SSD is supported by every size and costs half of Premium. At this size it is as fast except for bursts (128
    GB: 500 operations and 100 MB per second, for both). Source: Azure's documentation, "Azure managed disk types".
    Plans' prices include it.
    """
    return {
        "osType": "Linux",
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": max(math.ceil(disk_gb), image.min_gb, _SMALLEST_GB),
        "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
    }


def system(seed: str, custom_data: Text) -> dict[str, Any]:
    """Return the OS profile. Azure requires a login key or password: the profile contains an unusable key.

    `custom_data`: base64; `seed`: text from which the unusable key is derived.
    """
    key = {"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": unusable_key(seed)}
    return {
        "adminUsername": ADMIN,
        "customData": custom_data,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def unusable_key(seed: str) -> str:
    """Return an Ed25519 public key without a private key: its bytes are a hash.

    It is the same for the same seed, because a retry must send the same request.
    """
    point = hashlib.sha256(f"cloudgpu: a key without its other half: {seed}".encode()).digest()
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + len(point).to_bytes(4, "big") + point
    return f"ssh-ed25519 {base64.b64encode(blob).decode()} nobody"


def market(name: str) -> dict[str, Any]:
    """Return the market's properties. No maximum is set for the Spot price, which never exceeds the on-demand price."""
    if name != "spot":
        return {}
    return {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}


def security() -> dict[str, Any]:
    """Return the security profile that disables Secure Boot, so that the image's drivers load.

    Where Trusted Launch is a subscription's default, Secure Boot would block the HPC image's kernel modules, including
    NVIDIA's driver. Azure accepts `Standard` from all subscriptions since API version 2025-11-01; the SDK is newer.
    Sources: azure-cli#33280 (a registered feature is no longer required), azure-docs#111536 and azhpc-images#298
    (drivers that do not load).
    """
    return {"securityProfile": {"securityType": "Standard"}}


def reserved(group: Text) -> dict[str, Any]:
    """Return the reservation's properties. `group`: resource id of a capacity reservation group."""
    return {"capacityReservation": {"capacityReservationGroup": {"id": group}}}


def diagnostics() -> dict[str, Any]:
    """Return the boot diagnostics profile: Azure keeps the console output in managed storage."""
    return {"bootDiagnostics": {"enabled": True}}


def identity(resource: str) -> dict[str, Any]:
    """Return the identity property. `resource`: resource id of a managed identity."""
    return {"type": "UserAssigned", "userAssignedIdentities": {resource: {}}}


def interface(
    *, subnet: Text, security_group: Text, peers: Text | None, accelerated: bool, address: Mapping[str, object]
) -> dict[str, Any]:
    """Return the properties of a network interface.

    `peers`: application security group of machines that reach each other; `address`: address properties of its only IP
    configuration.
    """
    inner: dict[str, Any] = {"primary": True, "subnet": {"id": subnet}, **address}
    if peers is not None:
        inner["applicationSecurityGroups"] = [{"id": peers}]
    return {
        "enableAcceleratedNetworking": accelerated,
        "networkSecurityGroup": {"id": security_group},
        "ipConfigurations": [{"name": "only", "properties": inner}],
    }
