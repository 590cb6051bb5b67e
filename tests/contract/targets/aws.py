"""Stand-in for the target `aws`: EC2 instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import boto3
import pytest

from cloudgpu.provisioners import Provisioner
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.aws.process import Leftovers
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error

from .standin import Refusals, Standin

ZONES = ("use1-az1", "use1-az2", "use1-az3", "use1-az4", "use1-az5", "use1-az6")
STRANGER = "AKIASTRANGER"
BUCKET = "jobs-of-tests"


class AwsStandin(Standin):
    target, region, zone = "aws", "us-east-1", "use1-az1"
    machine_type, job_dir = "g4dn.xlarge", f"s3://{BUCKET}/jobs"
    revives, taken = True, "Server.SpotInstanceTermination"
    start, calls_of_launch, calls_of_look = "RunInstances", 16, 2
    zones = ZONES
    reads = "Get*|List*|Describe*|Head*|Simulate*"
    endpoint = ("AWS_ENDPOINT_URL", "http://aws.example.com")
    refusals: ClassVar[Refusals] = {
        "quota": error("VolumeLimitExceeded", 400),
        "capacity": error("InsufficientInstanceCapacity", 500),
        "auth": error("UnauthorizedOperation", 403),
        "expired": error("ExpiredToken", 400),
        "invalid": error("InvalidParameterValue", 400),
        "not_offered": error("Unsupported", 400, "The requested configuration is currently not supported."),
        "throttled": error("RequestLimitExceeded", 503),
        "transient": error("InternalError", 500),
    }

    def __enter__(self) -> Self:
        self.aws = self.stack.enter_context(Aws())
        self.control = self.aws.control
        self.environ |= self.aws.environ
        self.session = boto3.Session(KEY, "secret", region_name=self.region)
        self.ec2, self.iam = self.client("ec2"), self.client("iam")
        self.remains = Leftovers(self.aws.url)
        listed = self.ec2.describe_availability_zones()["AvailabilityZones"]
        self.names = {one["ZoneId"]: one["ZoneName"] for one in listed}
        return self

    def client(self, service: str) -> Any:
        """Return a boto3 client of the stand-in."""
        return self.session.client(service, endpoint_url=self.aws.url)  # type: ignore[call-overload]

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return AwsProvisioner(self.session, clock or FastClock())

    def of_settings(self) -> Provisioner:
        return AwsProvisioner(clock=FastClock())

    def alive(self) -> int:
        return len(self.aws.control.instances(running=True))

    def started(self) -> int:
        return len(self.aws.control.instances())

    def left(self) -> object:
        return self.remains.find()

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        ec2, iam = self.ec2, self.iam
        found: dict[str, list[dict[str, str]]] = {}
        for reservation in ec2.describe_instances()["Reservations"]:
            found |= {one["InstanceId"]: one.get("Tags", []) for one in reservation["Instances"]}
        found |= {one["VolumeId"]: one.get("Tags", []) for one in ec2.describe_volumes()["Volumes"]}
        interfaces = ec2.describe_network_interfaces()["NetworkInterfaces"]
        found |= {one["NetworkInterfaceId"]: one["TagSet"] for one in interfaces}
        groups = ec2.describe_security_groups()["SecurityGroups"]
        found |= {one["GroupName"]: one.get("Tags", []) for one in groups if one["GroupName"] != "default"}
        for role in self.remains.find()["roles"]:
            found[role] = iam.list_role_tags(RoleName=role)["Tags"]
        for profile in self.remains.find()["profiles"]:
            tags = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Tags"]
            found[f"profile {profile}"] = tags
        return {name: {one["Key"]: one["Value"] for one in tags} for name, tags in found.items()}

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        self.aws.control.set_capacity(self.machine_type, self.names[zone or ZONES[0]], market, places)

    def limit_quota(self, nodes: int) -> None:
        for code in ("L-DB2E81BA", "L-3819A6DF"):
            self.aws.control.set_quota(self.region, code, 4 * nodes)

    def delay_listings(self) -> None:
        self.aws.control.set_lag(600.0)

    def show_listings(self) -> None:
        self.aws.control.set_lag(0.0)

    def end_slowly(self) -> None:
        self.aws.control.set_stopping(0.3)

    def crash(self, machine: str) -> None:
        self.aws.control.crash(machine)

    def preempt(self, machine: str) -> None:
        self.aws.control.interrupt(machine, seconds=0)

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        self.aws.control.assign_key(STRANGER, "222222222222")
        return AwsProvisioner(boto3.Session(STRANGER, "secret", region_name=self.region), FastClock())

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        patch.delenv("AWS_ACCESS_KEY_ID")

    def reserve(self, places: int) -> None:
        self.aws.control.reserve(self.machine_type, self.names[ZONES[0]], places)
