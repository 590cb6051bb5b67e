"""Target vertex over REST and gRPC: Google's client against the stand-in in tests/standins/vertex, with injected
faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest

from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.gcp.catalog import quotas
from cloudgpu.provisioners.vertex import job_cache, launching
from cloudgpu.provisioners.vertex.launching import SEARCH_S
from cloudgpu.provisioners.vertex.provisioner import PENDING_S, QUEUE_S, VertexProvisioner
from cloudgpu.tests.contract.targets.standin import until
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HANG, HTML, LOSE, Fault, error
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcp_catalog.control import VERTEX, CatalogControl
from cloudgpu.tests.standins.vertex.control import JobState, VertexControl
from cloudgpu.tests.standins.vertex.service import GRPC_ENDPOINT, JOBS

OWNER = Owner("cloudgpu.Tester")
REGION = "us-central1"
TYPE = "n1-standard-8"
CREATE, GET, LIST, CANCEL = (f"{JOBS}.{verb}" for verb in ("create", "get", "list", "cancel"))
GPUS = "aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus"
NOT_YET_S = 1_000.0
"""Seconds by which lists lag: longer than any search lasts."""


class LateClock(FastClock):
    """Clock whose epoch time is `later` seconds ahead."""

    later = 0.0

    def now(self) -> float:
        return super().now() + self.later


class Vertex:
    """The stand-in and its control API."""

    def __init__(self, gcp: Gcp) -> None:
        self.gcp, self.control = gcp, VertexControl(gcp.control)

    def jobs(self) -> list[JobState]:
        return self.control.jobs()

    def alive(self) -> list[JobState]:
        return [job for job in self.jobs() if job.alive]

    def calls(self, action: str) -> list[Any]:
        return [call for call in self.gcp.control.calls() if call.action == action]

    def fail(self, action: str, fault: Fault, times: int | None = 1, **where: str) -> None:
        self.gcp.control.fail(action, fault, times=times, where=where)

    def show_in(self, seconds: float) -> None:
        """Make lists show everything that exists now in `seconds` from now, and not before."""
        newest = max(job.created for job in self.jobs())
        self.control.set_lag(time.monotonic() - newest + seconds)


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture(scope="module")
def environ(server: Gcp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return server.environ(tmp_path_factory.mktemp("keys"))


@pytest.fixture(params=["rest", "grpc"])
def vertex(
    server: Gcp, environ: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Vertex:
    server.control.reset()
    settings = {**environ, "CLOUDGPU_VERTEX_TRANSPORT": request.param}
    if request.param == "grpc":
        settings["CLOUDGPU_VERTEX_ENDPOINT"] = f"http://{environ[GRPC_ENDPOINT]}"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return Vertex(server)


@pytest.fixture
def provisioner(vertex: Vertex) -> VertexProvisioner:
    return another()


def another(clock: FastClock | None = None) -> VertexProvisioner:
    """Return a provisioner without cached state, like that of another process."""
    return VertexProvisioner(clock or FastClock())


def node(name: str = "worker-0.1", machine_type: str = TYPE, rank: int = 0, gpu: str | None = "T4") -> NodeRequest:
    role, _, rest = name.rpartition("-")
    return NodeRequest(name, role, int(rest.partition(".")[0]), rank, machine_type, gpu, Fraction(1 if gpu else 0))


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef0123456789abcdef",
        owner=OWNER,
        job_dir="gs://jobs-of-tests/jobs/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market="on-demand",
        disk_gb=100.0,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def state_of(allocation: Allocation, phase: str, provisioner: VertexProvisioner) -> NodeState:
    """Return the first node's state once all nodes are in this phase."""
    seen: list[NodeState] = []

    def look() -> bool:
        seen[:] = provisioner.observe(allocation)
        provisioner._clients.clock.sleep(4.0)  # polls are cached for three seconds
        return all(state.phase == phase for state in seen)

    until(look)
    return seen[0]


# -- launches


