"""The Flexible scale set that a machine of Azure is in.

Needs `Microsoft.Compute/virtualMachineScaleSets/delete/action` on the scale set, in a role of the machine's identity.
Unverified against a real account: that a Flexible scale set knows its machines by their names there.
"""

# ruff: noqa: S310 - every address is Resource Manager's

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_az import metadata, send, token
    from .common import Hopeless, Refused
else:
    from bucket_az import metadata, send, token
    from common import Hopeless, Refused

ANSWER_S = 15.0
INSTANCE = {"api-version": "2021-02-01", "format": "text"}
VERSION = "2024-07-01"


def leave(record: dict[str, Any]) -> None:
    """Have this machine deleted, and the scale set be smaller by it. Accepted is enough. Raises OSError, Hopeless."""
    base = (record["api_endpoint"] or "https://management.azure.com").rstrip("/")
    name, group = metadata("instance/compute/name", INSTANCE), metadata("instance/compute/vmScaleSetName", INSTANCE)
    scope = metadata("instance/compute/resourceId", INSTANCE).rpartition("/virtualMachines/")[0]
    url = f"{base}{scope}/virtualMachineScaleSets/{group}/delete?api-version={VERSION}"
    request = urllib.request.Request(
        url,
        data=json.dumps({"instanceIds": [name]}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    try:
        send(request, token(str(record["identity"]), "https://management.azure.com/"), ANSWER_S)
    except Refused as error:
        if error.status == 404:  # it is being deleted, or its scale set is
            return
        if error.status in (400, 403):
            raise Hopeless(f"this machine may not leave its scale set: {error}") from error
        raise
