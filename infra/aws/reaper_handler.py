"""Lambda handler of the orphan reaper: one file that needs only the boto3 that Lambda provides.

It cleans up billable resources whose cloudgpu-expires tag is in the past: scales Auto Scaling groups to zero,
terminates machines, deletes unattached volumes. Its role (reaper.py) prevents other deletions. An error of one resource
is logged and does not stop the others; the next run retries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

EXPIRES = "cloudgpu-expires"
OWNER = "cloudgpu-owner"
GROUP = "aws:autoscaling:groupName"
"""Tag that Auto Scaling sets on a group's machines: a machine that is terminated alone would be replaced."""
_ALIVE = ["pending", "running", "stopping", "stopped"]


def handler(event: Mapping[str, Any], _context: object) -> dict[str, list[str]]:
    """Return the ids of the deleted resources, by kind. `event`: {"now": epoch seconds} overrides the clock, for
    testing.

    Raises RuntimeError at the end if any deletion failed: alarms watch the function's errors.
    """
    import boto3

    now = float(event.get("now") or time.time())
    ended: dict[str, list[str]] = {"groups": [], "machines": [], "volumes": []}
    failed: list[str] = []
    ec2, scaling = boto3.client("ec2"), boto3.client("autoscaling")
    todo = (
        ("groups", _groups(scaling, now), lambda name: _empty(scaling, name)),
        ("machines", _machines(ec2, now), lambda name: ec2.terminate_instances(InstanceIds=[name])),
        ("volumes", _volumes(ec2, now), lambda name: ec2.delete_volume(VolumeId=name)),
    )
    for kind, names, end in todo:
        for name in names:
            try:
                end(name)
            except Exception as error:  # noqa: BLE001 - boto3 raises many types; others may succeed
                failed.append(f"{name}: {error}")
            else:
                ended[kind].append(name)
    print(json.dumps({"ended": ended, "failed": failed}))
    if failed:
        raise RuntimeError("; ".join(failed))
    return ended


def _groups(scaling: Any, now: float) -> Iterator[str]:  # boto3's clients are untyped
    """Yield the names of expired groups that have, or could start, machines."""
    for page in scaling.get_paginator("describe_auto_scaling_groups").paginate():
        for group in page["AutoScalingGroups"]:
            if is_expired(group["Tags"], now) and (group["MaxSize"] or group["Instances"]):
                yield group["AutoScalingGroupName"]


def _empty(scaling: Any, name: str) -> None:
    scaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, MaxSize=0, DesiredCapacity=0)


def _machines(ec2: Any, now: float) -> Iterator[str]:
    where = [{"Name": "tag-key", "Values": [EXPIRES]}, {"Name": "instance-state-name", "Values": _ALIVE}]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=where):
        for reservation in page["Reservations"]:
            for machine in reservation["Instances"]:
                is_of_group = any(tag["Key"] == GROUP for tag in machine["Tags"])
                if is_expired(machine["Tags"], now) and not is_of_group:
                    yield machine["InstanceId"]


def _volumes(ec2: Any, now: float) -> Iterator[str]:
    where = [{"Name": "tag-key", "Values": [EXPIRES]}, {"Name": "status", "Values": ["available"]}]
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=where):
        for volume in page["Volumes"]:
            if is_expired(volume["Tags"], now):
                yield volume["VolumeId"]


def is_expired(tags: list[dict[str, str]], now: float) -> bool:
    """Return True if the resource is tagged by cloudgpu and expired; an unparsable expiry counts as not expired."""
    values = {tag["Key"]: tag["Value"] for tag in tags}
    text = values.get(EXPIRES, "")
    return values.get(OWNER, "").startswith("cloudgpu-") and text.isascii() and text.isdecimal() and float(text) <= now
