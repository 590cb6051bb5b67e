"""What a virtual machine is made of, in wire format, whoever makes it: a launch (request.py), or a fleet's scale set
(template.py). So machines of both are the same, and nothing is said twice. Pure.

What is of type Text is put where it belongs, and not looked at.
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
"""A text, or what stands for one in Pulumi."""
_SMALLEST_GB = 64
"""Of the disk: the HPC image fills some 57 GB (a public report of 7 GB left of 64)."""


def image_reference(image: Image) -> dict[str, Any]:
    """By the version's number, not `latest`: a repeated call asks for the same."""
    return {**image.urn._asdict(), "version": image.version}


def disk(image: Image, disk_gb: float) -> dict[str, Any]:
    """The one disk: encrypted, as every disk there is, and gone with the machine.

    A Standard SSD, which every size takes, at half the price of a Premium one, as fast for so small a disk but in
    bursts (128 GB: 500 operations and 100 MB a second, of both). Source: Azure's documentation, "Azure managed disk
    types". It is what a plan's price counts.
    """
    return {
        "osType": "Linux",
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": max(math.ceil(disk_gb), image.min_gb, _SMALLEST_GB),
        "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
    }


def system(seed: str, custom_data: Text) -> dict[str, Any]:
    """Nobody is meant to log in. Azure wants a key or a password: it gets a key that nobody has. `custom_data`: base64;
    `seed`: of the key."""
    key = {"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": nobodys_key(seed)}
    return {
        "adminUsername": ADMIN,
        "customData": custom_data,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def nobodys_key(seed: str) -> str:
    """An Ed25519 public key whose private key nobody knows, for it was never made: the bytes of a hash.

    The same for the same launch, for a repeated call must ask for the same machine.
    """
    point = hashlib.sha256(f"cloudgpu: a key without its other half: {seed}".encode()).digest()
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + len(point).to_bytes(4, "big") + point
    return f"ssh-ed25519 {base64.b64encode(blob).decode()} nobody"


def market(name: str) -> dict[str, Any]:
    """Spot has no maximum price: it is never more than the on-demand price, and a low one only gets less."""
    if name != "spot":
        return {}
    return {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}


def security() -> dict[str, Any]:
    """Properties by which Azure boots what its image holds, without Secure Boot.

    Where a subscription has Trusted Launch by default, Secure Boot would keep the HPC image's kernel modules from being
    loaded, NVIDIA's driver among them. Azure takes `Standard` from everybody since API version 2025-11-01, which the
    SDK is newer than. Sources: azure-cli#33280 (no registered feature is needed any more), azure-docs#111536 and
    azhpc-images#298 (drivers that are not loaded).
    """
    return {"securityProfile": {"securityType": "Standard"}}


def reserved(group: Text) -> dict[str, Any]:
    """`group`: the resource id of a capacity reservation group."""
    return {"capacityReservation": {"capacityReservationGroup": {"id": group}}}


def diagnostics() -> dict[str, Any]:
    """What the machine writes on its console is kept by Azure, without a storage account of ours."""
    return {"bootDiagnostics": {"enabled": True}}


def identity(resource: str) -> dict[str, Any]:
    """`resource`: the resource id of a managed identity."""
    return {"type": "UserAssigned", "userAssignedIdentities": {resource: {}}}


def interface(
    *, subnet: Text, security_group: Text, peers: Text | None, accelerated: bool, address: Mapping[str, object]
) -> dict[str, Any]:
    """Properties of a network interface. `peers`: the application security group of machines that reach each other;
    `address`: of its only configuration, what says how it is addressed."""
    inner: dict[str, Any] = {"primary": True, "subnet": {"id": subnet}, **address}
    if peers is not None:
        inner["applicationSecurityGroups"] = [{"id": peers}]
    return {
        "enableAcceleratedNetworking": accelerated,
        "networkSecurityGroup": {"id": security_group},
        "ipConfigurations": [{"name": "only", "properties": inner}],
    }
