"""What the orphan reaper runs: a Lambda function of one file, for which Lambda has boto3 and nothing else is needed.

It ends what bills and is tagged cloudgpu-expires with a time that has passed: Auto Scaling groups are brought to zero,
machines terminated, volumes that are attached to nothing deleted. What its role does not allow (reaper.py) it cannot do
by mistake. Each thing is by itself: what is refused is told, and the rest goes on; the next run tries again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

EXPIRES = "cloudgpu-expires"
OWNER = "cloudgpu-owner"
GROUP = "aws:autoscaling:groupName"
"""On the machines of a group, by Auto Scaling itself: it would replace one that is terminated alone."""
_ALIVE = ["pending", "running", "stopping", "stopped"]


def handler(event: Mapping[str, Any], _context: object) -> dict[str, list[str]]:
    """Ids of what was ended. `event`: {"now": epoch seconds} instead of the clock's time, for who tries it out.

    Raises RuntimeError at the end if something could not be: the function's errors are what alarms look at.
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
            except Exception as error:  # noqa: BLE001 - boto3's, of which there are many; the next one may go
                failed.append(f"{name}: {error}")
            else:
                ended[kind].append(name)
    print(json.dumps({"ended": ended, "failed": failed}))
    if failed:
        raise RuntimeError("; ".join(failed))
    return ended


def _groups(scaling: Any, now: float) -> Iterator[str]:  # boto3's clients have no types of their own
    """Expired groups that have, or would get, machines."""
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
    """Whether it is ours, and its time has passed. A time that nobody can read has not."""
    values = {tag["Key"]: tag["Value"] for tag in tags}
    text = values.get(EXPIRES, "")
    return values.get(OWNER, "").startswith("cloudgpu-") and text.isascii() and text.isdecimal() and float(text) <= now
