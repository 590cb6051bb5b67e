"""The managed instance group that a machine of Compute Engine is in.

Needs `compute.instanceGroupManagers.update` on the group and `compute.instances.delete` on the instance, in a role of
the machine's service account ("instanceGroupManagers.deleteInstances", IAM permissions of the API reference).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_gs import PASSING, metadata, send
    from .common import Hopeless, Refused
else:
    from bucket_gs import PASSING, metadata, send
    from common import Hopeless, Refused

ANSWER_S = 15.0


def leave(record: dict[str, Any]) -> None:
    """Have this machine deleted, and the group be smaller by it. Accepted is enough. Raises OSError, Hopeless."""
    # `projects/NUMBER/zones|regions/PLACE/instanceGroupManagers/NAME`: the group writes it on what it makes.
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
    except Refused as error:
        if error.status == 404:  # the group is being deleted, with all that is in it
            return
        if error.status < 500 and error.status != 429 and error.code not in PASSING:
            raise Hopeless(f"this machine may not leave its group: {error}") from error
        raise
