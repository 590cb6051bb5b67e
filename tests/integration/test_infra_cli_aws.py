"""`cloudgpu infra` and `cloudgpu cluster` on AWS, from the command line to a job's end on a cluster's machine.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. The cloud is AWS's stand-in,
over TLS, because the stack's bucket refuses requests without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudgpu.control.jobs import list_jobs
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.process import Leftovers
from cloudgpu.tests.standins.commands import Commands, in_a_process, stacks_can_be_made
from cloudgpu.tests.standins.local_jobs import state_directory
from cloudgpu.tests.standins.pulumi import aws as aws_provider
from cloudgpu.tests.standins.tls import make_certificate

pytestmark = pytest.mark.timeout(900)

REGION = "us-east-1"
STACKS = "stacks-of-a-team"
BOUNDARY = "arn:aws:iam::123456789012:policy/cloudgpu-machines"
PLACE = ("--cloud", "aws", "--region", REGION)
CLUSTER = """name: big
resources: {accelerator: "T4:1", cloud: aws, region: us-east-1, nodes: 1}
limits: {price: 5 USD/h}
"""
IN_A_BLOCK = """name: big
resources: {machine_type: p5.4xlarge, cloud: aws, region: us-east-1, nodes: 1, market: reservation}
"""


class Desk(Commands):
    """Runs commands, and gives access to the account that they change."""

    def __init__(self, aws: Aws, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capsys, folder)
        self.aws, self.remains = aws.control, Leftovers(aws.url)
        self.s3: Any = boto3.client("s3")
        self.backend = (
            f"s3://{STACKS}/team?region={REGION}&endpoint={aws.environ['AWS_ENDPOINT_URL']}&s3ForcePathStyle=true"
        )
        self.s3.create_bucket(Bucket=STACKS)

    def boundaries(self) -> set[str]:
        """Return the permissions boundaries of all roles of cloudgpu; "" means a role without one."""
        iam: Any = boto3.client("iam")
        roles = [iam.get_role(RoleName=one["RoleName"])["Role"] for one in iam.list_roles()["Roles"]]
        ours = [role for role in roles if role["Path"].startswith("/cloudgpu/")]
        return {role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "") for role in ours}

    def machines(self) -> int:
        return len(self.aws.instances(running=True))


@pytest.fixture
def desk(
    engine_kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Iterator[Desk]:
    """Set up a desk; the parameter decides whether machines boot."""
    with Aws(boot=getattr(request, "param", True), certificate=make_certificate(tmp_path)) as aws:
        for name, value in aws.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        with stacks_can_be_made(engine_kind, aws_provider.provider(), tmp_path, monkeypatch):
            yield Desk(aws, capsys, tmp_path)


@pytest.mark.on_engine
def test_a_job_on_a_cluster_from_nothing_to_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stacks are in a bucket that a team shares."""
    monkeypatch.setenv("CLOUDGPU_INFRA_BACKEND", desk.backend)
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    with state_directory(desk.folder / "home", monkeypatch):
        seen = desk.well("infra", "preview", *PLACE, "--json").json
        assert set(seen["counts"]) == {"create"}
        assert desk.remains.find() == {}
        with monkeypatch.context() as shell:
            shell.setenv("CLOUDGPU_AWS_BOUNDARY", BOUNDARY)
            made = desk.well("infra", "up", *PLACE, "--yes", "--json").json
        assert made["counts"] == seen["counts"]
        assert desk.boundaries() == {BOUNDARY}, "of every role, the machines' and the reaper's"
        again = desk.well("infra", "up", *PLACE, "--json").json
        assert (again["counts"], desk.boundaries()) == ({}, {BOUNDARY}), "kept by a shell that names none"
        known = infra_outputs.load("aws", REGION)
        assert known is not None
        bucket = known.job_dir.removeprefix("s3://").removesuffix("/jobs")
        assert "aws:SecureTransport" in desk.s3.get_bucket_policy(Bucket=bucket)["Policy"]

        with desk.as_colleague():
            status = desk.well("infra", "status", *PLACE, "--backend", desk.backend, "--json").json
            assert status["infrastructure"] == known.to_json()

        file = desk.file("cluster.yaml", CLUSTER)
        up = desk.well("cluster", "up", file, "--yes", "--json").json["cluster"]
        assert (up["fleet"]["size"], up["fleet_dir"]) == (1, f"{known.job_dir}/fleets/big")
        job = desk.file("code/job.yaml", "name: turn\nresources: {accelerator: T4}\nrun: echo it ran\n")
        done = in_a_process("submit", job, "--cluster", "big")
        assert done.code == 0, done.err
        assert "it ran" in done.out.splitlines()
        assert [one.state for one in list_jobs()] == ["succeeded"]
        assert [one.trouble for one in desk.aws.instances()] == [[]]

        assert desk.machines() == 1
        assert desk.well("cluster", "scale", "big", "2", "--yes", "--json").json["cluster"]["fleet"]["size"] == 2
        desk.until(lambda: desk.machines() == 2)
        desk.well("cluster", "scale", "big", "0", "--yes")
        desk.until(lambda: desk.machines() == 0)
        assert desk.run("infra", "down", *PLACE, "--yes").code == 4
        desk.well("cluster", "down", "big", "--yes")
        assert clusters.load_all() == []

        assert desk.s3.list_objects_v2(Bucket=bucket, Prefix="jobs/")["KeyCount"] > 0
        desk.well("infra", "down", *PLACE, "--yes", "--delete-bucket", "--yes-delete-bucket", bucket)
        assert infra_outputs.load_all() == []
        assert desk.remains.find() == {}
        assert [one["Name"] for one in desk.s3.list_buckets()["Buckets"]] == [STACKS]
        left = [one["Key"] for one in desk.s3.list_objects_v2(Bucket=STACKS)["Contents"]]
        assert not [key for key in left if key.endswith(".json")], "no stack, no lock, no history"


