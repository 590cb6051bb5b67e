"""Dedicated machine groups of jobs, on any cloud: their preparation and the states of their nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.errors import SubmitError
from cloudgpu.control.submit.job_group_offers import with_groups
from cloudgpu.control.submit.submittable_offers import usable_offers
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer, Plan
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import FLEET_KEY, Settings, member_key, order_key
from cloudgpu.protocol.fleet.view import BOOT_S
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks import job_groups
from cloudgpu.provisioners.stacks.job_groups import GroupState
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.control import make_offer
from cloudgpu.tests.standins.fleets import FleetFolder

BELOW = "s3://bucket/jobs"
AGENT = AgentFile(f"agent/{'a' * 64}.pyz", "a" * 64, "x86_64")


def node(index: int, machine_type: str = "g6.xlarge") -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, "L4", Fraction(1))


REQUEST = LaunchRequest(
    job_id="it-1",
    attempt=2,
    token="0123456789abcdef" * 2,
    owner=Owner("me"),
    job_dir=f"{BELOW}/it-1",
    job_sha256="0",
    region="us-east-1",
    zone="use1-az1",
    market="spot",
    disk_gb=200.0,
    nodes=(node(0), node(1)),
    lifetime_s=3_600,
    expires=1e10,
    agent=AGENT,
    grouped=True,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))


def stack(region: str = "us-east-1", job_dir: str = BELOW) -> None:
    role = "arn:aws:iam::1:instance-profile/x"
    infra_outputs.save(Infrastructure("aws", region, "s", "me", "vpc-1", machine_role=role, job_dir=job_dir))


class TestPreparing:
    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
        with s3.running() as store:
            for name, value in {**store.environment, "AWS_DEFAULT_REGION": "us-east-1"}.items():
                monkeypatch.setenv(name, value)
            JobDir(REQUEST.job_dir).put(AGENT.key, b"the agent")
            yield store

    def test_the_folder_is_prepared_before_machines_start(self, store: s3.S3) -> None:
        stack()
        made = job_groups.prepare(REQUEST, "aws")
        assert made.fleet_dir == f"{BELOW}/it-1/fleets/0123456789abcdef"
        (one,) = Fleet(made.fleet_dir).view().orders
        assert one.order.nodes == ["worker-0.1", "worker-1.1"]
        assert (one.order.token, one.order.lifetime_s, one.order.job_dir) == (REQUEST.token, 3_600, REQUEST.job_dir)
        folder = JobDir(made.fleet_dir)
        assert folder.get(AGENT.key) == b"the agent"
        assert Settings.from_bytes(folder.get(FLEET_KEY)).expires == REQUEST.expires
        assert '\\"one_job\\": true' in made.boot
        fleet = made.fleet
        assert (fleet.name, fleet.size, fleet.market, fleet.disk_gb) == ("it-1-2", 2, "spot", 200.0)
        assert (fleet.zones, fleet.peers, fleet.count, fleet.accelerator) == (("use1-az1",), True, Fraction(1), "L4")
        assert fleet.lifetime_s is not None and fleet.lifetime_s > 3_600, "machines live to see their order's end"

    def test_preparing_is_idempotent(self, store: s3.S3) -> None:
        """Also if the order has ended meanwhile: machines that boot then leave."""
        stack()
        first = job_groups.prepare(REQUEST, "aws")
        allocation = job_groups.allocation(REQUEST, "aws", "group-1", first.fleet_dir)
        job_groups.end_order(allocation)
        assert job_groups.prepare(REQUEST, "aws") == first
        (one,) = Fleet(first.fleet_dir).view().orders
        assert one.end is not None

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"region": "us-west-2"}, "needs an infra stack.*infra up --cloud aws --region us-west-2"),
            ({"reads": ("s3://other/data",)}, "below s3://bucket/jobs only, not s3://other/data"),
            ({"writes": ("s3://bucket/elsewhere",)}, "not s3://bucket/elsewhere"),
            ({"job_dir": "s3://bucket/jobs2/it-1"}, "not s3://bucket/jobs2/it-1"),
            ({"agent": None}, "no agent file"),
            ({"agent": dataclasses.replace(AGENT, architecture="arm64")}, "is for arm64"),
            ({"nodes": (node(0), node(1, "g6.2xlarge"))}, "all machines of a group are alike"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything(self, store: s3.S3, change: dict[str, Any], why: str) -> None:
        stack()
        before = len(store.requests)
        with pytest.raises(ProvisionError, match=why) as caught:
            job_groups.prepare(dataclasses.replace(REQUEST, **change), "aws")
        assert caught.value.error_class == "invalid"
        assert len(store.requests) == before


class TestStates:
    """States of a group whose folder is on this computer."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> FleetFolder:
        made = FleetFolder(tmp_path / "fleets" / "x")
        made.order(REQUEST.token, "worker-0.1", "worker-1.1")
        return made

    def states(self, folder: FleetFolder, machines: int, trouble: ProvisionError | None = None, **more: Any) -> Any:
        allocation = job_groups.allocation(REQUEST, "aws", "group-1", folder.fleet.url)
        state = GroupState(exists=True, machines=machines, launch_error=trouble)._replace(**more)
        return {one.node: one for one in job_groups.states(allocation, state)}

    def test_only_without_machines_nothing_is_paid(self, folder: FleetFolder) -> None:
        assert all(one.queued for one in self.states(folder, 0).values())
        booting = self.states(folder, 2)
        assert {(one.phase, one.queued) for one in booting.values()} == {("pending", False)}

    @pytest.mark.parametrize("left", ["beat.json", "failed.json"])
    def test_unusable_machines_are_paid_for(self, folder: FleetFolder, left: str) -> None:
        """The group has no machine between two unusable ones, but their cost still counts."""
        folder.machine("gone-1", silent=300.0)
        (folder.path / member_key("gone-1")).rename(folder.path / member_key("gone-1", left))
        assert not any(one.queued for one in self.states(folder, 0).values())

    def test_a_lost_one_is_waited_for(self, folder: FleetFolder) -> None:
        folder.machine("a")
        folder.machine("b", silent=200.0)
        folder.claim(1, "worker-0.1", "a")
        folder.claim(1, "worker-1.1", "b")
        seen = self.states(folder, 1)
        assert [seen["worker-0.1"].phase, seen["worker-1.1"].phase] == ["running", "pending"]
        assert seen["worker-1.1"].queued, "its silence tells nothing"
        trouble = ProvisionError("capacity", "none left", scope="zone")
        assert "none left" in self.states(folder, 1, trouble)["worker-1.1"].detail
        assert folder.fleet.view().orders[0].end is None, "it has begun: its group may get one in hours"

    @pytest.mark.parametrize("kind", ["capacity", "quota", "not_offered", "invalid", "auth"])
    def test_what_the_provider_refuses_goes_to_the_next_place(self, folder: FleetFolder, kind: Any) -> None:
        trouble = ProvisionError(kind, "no, says the provider", scope="region")
        for _ in range(2):
            seen = self.states(folder, 0, trouble).values()
            assert {one.phase for one in seen} == {"gone"}
            assert {one.refused for one in seen} == {trouble}
        end = folder.fleet.view().orders[0].end
        assert end is not None and end.reason == "no, says the provider", "a machine that comes after all leaves"

    @pytest.mark.parametrize("kind", ["throttled", "transient"])
    def test_what_passes_is_waited_for(self, folder: FleetFolder, kind: Any) -> None:
        seen = self.states(folder, 0, ProvisionError(kind, "not now"))
        assert {one.phase for one in seen.values()} == {"pending"}

    def test_half_of_a_group_is_given_up(self, folder: FleetFolder) -> None:
        folder.machine("a")
        folder.claim(1, "worker-0.1", "a")
        folder.age(order_key(1), BOOT_S + 60.0)
        seen = self.states(folder, 1)
        assert seen["worker-0.1"].phase == "running", "until it has let go"
        refused = seen["worker-1.1"].refused
        assert refused is not None and refused.error_class == "capacity"
        folder.free(1, "worker-0.1", "stopped")
        assert all(one.refused for one in self.states(folder, 1).values())

    def test_a_group_that_all_have_left_is_given_up(self, folder: FleetFolder) -> None:
        """The last machines leave a group whose machines are unusable. Without this the job would wait for ever."""
        seen = self.states(folder, 0, size=0).values()
        assert {one.refused.error_class for one in seen if one.refused} == {"capacity"}, "the next place is tried"
        assert {one.phase for one in seen} == {"gone"}

    @pytest.mark.parametrize("silent", [0.0, 200.0])
    def test_one_that_all_have_left_once_it_had_begun_was_lost(self, folder: FleetFolder, silent: float) -> None:
        folder.machine("a", silent=silent)
        folder.machine("b", silent=200.0)
        folder.claim(1, "worker-0.1", "a")
        folder.claim(1, "worker-1.1", "b")
        assert {one.phase for one in self.states(folder, 0, size=2).values()} <= {"pending", "running"}
        seen = self.states(folder, 0, size=0).values()
        assert {one.refused for one in seen} == {None}
        assert {one.phase for one in seen} == ({"gone"} if silent else {"running", "pending"}), "not while one is held"

    def test_a_job_that_has_ended_is_not_refused(self, folder: FleetFolder) -> None:
        folder.machine("a")
        for index in (0, 1):
            folder.claim(1, f"worker-{index}.1", "a")
            folder.free(1, f"worker-{index}.1", "succeeded")
        seen = self.states(folder, 0, ProvisionError("capacity", "none left"))
        assert {(one.phase, one.refused) for one in seen.values()} == {("gone", None)}

    def test_without_a_group_nothing_is_there(self, folder: FleetFolder) -> None:
        seen = self.states(folder, 0, exists=False)
        assert {one.phase for one in seen.values()} == {"gone"}
        for path in folder.path.iterdir():
            path.rename(folder.path.parent / path.name)
        assert {one.phase for one in self.states(folder, 2).values()} == {"gone"}

    def test_a_folder_that_cannot_be_read_keeps_no_group(self, caplog: pytest.LogCaptureFixture) -> None:
        for url in ("ftp://nowhere", None):
            details = {} if url is None else {job_groups.FLEET_DIR: url}
            allocation = job_groups.allocation(REQUEST, "aws", "group-1", "")
            job_groups.end_order(dataclasses.replace(allocation, details=details))
        assert "not told to stop" in caplog.text


