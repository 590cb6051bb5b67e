"""The target `cluster`: which requests fit its machines, and how an order's state becomes node states."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.protocol.fleet.records import FLEET_KEY, Failure, Settings, member_key, order_key
from cloudgpu.protocol.fleet.view import BOOT_S
from cloudgpu.provisioners import Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError, tagged_resources
from cloudgpu.provisioners.cluster.offer import plan_on
from cloudgpu.provisioners.cluster.provisioner import FAILURE_TTL_S, ClusterProvisioner, architecture_of, shared
from cloudgpu.provisioners.stacks import clusters as known
from cloudgpu.provisioners.stacks.clusters import Cluster
from cloudgpu.tests.standins.fleets import FleetFolder, cluster_at


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    return FleetFolder(tmp_path / "jobs" / "clusters" / "big")


@pytest.fixture
def cluster(folder: FleetFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    made = cluster_at(folder.fleet.url, 2)
    known.save(made)
    return made


def spec(text: str) -> JobSpec:
    return load_text(f"name: it\nrun: x\n{text}").spec


class TestFitting:
    def test_the_offer_is_the_share_of_the_machines(self, cluster: Cluster) -> None:
        offer = plan_on(spec("resources: {accelerator: L4, nodes: 2}"), cluster).offers[0]
        assert (offer.cloud, offer.region, offer.price, offer.nodes) == ("cluster", "big", Decimal("1.6"), 2)
        (role,) = offer.roles
        assert (role.machine_type, role.accelerator, role.count) == ("g6.xlarge", "L4", Fraction(1))
        assert offer.place == "cluster big on-demand"

    @pytest.mark.parametrize("asked", ["L4", "nvidia-l4", "[H100:8, L4:1]", "{memory: 20GB..}", "none", "L4:1..4"])
    def test_what_fits(self, cluster: Cluster, asked: str) -> None:
        assert plan_on(spec(f"resources: {{accelerator: {asked}}}"), cluster).offers

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("resources: {accelerator: L4:2}", "worker needs L4:2, the cluster's machines have L4:1"),
            ("resources: {accelerator: {memory: 80GB..}}", "the cluster's machines have L4:1"),
            ("resources: {nodes: 3}", "the job needs 3 machines, the cluster has 2"),
            ("resources: {nodes: 1..2}", "a range of nodes says nothing"),
            ("resources: {cloud: gcp}", "the cluster is in aws"),
            ("resources: {cloud: aws, region: us-west-2}", "the cluster is in us-east-1"),
            ("resources: {machine_type: p5.48xlarge}", "the cluster's machines are g6.xlarge"),
            ("resources: {market: spot}", "of market on-demand"),
            ("resources: {disk: 2TB}", "have 100 GB"),
            ("image: docker.io/x/y:1", "their own image"),
            ("inputs: {data: 's3://other/data'}", "may not read inputs.data"),
            ("job_dir: s3://other/jobs", "may not use s3://other/jobs"),
            ("secrets: {A: 'gcp-secretmanager://a'}", "machines of aws cannot read gcp-secretmanager://"),
            ("priority: 1", "cluster has no queue that honours priority: 1"),
            ("limits: {gpu_idle: 1h}", "no GPU that could be idle"),
        ],
    )
    def test_what_does_not_fit_is_told(self, cluster: Cluster, text: str, why: str) -> None:
        plan = plan_on(spec(text), cluster)
        assert not plan.offers
        assert any(why in refusal.message for refusal in plan.refusals), plan.refusals


def request(*nodes: str, token: str = "t1") -> LaunchRequest:
    result = tuple(
        NodeRequest(node, "worker", rank, rank, "g6.xlarge", None, Fraction(0)) for rank, node in enumerate(nodes)
    )
    values: dict[str, Any] = {"job_id": "it-1", "attempt": 1, "token": token, "owner": Owner("me")}
    values |= {"job_dir": "file:///x", "job_sha256": "0", "region": "big", "zone": None, "market": "on-demand"}
    return LaunchRequest(**values, disk_gb=100.0, nodes=result, lifetime_s=None)


class TestOrders:
    def test_what_becomes_of_its_nodes(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        allocation = target.launch(request("worker-0.1", "worker-1.1"))

        def seen() -> dict[str, tuple[str, bool]]:
            return {state.node: (state.phase, state.queued) for state in target.observe(allocation)}

        waiting, runs = ("pending", True), ("running", False)
        assert seen() == {"worker-0.1": waiting, "worker-1.1": waiting}
        folder.machine("a")
        folder.machine("b")
        folder.claim(1, "worker-0.1", "a")
        folder.claim(1, "worker-1.1", "b")
        assert seen() == {"worker-0.1": runs, "worker-1.1": runs}
        folder.free(1, "worker-1.1", "lost")
        assert seen() == {"worker-0.1": runs, "worker-1.1": waiting}, "another machine will take its place"
        folder.claim(1, "worker-1.2", "b")
        assert seen() == {"worker-0.1": runs, "worker-1.1": waiting, "worker-1.2": runs}
        folder.end(1)
        assert seen()["worker-0.1"] == runs, "until it has let go"
        folder.free(1, "worker-0.1", "stopped")
        folder.free(1, "worker-1.2", "stopped")
        assert {phase for phase, _ in seen().values()} == {"gone"}
        assert target.find(Owner("me")) == []

    def test_a_dead_machine_does_not_keep_what_is_ended(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        allocation = target.launch(request("worker-0.1"))
        folder.machine("a", silent=200.0)
        folder.claim(1, "worker-0.1", "a")
        target.terminate(allocation)
        target.terminate(allocation)
        assert [state.phase for state in target.observe(allocation)] == ["gone"]
        assert target.launch(request("worker-0.1")) == allocation
        assert folder.fleet.view().wanted("x") is None, "what was ended is not started again"

    def test_a_launch_whose_answer_nobody_has_is_ended(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        unknown = Allocation("cluster", "it-1", 1, "t1", {}, region="big", owner="me")
        target.terminate(unknown)
        target.launch(request("worker-0.1"))
        target.terminate(unknown)
        assert folder.fleet.view().wanted("x") is None

    def test_gc_ends_what_no_job_needs(self, cluster: Cluster, folder: FleetFolder) -> None:
        ClusterProvisioner().launch(request("worker-0.1"))
        shared.cache_clear()
        (leftover,) = tagged_resources.find("cluster", Owner("me")).leftovers
        assert [(thing.kind, thing.id) for thing in leftover.things] == [("machine", "big/00000001/worker-0")]
        tagged_resources.remove(leftover)
        assert folder.fleet.view().wanted("x") is None
        assert tagged_resources.find("cluster", Owner("me")).leftovers == []

    def test_too_few_machines_are_told(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        with pytest.raises(ProvisionError, match="cluster scale big 3") as result:
            target.launch(request("worker-0.1", "worker-1.1", "worker-2.1"))
        assert result.value.error_class == "capacity"

    def test_what_never_has_all_machines_is_taken_back(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        allocation = target.launch(request("worker-0.1", "worker-1.1"))
        folder.machine("a")
        folder.claim(1, "worker-0.1", "a")
        assert {state.refused for state in target.observe(allocation)} == {None}
        folder.age(order_key(1), BOOT_S + 60.0)
        for _ in range(2):
            states = target.observe(allocation)
            assert states[0].phase == "running", "as long as it has not let go"
            refused = states[1].refused
            assert refused is not None
            assert (refused.error_class, "1 machines are there, 2 are needed" in str(refused)) == ("capacity", True)

    def test_what_waits_is_told_its_turn_and_its_trouble(self, cluster: Cluster, folder: FleetFolder) -> None:
        target = ClusterProvisioner()
        folder.order("another's", "worker-0.1", "worker-1.1")
        allocation = target.launch(request("worker-0.1"))

        def told() -> str:
            [state] = target.observe(allocation)
            return state.detail

        waits = "waits for a machine of the cluster, after 1 other job"
        assert told() == waits
        folder.fleet.put(member_key("vm-1", "failed.json"), Failure("no python", 0.0))
        assert told() == f"{waits}; vm-1 could not be used: no python"
        folder.age(member_key("vm-1", "failed.json"), FAILURE_TTL_S + 60.0)
        assert told() == waits
        folder.fleet.put(FLEET_KEY, Settings(expires=1.0))
        assert "cloudgpu cluster extend" in told()

    def test_a_turn_is_not_lost_with_a_machine(self, cluster: Cluster, folder: FleetFolder) -> None:
        """An order that has waited for a long time keeps its turn while a machine is being replaced."""
        target = ClusterProvisioner()
        allocation = target.launch(request("worker-0.1", "worker-1.1"))
        folder.age(order_key(1), 10 * BOOT_S)
        folder.machine("a")
        folder.machine("b", silent=BOOT_S - 60.0)
        assert {state.refused for state in target.observe(allocation)} == {None}
        folder.machine("b", silent=BOOT_S + 60.0)
        assert all(state.refused for state in target.observe(allocation))

    def test_a_cluster_that_is_gone(self, cluster: Cluster, folder: FleetFolder) -> None:
        allocation = ClusterProvisioner().launch(request("worker-0.1"))
        folder.machine("a")
        folder.claim(1, "worker-0.1", "a")
        known.forget("big")
        target = ClusterProvisioner()
        assert [state.phase for state in target.observe(allocation)] == ["gone"], "nobody will take a lost one's place"
        folder.free(1, "worker-0.1", "lost")
        with pytest.raises(ProvisionError, match="no cluster big is known here"):
            target.launch(request("worker-0.1", token="t2"))
        target.terminate(allocation)
        assert [state.phase for state in target.observe(allocation)] == ["gone"]
        lost = Allocation("cluster", "it-1", 1, "t1", {}, region="big", owner="me")
        target.terminate(lost)
        assert target.observe(lost) == []

    def test_the_agent_is_for_the_clusters_machines(self, cluster: Cluster) -> None:
        assert architecture_of("g6.xlarge") == "x86_64"
        known.save(cluster_at("file:///x", 1, name="arms", machine_type="g5g.xlarge", accelerator="T4g"))
        assert architecture_of("g5g.xlarge") == "arm64"
