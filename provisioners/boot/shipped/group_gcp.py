"""Leave the managed instance group of a Compute Engine machine.

A role of the machine's service account needs `compute.instanceGroupManagers.update` on the group and
`compute.instances.delete` on the instance ("instanceGroupManagers.deleteInstances", IAM permissions of the API
reference).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_gs import PASSING, metadata, send
    from .common import ErrorResponse, PermanentError
else:
    from bucket_gs import PASSING, metadata, send
    from common import ErrorResponse, PermanentError

ANSWER_S = 15.0


def leave(record: dict[str, Any]) -> None:
    """Request that this machine is deleted and its group's size decreased. Raises OSError, PermanentError.

    Returns when the request is accepted."""
    # `projects/NUMBER/zones|regions/PLACE/instanceGroupManagers/NAME`: the group sets it on its instances.
    group = metadata("instance/attributes/created-by").strip()
    name, project = metadata("instance/name"), metadata("project/project-id")
    zone = metadata("instance/zone").rpartition("/")[2]
    base = (record["api_endpoint"] or "https://compute.googleapis.com").rstrip("/") + "/compute/v1"
    place = "/".join(group.split("/")[2:])
    own = f"projects/{project}/zones/{zone}/instances/{name}"
    body = json.dumps({"instances": [own], "skipInstancesOnValidationError": True}).encode()
    headers = {"content-type": "application/json"}
    try:
        send("POST", f"{base}/projects/{project}/{place}/deleteInstances", body, headers, ANSWER_S)
    except ErrorResponse as error:
        if error.status == 404:  # the group and its machines are being deleted
            return
        if error.status < 500 and error.status != 429 and error.code not in PASSING:
            raise PermanentError(f"this machine may not leave its group: {error}") from error
        raise