AWS, WEST, GCP, LOCAL = (
    make_offer()._replace(cloud=cloud, region=region)
    for cloud, region in (("aws", "us-east-1"), ("aws", "us-west-2"), ("gcp", "us-central1"), ("local", "-"))
)
ON_CLUSTER = make_offer()._replace(cloud="cluster", region="big")


def spec(recover: str = "fleet", **more: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "it", "run": "x", "recover": recover, **more})


class TestPlans:
    def kept(self, job: JobSpec, *offers: Offer) -> list[Offer]:
        return list(with_groups(job, Plan(offers)).offers)

    def test_only_places_with_a_stack_are_left(self) -> None:
        assert self.kept(spec(), AWS, WEST, GCP) == []
        stack()
        assert self.kept(spec(), AWS, WEST, GCP) == [AWS]
        assert self.kept(spec(job_dir="s3://bucket/jobs"), AWS) == [AWS]
        assert self.kept(spec(job_dir="s3://bucket/elsewhere"), AWS) == []
        assert self.kept(spec(inputs={"data": "s3://bucket/jobs/data"}), AWS) == [AWS]
        assert self.kept(spec(inputs={"data": "s3://other/data"}), AWS) == []

    def test_others_are_not_looked_at(self) -> None:
        assert self.kept(spec("supervisor"), AWS, LOCAL) == [AWS, LOCAL]
        assert self.kept(spec(), ON_CLUSTER) == [ON_CLUSTER], "a cluster heals anyway"

    def test_it_is_said_once_for_all_regions(self) -> None:
        first, second = with_groups(spec(), Plan((WEST, AWS, GCP))).refusals
        assert (first.subject, second.cloud) == ("aws us-west-2 or us-east-1", "gcp")
        assert "infra up --cloud aws --region us-west-2" in first.allowed

    def test_a_named_cloud_is_not_left_out(self) -> None:
        stack()
        job = spec(job_dir="s3://bucket/jobs", resources={"cloud": ["aws", "gcp"]})
        with pytest.raises(
            SubmitError, match=r"gcp us-central1: recover: fleet needs an infra stack.*region us-central1"
        ):
            usable_offers(job, Plan((AWS, GCP)))
        with pytest.raises(SubmitError, match="gcp us-central1: recover: fleet needs"):
            usable_offers(job, with_groups(job, Plan((AWS, GCP))))

    def test_nothing_is_left(self) -> None:
        with pytest.raises(SubmitError, match="needs an infra stack"):
            usable_offers(spec(job_dir="s3://bucket/jobs"), Plan((AWS, WEST)))