@pytest.mark.on_engine
@pytest.mark.parametrize("desk", [False], indirect=True)
def test_a_cluster_in_a_capacity_block_expires_with_it(desk: Desk) -> None:
    """The cluster's machines must save and leave before AWS terminates them, at a time that nothing on the machine
    announces."""
    desk.well("infra", "up", *PLACE, "--yes")
    block = desk.aws.reserve("p5.4xlarge", "us-east-1b", 1, end_s=7_200)

    def left() -> float:
        """Return the seconds until the cluster expires, after checking that its machines read the same expiry."""
        [known] = clusters.load_all()
        assert known.expires is not None
        assert Fleet(known.fleet_dir).view().settings.expires == known.expires
        return known.expires - time.time()

    file = desk.file("cluster.yaml", IN_A_BLOCK)
    up = desk.well("cluster", "up", file, "--yes", "--json")
    assert left() == pytest.approx(7_200 - 1_800, abs=120)
    assert f"the Capacity Block {block} ends its machines" in up.err
    assert desk.well("cluster", "up", file, "--json").json["counts"] == {}

    desk.aws.extend_block(block, 90_000)
    later = desk.well("cluster", "extend", "big", "never", "--yes", "--json")
    assert left() == pytest.approx(90_000 - 1_800, abs=120)
    assert (block in later.err, set(later.json["counts"])) == (True, {"update"})
    sooner = desk.well("cluster", "extend", "big", "2h", "--yes")
    assert left() == pytest.approx(7_200, abs=120)
    assert block not in sooner.err

    desk.aws.extend_block(block, -1)
    refused = desk.run("cluster", "extend", "big", "7d", "--yes")
    assert (refused.code, "the account has no active reservation" in refused.err) == (6, True)
    desk.well("cluster", "scale", "big", "0", "--yes")
    desk.until(lambda: desk.machines() == 0)
    other = desk.aws.reserve("p5.4xlarge", "us-east-1b", 1, end_s=10_800)
    again = desk.well("cluster", "scale", "big", "1", "--yes")
    assert left() == pytest.approx(7_200, abs=120)
    assert block not in again.err + str(clusters.load_all()[0])
    desk.until(lambda: desk.machines() == 1)
    assert other in desk.well("cluster", "extend", "big", "7d", "--yes").err
    desk.well("cluster", "down", "big", "--yes")
    assert desk.machines() == 0
