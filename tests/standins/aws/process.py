"""The stand-in as a separate process that ends with its test, and a finder of leftover resources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..program import started
from .control import AwsControl

AUDITOR = "AKIACLOUDGPUSLOOKERS"
"""Access key of Leftovers, which distinguishes its calls from the submitter's."""


@contextlib.contextmanager
def aws_process(*, boot: bool = True) -> Iterator[AwsControl]:
    """Run the stand-in; yield its control. The stand-in ends when this process does, even if that is killed."""
    with started("cloudgpu.tests.standins.aws", boot=boot) as url:
        yield AwsControl(url)


class Leftovers:
    """Finder of leftover resources in a region, through the API as a user would."""

    def __init__(self, url: str, region: str = "us-east-1") -> None:
        import boto3

        session = boto3.session.Session(AUDITOR, "secret", region_name=region)
        self._ec2: Any = session.client("ec2", endpoint_url=url)
        self._iam: Any = session.client("iam", endpoint_url=url)
        self._scaling: Any = session.client("autoscaling", endpoint_url=url)
        self._known: frozenset[str] = frozenset()

    def ignore_existing(self) -> None:
        """Ignore the existing resources, such as a stack's, from now on."""
        self._known = frozenset(name for names in self._find().values() for name in names)

    def find(self) -> dict[str, list[str]]:
        """Return ids by kind, without empty kinds."""
        there = {kind: [name for name in names if name not in self._known] for kind, names in self._find().items()}
        return {kind: names for kind, names in there.items() if names}

    def _find(self) -> dict[str, list[str]]:
        ec2, iam, scaling = self._ec2, self._iam, self._scaling
        states = ["pending", "running", "shutting-down", "stopping", "stopped"]
        alive = [{"Name": "instance-state-name", "Values": states}]
        there = ec2.describe_instances(Filters=alive)["Reservations"]
        return {
            "instances": [one["InstanceId"] for reservation in there for one in reservation["Instances"]],
            "volumes": [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]],
            "interfaces": [one["NetworkInterfaceId"] for one in ec2.describe_network_interfaces()["NetworkInterfaces"]],
            "spot requests": [
                one["SpotInstanceRequestId"]
                for one in ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
                if one["State"] in ("open", "active")
            ],
            "groups": [
                one["GroupName"]
                for one in ec2.describe_security_groups()["SecurityGroups"]
                if one["GroupName"] != "default"
            ],
            "scaling groups": [
                one["AutoScalingGroupName"] for one in scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
            ],
            "templates": [one["LaunchTemplateName"] for one in ec2.describe_launch_templates()["LaunchTemplates"]],
            "placement groups": [one["GroupName"] for one in ec2.describe_placement_groups()["PlacementGroups"]],
            "roles": [one["RoleName"] for one in iam.list_roles()["Roles"]],
            "profiles": [one["InstanceProfileName"] for one in iam.list_instance_profiles()["InstanceProfiles"]],
        }