def test_four_roles_are_four_pools(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    nodes = [node("chief-0.1")]
    nodes += [node(f"worker-{index}.1", rank=1 + index) for index in range(3)]
    nodes += [node(f"parameter_server-{index}.1", "n1-highmem-4", 4 + index, gpu=None) for index in range(2)]
    nodes.append(node("evaluator-0.1", rank=6))
    allocation = provisioner.launch(request(*nodes))
    [job] = vertex.jobs()
    assert job.replicas == 7
    assert {name: machine.removeprefix(f"{job.name}/") for name, machine in allocation.machines.items()} == {
        "chief-0.1": "workerpool0-0",
        **{f"worker-{index}.1": f"workerpool1-{index}" for index in range(3)},
        **{f"parameter_server-{index}.1": f"workerpool2-{index}" for index in range(2)},
        "evaluator-0.1": "workerpool3-0",
    }
    assert another().find(OWNER) == [allocation]
    provisioner.terminate(allocation)


def test_without_a_chief_the_first_worker_is_the_primary_replica(
    vertex: Vertex, provisioner: VertexProvisioner
) -> None:
    nodes = [node(f"worker-{index}.1", rank=index) for index in range(3)]
    allocation = provisioner.launch(request(*nodes, market="spot"))
    [job] = vertex.jobs()
    assert [machine.rpartition("/")[2] for machine in allocation.machines.values()] == [
        *("workerpool0-0", "workerpool1-0", "workerpool1-1")
    ]
    assert job.market == "spot"
    provisioner.terminate(allocation)


def test_an_ended_job_is_observed_though_lists_omit_it(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    allocation = provisioner.launch(request())
    state_of(allocation, "running", provisioner)
    vertex.control.finish(vertex.jobs()[0].id)
    assert state_of(allocation, "gone", provisioner).detail == "SUCCEEDED"


# -- one job for each launch


def test_a_quota_that_is_too_small_for_the_job_is_reported_before_creation(
    vertex: Vertex, provisioner: VertexProvisioner
) -> None:
    """Without this check the job would be refused without a link, or wait in the queue."""
    quota = "CustomModelTrainingT4GPUsPerProjectPerRegion"
    control = CatalogControl(vertex.gcp.url)
    control.set_cloud_quota(VERTEX, quota, ({}, 1))
    two = request(node(), node("worker-1.1", rank=1))
    with pytest.raises(ProvisionError, match=r"2 GPUs more are needed, but .* allows 1") as caught:
        provisioner.launch(two)
    assert (caught.value.error_class, caught.value.scope, caught.value.code) == ("quota", "region", quota)
    assert vertex.jobs() == []
    control.set_cloud_quota(VERTEX, quota, ({}, 2))
    allocation = another().launch(two)
    control.set_cloud_quota(VERTEX, quota, ({}, 0))
    assert another().launch(two).machines == allocation.machines, "it is there: nothing is asked for"


def test_an_unreadable_quota_blocks_no_launch(vertex: Vertex, caplog: pytest.LogCaptureFixture) -> None:
    quotas._say_once.cache_clear()
    vertex.fail("projects.locations.services.quotaInfos.get", error("forbidden", 403, "PERMISSION_DENIED"), times=None)
    assert another().launch(request()).machines
    assert "not checked before launching" in caplog.text


def test_a_list_that_is_late_makes_a_second_job_and_the_next_look_ends_it(vertex: Vertex) -> None:
    vertex.control.set_lag(NOT_YET_S)
    vertex.fail(CREATE, LOSE)
    provisioner = another()
    allocation = provisioner.launch(request())
    first, second = vertex.jobs()
    assert allocation.details["job"] == second.name
    vertex.control.set_lag(0.0)

    def settled() -> bool:
        provisioner._clients.clock.sleep(4.0)
        provisioner.observe(allocation)
        return len(vertex.alive()) == 1

    until(settled)
    assert [job.name for job in vertex.alive()] == [first.name]
    assert state_of(allocation, "running", provisioner).phase == "running"
    [found] = another().find(OWNER)
    assert found.details["job"] == first.name
    provisioner.terminate(allocation)
    assert not vertex.alive()


def test_a_second_job_whose_place_is_taken_is_no_loss_while_the_first_may_yet_be_shown(vertex: Vertex) -> None:
    vertex.control.set_lag(NOT_YET_S)
    vertex.fail(CREATE, LOSE)
    clock = LateClock()
    provisioner = another(clock)
    allocation = provisioner.launch(request())
    first, second = vertex.jobs()
    until(lambda: vertex.jobs()[1].state == "RUNNING")
    vertex.control.finish(second.id, 3)
    until(lambda: len(vertex.alive()) == 1)
    [waiting] = provisioner.observe(allocation)
    assert (waiting.phase, waiting.refused, waiting.reclaimed) == ("pending", None, False)
    assert "another job of this launch has the node's place" in waiting.detail
    vertex.control.set_lag(0.0)
    clock.sleep(4.0)
    assert provisioner.observe(allocation)[0].phase == "running"
    assert [job.name for job in vertex.alive()] == [first.name]
    vertex.control.set_lag(NOT_YET_S)
    clock.later = SEARCH_S + 10.0
    clock.sleep(4.0)
    [lost] = provisioner.observe(allocation)
    assert lost.phase == "gone" and lost.refused is None and "another machine has the node's place" in lost.detail
    vertex.control.set_lag(0.0)
    provisioner.terminate(allocation)
    assert not vertex.alive()


def test_after_a_job_that_ran_no_other_is_waited_for(vertex: Vertex) -> None:
    """A supervisor that was killed may have created another job, which would find its place taken and end."""
    allocation = another().launch(request(may_be_retry=True))
    [job] = vertex.jobs()
    until(lambda: vertex.jobs()[0].state == "RUNNING")
    vertex.control.finish(job.id)
    until(lambda: not vertex.alive())
    clock = FastClock()
    begun = clock.monotonic()
    another(clock).terminate(allocation)
    assert clock.monotonic() - begun < SEARCH_S / 2


def test_a_quota_of_nothing_is_no_throttling(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    message = "The following quotas are exceeded: CustomModelTrainingPreemptibleL4GPUsPerProjectPerRegion"
    vertex.fail(CREATE, error("RESOURCE_EXHAUSTED", 429, message), times=None)
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(request())
    assert (caught.value.error_class, caught.value.scope) == ("quota", "region")
    assert len(vertex.calls(CREATE)) == 1


def test_a_second_job_that_no_list_shows_yet_is_ended_as_well(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    vertex.control.set_lag(NOT_YET_S)
    vertex.fail(CREATE, LOSE)
    allocation = provisioner.launch(request())
    assert len(vertex.alive()) == 2
    vertex.show_in(1.0)
    another().terminate(allocation)
    assert len(vertex.jobs()) == 2 and not vertex.alive()


def test_a_job_of_a_killed_process_that_no_list_shows_yet_is_ended_as_well(vertex: Vertex) -> None:
    vertex.control.set_lag(NOT_YET_S)
    another().launch(request())
    allocation = another().launch(request(may_be_retry=True))
    assert len(vertex.alive()) == 2
    vertex.show_in(1.0)
    another().terminate(allocation)
    assert len(vertex.jobs()) == 2 and not vertex.alive()


@pytest.mark.parametrize("state", ["", "PENDING", "RUNNING"])
def test_only_a_launch_whose_job_had_machines_is_paid_for(vertex: Vertex, state: str) -> None:
    if state == "":
        vertex.fail(CREATE, error("UNAVAILABLE", 503), times=None)
        with pytest.raises(ProvisionError):
            another().launch(request())
        vertex.gcp.control.heal()
    else:
        vertex.control.set_pending(600.0 if state == "PENDING" else 0.0)
        another().launch(request())
        until(lambda: vertex.jobs()[0].state == state)
    lost = Allocation("vertex", "digits-abc", 1, request().token, {}, region=REGION, owner=OWNER.name)
    assert another().terminate(lost).has_started == (state == "RUNNING")
    assert not vertex.alive()


def test_without_its_region_it_is_looked_for_in_all(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    provisioner.launch(request(region="europe-west4"))
    another().terminate(Allocation("vertex", "digits-abc", 1, request().token, {}))
    assert not vertex.alive()
    with pytest.raises(ProvisionError, match="region of launch"):
        provisioner.observe(Allocation("vertex", "digits-abc", 1, request().token, {"worker-0.1": "x"}))


# -- refusals, at once and late


@pytest.mark.parametrize("code", ["RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"])
def test_throttling_is_neither_quota_nor_permission(vertex: Vertex, provisioner: VertexProvisioner, code: str) -> None:
    slower = "Quota exceeded for quota metric 'Resource management (CRUD) requests' and limit 'requests per minute'"
    for action in (CREATE, LIST, CANCEL):
        vertex.fail(action, error(code, 429, slower), times=2)
    allocation = provisioner.launch(request())
    assert len(vertex.calls(CREATE)) == 3 and len(vertex.jobs()) == 1
    provisioner.terminate(allocation)
    assert not vertex.alive()


def test_after_a_clear_refusal_nothing_is_waited_for(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    vertex.control.set_quota(REGION, GPUS, 0)
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(request())
    assert caught.value.error_class == "quota"
    vertex.gcp.control.do("forget")
    refused = Allocation("vertex", "digits-abc", 1, request().token, {}, region=REGION, owner=OWNER.name)
    provisioner.terminate(refused)
    assert len(vertex.calls(LIST)) == 1


def test_after_an_invalid_request_nothing_is_waited_for(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    with pytest.raises(ProvisionError):
        provisioner.launch(request(agent=None))
    assert not vertex.gcp.control.calls()
    provisioner.terminate(Allocation("vertex", "digits-abc", 1, request().token, {}, region=REGION))
    assert len(vertex.calls(LIST)) == 1


def test_no_capacity_shows_late_and_is_a_refusal(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    vertex.control.set_capacity(TYPE, REGION, "on-demand", 0)
    allocation = provisioner.launch(request())
    state = state_of(allocation, "gone", provisioner)
    assert state.refused is not None and not state.reclaimed
    assert (state.refused.error_class, state.refused.scope, state.refused.code) == ("capacity", "region", "8")
    assert "Resources are insufficient in region: us-central1" in str(state.refused)


def test_the_end_of_a_job_that_ran_is_no_refusal(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    allocation = provisioner.launch(request())
    state_of(allocation, "running", provisioner)
    vertex.control.fail_inside(vertex.jobs()[0].id)
    state = state_of(allocation, "gone", provisioner)
    assert (state.refused, state.reclaimed) == (None, False)
    assert state.detail == "FAILED: Internal error occurred for the current attempt"


def test_credentials_that_end_under_a_job_leave_it_alone(vertex: Vertex) -> None:
    provisioner = another()
    allocation = provisioner.launch(request())
    state_of(allocation, "running", provisioner)
    denied = error("UNAUTHENTICATED", 401, "Request had invalid authentication credentials.")
    for action in (LIST, GET, CANCEL):
        vertex.fail(action, denied, times=None)
    provisioner._clients.clock.sleep(4.0)
    for verb in (provisioner.observe, provisioner.terminate):
        with pytest.raises(ProvisionError) as caught:
            verb(allocation)
        assert caught.value.error_class in ("auth", "expired")
    assert len(vertex.alive()) == 1
    vertex.gcp.control.heal()
    assert state_of(allocation, "running", provisioner).phase == "running"
    provisioner.terminate(allocation)
    assert not vertex.alive()


def test_a_flex_start_job_waits_in_the_queue(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    a100 = dataclasses.replace(node(machine_type="a2-highgpu-1g"), accelerator="A100-40GB")
    vertex.control.set_capacity("a2-highgpu-1g", REGION, "flex-start", 0)
    allocation = provisioner.launch(request(a100, market="flex-start"))
    state = state_of(allocation, "pending", provisioner)
    assert state.queued
    vertex.control.set_capacity("a2-highgpu-1g", REGION, "flex-start", 1)
    assert not state_of(allocation, "running", provisioner).queued
    provisioner.terminate(allocation)


def test_quota_that_others_have_used_up_is_not_waited_for(vertex: Vertex) -> None:
    clock = LateClock()
    provisioner = another(clock)
    vertex.control.set_quota(REGION, GPUS, 1)
    first = provisioner.launch(request())
    state_of(first, "running", provisioner)
    second = provisioner.launch(request(token="f" * 32, attempt=2))
    assert state_of(second, "pending", provisioner).queued
    clock.later = QUEUE_S + 60
    [state] = provisioner.observe(second)
    assert state.phase == "gone" and state.refused is not None
    assert (state.refused.error_class, state.refused.scope) == ("quota", "region")
    assert [job.name for job in vertex.alive()] == [first.details["job"]], "what is refused cannot begin any more"
    assert provisioner.observe(first)[0].phase == "running"
    provisioner.terminate(first)


def test_machines_that_do_not_come_are_not_waited_for_without_end(vertex: Vertex) -> None:
    clock = LateClock()
    provisioner = another(clock)
    vertex.control.set_pending(600.0)
    allocation = provisioner.launch(request())
    assert state_of(allocation, "pending", provisioner).queued
    clock.later = PENDING_S - 60
    assert state_of(allocation, "pending", provisioner).queued
    clock.later = PENDING_S + 60
    [state] = provisioner.observe(allocation)
    assert state.phase == "gone" and state.refused is not None
    assert (state.refused.error_class, state.refused.scope) == ("capacity", "region")
    assert not vertex.alive()


# -- timeouts


def test_a_server_that_hangs_costs_a_timeout(
    vertex: Vertex, provisioner: VertexProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cache, "READ_S", 0.3)
    vertex.fail(LIST, HANG, times=None)
    with pytest.raises(ProvisionError, match="look for jobs in us-central1: ") as caught:
        provisioner.launch(request())
    assert caught.value.error_class == "transient"


def test_a_job_that_was_created_while_the_server_hung_is_found(
    vertex: Vertex, provisioner: VertexProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "WRITE_S", 0.5)
    vertex.fail(CREATE, HANG)
    allocation = provisioner.launch(request())
    assert len(vertex.jobs()) == 1
    provisioner.terminate(allocation)


# -- finding and ending jobs


def test_everything_of_an_owner_is_found_in_all_regions(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    ours = [
        provisioner.launch(request(region=region, token=f"{number:032x}"))
        for number, region in enumerate(("us-central1", "europe-west4"), 1)
    ]
    theirs = provisioner.launch(request(owner=Owner("somebody"), token="e" * 32))
    assert sorted(found.token for found in another().find(OWNER)) == [one.token for one in ours]
    assert another().find(Owner("nobody")) == []
    for allocation in (*ours, theirs):
        provisioner.terminate(allocation)


def test_regions_that_are_denied_are_left_out_and_those_that_do_not_answer_are_not(
    vertex: Vertex, provisioner: VertexProvisioner
) -> None:
    allocation = provisioner.launch(request())
    denied = error("IAM_PERMISSION_DENIED", 403, "Permission 'aiplatform.customJobs.list' denied")
    vertex.fail(LIST, denied, times=None, region="europe-*")
    assert provisioner.find(OWNER) == [allocation]
    vertex.fail(LIST, denied, times=None)
    with pytest.raises(ProvisionError) as caught:
        provisioner.find(OWNER)
    assert caught.value.error_class == "auth"
    vertex.gcp.control.heal()
    vertex.fail(LIST, HTML, times=None, region="asia-east1")
    with pytest.raises(ProvisionError) as caught:
        provisioner.find(OWNER)
    assert caught.value.error_class == "transient"
    vertex.gcp.control.heal()
    provisioner.terminate(allocation)


def test_more_jobs_than_a_page_holds_are_all_found(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    tokens = [f"{number:032x}" for number in range(1, 106)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda token: provisioner.launch(request(token=token)), tokens))
    assert sorted(found.token for found in another().find(OWNER)) == tokens


def test_a_job_ends_as_a_whole(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    allocation = provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    with pytest.raises(ProvisionError, match="ended as a whole"):
        provisioner.remove(allocation, ["worker-1.1"])
    provisioner.remove(allocation, [])
    assert len(vertex.alive()) == 1
    provisioner.remove(allocation, list(allocation.machines))
    state_of(allocation, "gone", provisioner)


def test_a_node_more_cannot_be_had(vertex: Vertex, provisioner: VertexProvisioner) -> None:
    allocation = provisioner.launch(request())
    with pytest.raises(ProvisionError, match="without worker-1") as caught:
        provisioner.launch(request(node(), node("worker-1.1", rank=1)))
    assert caught.value.error_class == "invalid"
    provisioner.terminate(allocation)
