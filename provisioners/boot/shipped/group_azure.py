"""Leave the Flexible scale set of an Azure machine.

A role of the machine's identity needs `Microsoft.Compute/virtualMachineScaleSets/delete/action` on the scale set.
Unverified against a real account: that a Flexible scale set accepts the machines' names as instance ids.
"""

# ruff: noqa: S310 - all URLs are of Resource Manager

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_az import metadata, send, token
    from .common import ErrorResponse, PermanentError
else:
    from bucket_az import metadata, send, token
    from common import ErrorResponse, PermanentError

ANSWER_S = 15.0
INSTANCE = {"api-version": "2021-02-01", "format": "text"}
VERSION = "2024-07-01"


def leave(record: dict[str, Any]) -> None:
    """Request that this machine is deleted and its scale set's size decreased. Raises OSError, PermanentError.

    Returns when the request is accepted."""
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
    except ErrorResponse as error:
        if error.status == 404:  # the machine or its scale set is being deleted
            return
        if error.status in (400, 403):
            raise PermanentError(f"this machine may not leave its scale set: {error}") from error
        raise
