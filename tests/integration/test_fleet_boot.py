"""Boot tests of a fleet's machine: it runs jobs and leaves its Auto Scaling group when idle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.jobspecs.targets import FLEET_CLOUDS, WITH_TABLES
from cloudgpu.protocol.fleet.records import FLEET_KEY, Settings
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import AgentFile
from cloudgpu.provisioners.boot import BootRecord, fleet_boot
from cloudgpu.provisioners.boot.files import boot_files
from cloudgpu.provisioners.boot.record import boot_of
from cloudgpu.provisioners.cluster import files
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.agent_files import own_agent_file
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.fleets import FleetJob, Machines
from cloudgpu.tests.standins.machine import Machine
from cloudgpu.tests.standins.metadata_aws import AwsMetadata

pytestmark = pytest.mark.timeout(600)

ROLE = {"AccessKeyId": "ASIAROLE", "SecretAccessKey": "rolesecret", "Token": "roletoken"}
LEAVING = "TerminateInstanceInAutoScalingGroup"
PLACES = {
    "aws": ("us-east-1", "s3://bucket/jobs/clusters/big", None),
    "gcp": ("us-central1", "gs://bucket/jobs/clusters/big", None),
    "azure": ("eastus", "az://jobs@account/runs/clusters/big", "client"),
}


def spec(cloud: str = "aws", **more: Any) -> FleetSpec:
    values = {"name": "big", "cloud": cloud, "region": PLACES[cloud][0], "machine_type": "t", "accelerator": None}
    return FleetSpec.model_validate({**values, **more})


def boot_text(cloud: str, **more: Any) -> str:
    _, fleet_dir, identity = PLACES[cloud]
    agent = AgentFile(f"agent/{'a' * 64}.pyz", "a" * 64, "x86_64")
    return fleet_boot(spec(cloud, **more), fleet_dir, agent, identity=identity)


@pytest.mark.parametrize("cloud", list(PLACES))
def test_all_machines_of_a_template_boot_the_same(cloud: str) -> None:
    """Settings that may change without a new template (FleetSpec.template_hash) do not change the user data."""
    text = boot_text(cloud)
    assert text == boot_text(cloud, size=8, idle_s=60, zones=("a",), heal=False)
    assert text != boot_text(cloud, lifetime_s=3_600)
    assert len(text.encode()) < (boot_of(cloud).max_bytes or 65_536) * 7 / 8


def test_every_cloud_of_fleets_has_a_group() -> None:
    booting = {name for name in WITH_TABLES if boot_of(name).group}
    assert booting == set(PLACES) == set(FLEET_CLOUDS)
    with pytest.raises(ValueError, match="no node"):
        BootRecord("s3://bucket/x", "", 0, "", "", "agent/a", "a", "us-east-1", "aws")


class World:
    """A bucket, an Auto Scaling group of one machine, and that machine."""

    def __init__(self, folder: Path, store: s3.S3, imds: AwsMetadata, aws: Aws) -> None:
        self.store, self.aws, self.imds = store, aws, imds
        self.machines = Machines(folder, "s3://bucket/jobs/clusters/big", store.environment)
        self.machines.set(silent_s=60.0, look_s=0.5, idle_s=1.0)
        self.folder = folder
        self.scaling: Any = boto3.client("autoscaling", endpoint_url=aws.url, region_name="us-east-1")
        self.ec2: Any = boto3.client("ec2", endpoint_url=aws.url, region_name="us-east-1")
        self._make_group()
        imds.values["instance-id"] = self.instance = self.group()["Instances"][0]["InstanceId"]
        imds.values["iam/security-credentials/"] = "role"
        imds.values["iam/security-credentials/role"] = json.dumps({**ROLE, "Expiration": "2099-01-01T00:00:00Z"})
        self.machine: Machine | None = None

    def _make_group(self) -> None:
        image = self.ec2.describe_images()["Images"][0]["ImageId"]
        of = {"ImageId": image, "InstanceType": "t3.micro"}
        self.ec2.create_launch_template(LaunchTemplateName="big", LaunchTemplateData=of)
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName="big",
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            VPCZoneIdentifier=self.ec2.describe_subnets()["Subnets"][0]["SubnetId"],
            LaunchTemplate={"LaunchTemplateName": "big", "Version": "1"},
        )

    def group(self) -> Any:
        return self.scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]

    def boot(self, agent: AgentFile, *, one_job: bool = False) -> Machine:
        text = fleet_boot(
            spec(idle_s=1, lifetime_s=3_600),
            self.machines.url,
            agent,
            endpoint=self.store.environment["AWS_ENDPOINT_URL"],
            api_endpoint=self.aws.url,
            one_job=one_job,
        )
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.url}
        self.machine = Machine(self.folder / "machine", text, environ)
        self.machine.power_on()
        assert self.machine.booted.wait(180)
        return self.machine

    def until(self, met: Callable[[], object], limit_s: float = 180.0) -> None:
        end = time.monotonic() + limit_s
        while not met():
            assert time.monotonic() < end, self.machine and self.machine.console
            time.sleep(0.1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with s3.running() as store, AwsMetadata() as imds, Aws() as aws:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        made = World(tmp_path, store, imds, aws)
        yield made
        if made.machine is not None:
            made.machine.dispose()


@pytest.fixture
def agent(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentFile:
    """Upload the agent file as `cluster up` does."""
    built = own_agent_file(tmp_path / "home")
    JobDir(world.machines.url).upload_file(f"agent/{built.sha256}.pyz", built.path, lambda _done, _all: None)
    return AgentFile(f"agent/{built.sha256}.pyz", built.sha256, "x86_64")


def test_a_machine_does_a_job_and_leaves_for_good(world: World, agent: AgentFile) -> None:
    job = FleetJob(world.machines, "python -c 'import sys; print(sys.prefix != sys.base_prefix)'", agent=agent)
    job.submit()
    machine = world.boot(agent)
    world.until(lambda: not machine.is_on)
    assert machine.trouble == []
    assert job.seen.place("worker-0").outcome == "succeeded", machine.console
    assert job.seen.place("worker-0").machine.startswith(f"{world.instance}-")
    assert "True" in job.log(), "the job has an environment of its own"
    assert world.group()["DesiredCapacity"] == 0
    states = world.ec2.describe_instances(InstanceIds=[world.instance])["Reservations"][0]["Instances"][0]["State"]
    assert states["Name"] == "terminated"
    assert world.machines.view().alive == []
    (asked,) = world.aws.control.calls(LEAVING)
    assert asked.params["ShouldDecrementDesiredCapacity"] == "true"


def test_one_that_may_not_leave_stays_and_works(world: World, agent: AgentFile) -> None:
    world.aws.control.fail(LEAVING, error("AccessDenied", 403))
    machine = world.boot(agent)
    world.until(lambda: "It stays, and does jobs" in machine.console)
    job = FleetJob(world.machines, "echo later", agent=agent)
    job.submit()
    world.until(lambda: job.seen.end is not None)
    assert machine.is_on
    assert machine.trouble == []
    assert job.seen.place("worker-0").outcome == "succeeded"


def test_one_of_a_jobs_own_group_leaves_at_once_and_asks_until_it_may(world: World, agent: AgentFile) -> None:
    world.machines.set(look_s=0.5)  # no idle_s: a machine with one_job leaves without it
    world.aws.control.fail(LEAVING, error("AccessDenied", 403), times=1)
    machine = world.boot(agent, one_job=True)
    world.until(lambda: not machine.is_on)
    assert "It asks again" in machine.console
    assert machine.trouble == []
    assert world.group()["DesiredCapacity"] == 0
    assert len(world.aws.control.calls(LEAVING)) == 2


@pytest.mark.parametrize(("failed", "left", "hides"), [(0, 1, False), (7, 1, False), (7, 1, True), (8, 0, True)])
def test_one_that_cannot_be_used_is_replaced_so_often(world: World, failed: int, left: int, hides: bool) -> None:
    """The agent file is missing. `hides`: S3 answers 403 instead of 404, as for the infra stack's role, which may not
    list the whole bucket."""
    folder = JobDir(world.machines.url)
    if hides:
        world.store.fail("GET", f"failed/{failed}", status=403, code="AccessDenied")
    for number in range(failed):
        folder.put(f"failed/{number}", b"before")
    machine = world.boot(AgentFile(f"agent/{'a' * 64}.pyz", "a" * 64, "x86_64"), one_job=True)
    world.until(lambda: not machine.is_on)
    assert "this machine cannot be used" in machine.console
    assert world.group()["DesiredCapacity"] == left
    assert len(world.aws.control.calls(LEAVING)) == 1 - left
    assert folder.exists("failed/8") is False
    assert folder.exists(f"failed/{failed}") is bool(left)


def test_the_signature_is_botocores(tmp_path: Path) -> None:
    """Checked for a request with a body to another service than S3."""
    region, fleet_dir, _ = PLACES["aws"]
    record = BootRecord(fleet_dir, "", 0, "", "", "agent/a", "a", region, "aws", fleet="big")
    for name, data in boot_files(record).items():
        (tmp_path / name).write_bytes(data)
    program = (
        "import json, urllib.request, bucket_s3 as bucket\n"
        f"bucket.credentials = lambda: {ROLE!r}\n"
        "asked = urllib.request.Request('https://autoscaling.us-east-1.amazonaws.com/', data=b'A=1', "
        "headers={'content-type': 'text/x'}, method='POST')\n"
        "print(json.dumps(dict(bucket.sign(asked, b'A=1', 'autoscaling', 'us-east-1', 1700000000.0).header_items())))"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    sent = {name.lower(): value for name, value in json.loads(done.stdout).items()}
    signer = SigV4Auth(Credentials(*ROLE.values()), "autoscaling", "us-east-1")
    claimed = sent.pop("authorization")
    again = AWSRequest("POST", "https://autoscaling.us-east-1.amazonaws.com/", headers=sent, data=b"A=1")
    again.context["timestamp"] = sent["x-amz-date"]
    right = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert claimed.endswith(f"Signature={right}")
    assert sent["x-amz-date"] == "20231114T221320Z"


def test_what_machines_find_is_put_there_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLOUDGPU_AGENT_PYTHONS", f"{sys.version_info.major}.{sys.version_info.minor}")
    fleet = spec(machine_type="g6.xlarge", accelerator="L4", gpus="1", idle_s=90)
    first = files.put_agent(fleet, world.machines.url)
    before = len(world.store.requests)
    assert files.put_agent(fleet, world.machines.url) == first
    assert {request.method for request in world.store.requests[before:]} == {"HEAD"}
    files.put_settings(fleet, world.machines.url)
    assert Settings.from_bytes(JobDir(world.machines.url).get(FLEET_KEY)).idle_s == 90
