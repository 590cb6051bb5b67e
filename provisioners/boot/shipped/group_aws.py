"""Leave the Auto Scaling group of an EC2 machine.

The machine's role needs `autoscaling:TerminateInstanceInAutoScalingGroup` on the group.
"""

# ruff: noqa: S310 - all URLs are of Auto Scaling

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_s3 import metadata, sign
    from .common import ErrorResponse, PermanentError, ask
else:
    from bucket_s3 import metadata, sign
    from common import ErrorResponse, PermanentError, ask

VERSION = "2011-01-01"  # API version, as in botocore
PASSING = ("Throttling", "RequestLimitExceeded", "ScalingActivityInProgress", "ResourceContention")
WITHOUT = "No managed instance found"
"""Part of the API's error for an instance in no group: it has left already, or was never in one."""


def leave(record: dict[str, Any]) -> None:
    """Request that this machine is terminated and its group's size decreased. Raises OSError, PermanentError.

    Returns when the request is accepted."""
    region = record["region"]
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    host = (record["api_endpoint"] or f"https://autoscaling.{region}.{domain}").rstrip("/")
    words = {
        "Action": "TerminateInstanceInAutoScalingGroup",
        "Version": VERSION,
        "InstanceId": metadata("instance-id"),
        "ShouldDecrementDesiredCapacity": "true",
    }
    body = urllib.parse.urlencode(words).encode()
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = urllib.request.Request(f"{host}/", data=body, headers=headers, method="POST")
    try:
        ask(sign(request, body, "autoscaling", region, time.time()))
    except urllib.error.HTTPError as error:
        refused = ErrorResponse(error.code, error.read(65_536).decode(errors="replace"))
        if WITHOUT in str(refused):
            return
        if error.code < 500 and refused.code not in PASSING:
            raise PermanentError(f"this machine may not leave its group: {refused}") from error
        raise refused from error
