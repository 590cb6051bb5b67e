"""The target aws over the wire: boto3 against the stand-in of tests/standins/aws, with faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import boto3
import pytest

from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.tests.standins.aws import Aws

OWNER = Owner("cloudgpu-tester")
BUCKET = "jobs-of-tests"


class FastClock:
    """Real time, but pauses take a fiftieth of what they count."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 50)
        self._skipped += seconds * 49 / 50


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch) -> Aws:
    server.control.reset()
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def provisioner(aws: Aws) -> AwsProvisioner:
    return AwsProvisioner(clock=FastClock())


def node(name: str = "worker-0.1", machine_type: str = "g4dn.xlarge", rank: int = 0) -> NodeRequest:
    role, _, rest = name.rpartition("-")
    return NodeRequest(name, role, int(rest.partition(".")[0]), rank, machine_type, "T4", Fraction(1))


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef0123456789abcdef",
        owner=OWNER,
        job_dir=f"s3://{BUCKET}/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-east-1",
        zone="use1-az1",
        market="on-demand",
        disk_gb=100.0,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def ec2(region: str = "us-east-1") -> Any:
    return boto3.client("ec2", region_name=region)


def left(region: str = "us-east-1") -> dict[str, list[str]]:
    """What there is of ours."""
    client, iam = ec2(region), boto3.client("iam")
    alive = [
        instance["InstanceId"]
        for reservation in client.describe_instances()["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] != "terminated"
    ]
    found = {
        "instances": alive,
        "volumes": [volume["VolumeId"] for volume in client.describe_volumes()["Volumes"]],
        "interfaces": [one["NetworkInterfaceId"] for one in client.describe_network_interfaces()["NetworkInterfaces"]],
        "groups": [
            group["GroupName"]
            for group in client.describe_security_groups()["SecurityGroups"]
            if group["GroupName"] != "default"
        ],
        "roles": [role["RoleName"] for role in iam.list_roles(PathPrefix="/cloudgpu/")["Roles"]],
        "profiles": [
            profile["InstanceProfileName"]
            for profile in iam.list_instance_profiles(PathPrefix="/cloudgpu/")["InstanceProfiles"]
        ],
        "placement": [one["GroupName"] for one in client.describe_placement_groups()["PlacementGroups"]],
    }
    return {kind: names for kind, names in found.items() if names}


def test_a_machine_is_launched_watched_and_removed_with_all_that_was_made_for_it(provisioner: AwsProvisioner) -> None:
    allocation = provisioner.launch(request())
    assert set(allocation.machines) == {"worker-0.1"}
    [state] = provisioner.observe(allocation)
    assert (state.phase, state.detail, state.taken) == ("running", "", False)
    assert set(left()) == {"instances", "volumes", "interfaces", "groups", "roles", "profiles"}
    provisioner.terminate(allocation)
    [state] = provisioner.observe(allocation)
    assert state.phase == "gone" and "Client.UserInitiatedShutdown" in state.detail
    assert left() == {}
