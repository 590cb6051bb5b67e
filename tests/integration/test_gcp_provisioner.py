"""The target gcp over the wire: Google's SDK against the stand-in of tests/standins/gcp, with faults."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner
from cloudgpu.provisioners.shared import infrastructure
from cloudgpu.provisioners.shared.infrastructure import Infrastructure
from cloudgpu.tests.standins.clocks import FastClock, StillClock
from cloudgpu.tests.standins.faults import HANG, HTML, LOSE, RESET, Call, Fault, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcp.project import account

OWNER = Owner("cloudgpu-tester")
TOKEN = "0123456789abcdef0123456789abcdef"
ZONE = "us-central1-a"
T4 = "n1-standard-4"
KEPT = "cloudgpu-closed-default"
"""The rule that is shared by all launches and stays."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gcp, dict[str, str]]]:
    with Gcp() as gcp:
        yield gcp, gcp.environ(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def gce(server: tuple[Gcp, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> GceControl:
    gcp, environ = server
    gcp.control.reset()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return GceControl(gcp.url)


@pytest.fixture
def provisioner(gce: GceControl) -> GcpProvisioner:
    return another()


def another(clock: FastClock | None = None) -> GcpProvisioner:
    """A provisioner that has seen nothing yet, as that of another process."""
    return GcpProvisioner(clock or FastClock())


def node(
    name: str = "worker-0.1", machine_type: str = T4, rank: int = 0, accelerator: str | None = "T4", count: int = 1
) -> NodeRequest:
    role, _, rest = name.rpartition("-")
    return NodeRequest(name, role, int(rest.partition(".")[0]), rank, machine_type, accelerator, Fraction(count))


def pair() -> tuple[NodeRequest, NodeRequest]:
    return node(), node("worker-1.1", rank=1)


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token=TOKEN,
        owner=OWNER,
        job_dir="gs://jobs-of-tests/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-central1",
        zone=ZONE,
        market="on-demand",
        disk_gb=100.0,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def left(gce: GceControl) -> dict[str, list[str]]:
    """What there is of ours, but for what is meant to stay."""
    found = {
        kind: [str(one["name"]) for one in gce.resources(kind) if one["name"] != KEPT]
        for kind in ("instances", "disks", "firewalls")
    }
    return {kind: names for kind, names in found.items() if names}


def name_of(machine: str) -> str:
    return machine.partition("/")[2]


def look(allocation: Allocation) -> NodeState:
    """At the only node, by somebody who has seen nothing yet."""
    [state] = another().observe(allocation)
    return state


def refused(provisioner: GcpProvisioner, asked: LaunchRequest) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        provisioner.launch(asked)
    return caught.value


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_machine_is_launched_watched_and_removed_with_all_that_was_made_for_it(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    allocation = provisioner.launch(request())
    assert allocation.machines == {"worker-0.1": f"{ZONE}/cloudgpu-0123456789abcdef-worker-0-1"}
    [state] = provisioner.observe(allocation)
    assert (state.phase, state.detail, state.taken) == ("running", "", False)
    assert set(left(gce)) == {"instances", "disks"}
    provisioner.terminate(allocation)
    state = look(allocation)
    assert (state.phase, state.detail, state.taken) == ("gone", f"deleted by {SUBMITTER}", False)
    assert left(gce) == {}


# --- what a machine is launched with ----------------------------------------------------------------------------------


def test_the_machine_is_as_asked_for_and_labelled_from_the_start(gce: GceControl, provisioner: GcpProvisioner) -> None:
    provisioner.launch(request(market="spot"))
    [instance] = gce.instances(running=True)
    assert (instance.machine_type, instance.accelerator, instance.count) == (T4, "nvidia-tesla-t4", 1)
    assert (instance.market, instance.zone) == ("spot", ZONE)
    wanted = {
        "cloudgpu-owner": OWNER.name,
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "1",
        "cloudgpu-token": TOKEN,
        "cloudgpu-expires": "2000000000",
        "cloudgpu-node": "worker-0__2e1",
        "cloudgpu-rank": "0",
    }
    [disk] = gce.resources("disks")
    assert wanted.items() <= instance.labels.items() and wanted.items() <= disk["labels"].items()
    assert disk["sizeGb"] == "100" and disk["type"].endswith("pd-balanced")
    assert not gce.calls("*.setLabels"), "labels come with the call that makes the thing"
    [sent] = gce.calls("instances.insert")
    assert sent.params["account"] == MACHINE


def test_nothing_may_come_in_but_from_the_jobs_own_machines(gce: GceControl, provisioner: GcpProvisioner) -> None:
    provisioner.launch(request())
    [closed] = gce.resources("firewalls")
    assert (
        closed["name"] == KEPT and closed["denied"] == [{"IPProtocol": "all"}] and closed["targetTags"] == ["cloudgpu"]
    )
    provisioner.launch(request(*pair(), token="e" * 32))
    rules = {one["name"]: one for one in gce.resources("firewalls")}
    peers = rules[f"cloudgpu-{'e' * 32}"]
    assert peers["sourceTags"] == peers["targetTags"] == [peers["name"]] and peers["priority"] < closed["priority"]
    instances = [one for one in gce.resources("instances") if one["labels"]["cloudgpu-token"] == "e" * 32]
    assert {tuple(sorted(one["tags"]["items"])) for one in instances} == {("cloudgpu", peers["name"])}
    assert len(gce.calls("firewalls.insert", name=KEPT)) == 1, "it is made once"


def test_an_external_address_only_where_google_is_not_reached_without(
    gce: GceControl, provisioner: GcpProvisioner, caplog: pytest.LogCaptureFixture
) -> None:
    provisioner.launch(request())
    assert [one.external for one in gce.instances()] == [True]
    assert "no Private Google Access" in caplog.text and "subnets update default" in caplog.text
    gce.set_private_access("us-central1")
    provisioner.launch(request(token="e" * 32))
    assert [one.external for one in gce.instances()] == [True, False]


def test_the_network_is_ours_if_there_is_one_or_the_one_that_is_named(
    gce: GceControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce.add_network("cloudgpu", private_access=True)
    gce.add_network("research", regions=["us-central1"])
    another().launch(request())
    monkeypatch.setenv("CLOUDGPU_GCP_NETWORK", "research")
    another().launch(request(token="e" * 32))
    used = [one["networkInterfaces"][0]["subnetwork"].rpartition("/")[2] for one in gce.resources("instances")]
    assert used == ["cloudgpu", "research"]
    assert {one["name"] for one in gce.resources("firewalls")} == {
        "cloudgpu-closed-cloudgpu",
        "cloudgpu-closed-research",
    }


# --- an infra stack ---------------------------------------------------------------------------------------------------


def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str = PROJECT) -> Infrastructure:
    """As `cloudgpu infra up` writes it down."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    region = f"https://www.googleapis.com/compute/v1/projects/{project}/regions/us-central1"
    found = Infrastructure(
        "gcp",
        "us-central1",
        "infra-gcp-us-central1",
        OWNER.name,
        network="stands",
        subnets={"": f"{region}/subnetworks/stands"},
        machine_role=account("stands"),
        job_dir="gs://jobs-of-tests/jobs",
    )
    infrastructure.save(found)
    return found


def used(gce: GceControl) -> list[tuple[str, str]]:
    """Subnetwork and service account of each machine."""
    return [
        (one["networkInterfaces"][0]["subnetwork"].rpartition("/")[2], one["serviceAccounts"][0]["email"])
        for one in gce.resources("instances")
    ]


def test_machines_are_in_the_stacks_network_and_have_its_account_for_what_it_reaches(
    gce: GceControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = known(tmp_path, monkeypatch)
    gce.add_network("stands", regions=["us-central1"], private_access=True)
    gce.add_account(stands.machine_role)
    another().launch(request())
    another().launch(request(token="e" * 32, job_dir="gs://elsewhere/jobs/digits-abc"))
    another().launch(request(token="f" * 32, reads=("gs://data/set",)))
    monkeypatch.setenv("CLOUDGPU_GCP_SERVICE_ACCOUNT", SUBMITTER)
    monkeypatch.setenv("CLOUDGPU_GCP_NETWORK", "default")
    another().launch(request(token="a" * 32))
    assert used(gce) == [
        ("stands", stands.machine_role),
        ("stands", MACHINE),
        ("stands", MACHINE),
        ("default", SUBMITTER),
    ]


def test_a_stack_of_another_project_is_none_and_one_that_is_gone_is_said(
    gce: GceControl, provisioner: GcpProvisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(tmp_path, monkeypatch, project="another")
    provisioner.launch(request())
    assert used(gce) == [("default", MACHINE)]
    known(tmp_path, monkeypatch)
    gone = refused(provisioner, request(token="e" * 32))
    assert gone.error_class == "invalid" and "cloudgpu infra status" in str(gone)
    infrastructure.path_of("gcp", "us-central1").write_text("{")
    assert "cannot be read" in str(refused(provisioner, request(token="e" * 32)))
    assert len(gce.instances()) == 1


def test_the_network_of_a_stack_is_found_where_nothing_is_written_down(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    gce.add_network("cloudgpu-us-central1", regions=["us-central1"], private_access=True)
    provisioner.launch(request())
    assert used(gce) == [("cloudgpu-us-central1", MACHINE)]


# --- again and again --------------------------------------------------------------------------------------------------


def test_the_same_request_gives_the_same_machines(gce: GceControl, provisioner: GcpProvisioner) -> None:
    first = provisioner.launch(request())
    again = another().launch(request(lifetime_s=1_800))
    assert again.machines == first.machines
    assert len(gce.calls("instances.insert")) == 1


def test_a_node_that_was_lost_is_replaced_and_nothing_else_is_touched(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    first = provisioner.launch(request(*pair(), market="spot"))
    gce.preempt(name_of(first.machines["worker-1.1"]), 0.1)
    wait_for(lambda: len(left(gce)["instances"]) == 1)
    states = {state.node: state for state in another().observe(first)}
    assert states["worker-0.1"].phase == "running"
    assert states["worker-1.1"].phase == "gone" and states["worker-1.1"].taken
    again = another().launch(request(*pair(), market="spot"))
    assert again.machines == first.machines, "what was started once and is gone is not started again"
    assert len(left(gce)["instances"]) == 1
    second = another().launch(request(node(), node("worker-1.2", rank=1), market="spot"))
    assert second.machines["worker-0.1"] == first.machines["worker-0.1"]
    assert len(left(gce)["instances"]) == 2
    provisioner.terminate(second)
    assert left(gce) == {}


def test_a_machine_that_is_of_no_more_use_is_ended_alone(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request(*pair()))
    for _ in range(2):
        another().remove(allocation, ["worker-1.1"])
    wait_for(lambda: left(gce)["instances"] == [name_of(allocation.machines["worker-0.1"])])
    assert another().launch(request(*pair())).machines == allocation.machines, "it was lost: it is not started again"
    assert len(gce.calls("instances.insert")) == 2


def test_after_its_end_a_launch_with_the_same_token_begins_anew(gce: GceControl, provisioner: GcpProvisioner) -> None:
    for launches in (1, 2, 3):
        allocation = another().launch(request())
        assert len(gce.instances()) == launches
        assert look(allocation).phase == "running"
        another().terminate(allocation)
        assert left(gce) == {}
    assert len({call.params["requestId"] for call in gce.calls("instances.insert")}) == 3


@pytest.mark.parametrize(
    "fault",
    [
        LOSE,
        RESET,
        HTML,
        error("rateLimitExceeded", 403, "Rate Limit Exceeded"),
        error("backendError", 503, "Backend Error"),
    ],
    ids=lambda fault: fault.code or fault.kind,
)
def test_what_came_of_a_call_is_not_known(gce: GceControl, provisioner: GcpProvisioner, fault: Fault) -> None:
    gce.fail("instances.insert", fault, times=2)
    allocation = provisioner.launch(request())
    assert [f"{one.zone}/{one.name}" for one in gce.instances()] == list(allocation.machines.values())
    assert len({call.params["requestId"] for call in gce.calls("instances.insert")}) == 1


def test_the_answer_was_lost_and_the_caller_died(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """No listing shows the machine, but its operation is remembered."""
    gce.set_times(lag=60.0)
    gce.fail("instances.insert", LOSE, times=None)
    assert refused(provisioner, request()).error_class == "transient"
    gce.heal()
    gce.forget()
    allocation = another().launch(request(lifetime_s=60))
    assert not gce.calls("instances.insert"), "it is known to have been started"
    assert [f"{one.zone}/{one.name}" for one in gce.instances()] == list(allocation.machines.values())


def test_a_machine_whose_request_id_is_forgotten_is_known_by_its_name(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    provisioner.launch(request())
    # An owner's label that was changed: no look finds it; and no operation is told.
    gce.fail("globalOperations.aggregatedList|zoneOperations.list", error("internalError", 500), times=None)
    assert refused(another(), request(owner=Owner("somebody-else"))).error_class == "transient"
    gce.heal()
    allocation = another().launch(request(owner=Owner("somebody-else")))
    assert len(gce.instances()) == 1 and look(allocation).phase == "running"


def test_what_no_listing_shows_is_ended_by_the_operation_that_made_it(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    """Nobody knows the machine, and no listing shows it: it is still being made when the launch is ended."""
    gce.set_times(operation=1.5)
    gce.fail("instances.insert", LOSE, times=None)
    gce.set_times(lag=1.0)
    assert refused(provisioner, request()).error_class == "transient"
    gce.heal()
    another().terminate(Allocation("gcp", "digits-abc", 1, TOKEN, {}, region="us-central1", owner=OWNER.name))
    assert len(gce.instances()) == 1
    assert left(gce) == {}


def life(gce: GceControl, provisioner: GcpProvisioner) -> list[Call]:
    """From launch to end; the calls. Nothing is left."""
    gce.forget()
    before = {one.identity for one in gce.instances()}
    allocation = provisioner.launch(request(*pair()))
    assert len({one.identity for one in gce.instances()} - before) == 2
    provisioner.observe(allocation)
    provisioner.terminate(allocation)
    called = gce.calls()
    assert left(gce) == {}
    return called


@pytest.mark.parametrize("fault", [LOSE, RESET, HTML], ids=lambda fault: fault.kind)
def test_every_call_of_a_life_fails_once(gce: GceControl, provisioner: GcpProvisioner, fault: Fault) -> None:
    actions = {call.action for call in life(gce, provisioner)}
    assert {"instances.insert", "instances.delete", "firewalls.insert", "zoneOperations.get"} <= actions
    for action in sorted(actions):
        gce.fail(action, fault)
    life(gce, another())
    assert {call.fault for call in gce.calls()} == {"", fault.kind}


HARMED = (
    "instances.insert",
    "instances.delete",
    "instances.get",
    "instances.aggregatedList",
    "firewalls.insert",
    "firewalls.get",
    "firewalls.delete",
    "zoneOperations.get",
    "globalOperations.get",
    "globalOperations.aggregatedList",
)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_no_node_has_two_machines_and_nothing_is_left(gce: GceControl, seed: int) -> None:
    dice = random.Random(seed)
    gce.set_times(lag=dice.choice([0.0, 0.3]), operation=dice.choice([0.02, 0.2]), stopping=dice.choice([0.0, 0.2]))
    if dice.random() < 0.4:
        gce.set_capacity(T4, ZONE, "on-demand", dice.choice([0, 1, 2]))
    for _ in range(6):
        fault = dice.choice([LOSE, RESET, HTML, error("backendError", 503), error("rateLimitExceeded", 403)])
        gce.fail(dice.choice(HARMED), fault, times=dice.choice([1, 2, None]), skip=dice.randint(0, 4))
    asked = request(*(node(f"worker-{rank}.1", rank=rank) for rank in range(dice.choice([1, 2, 3]))))
    allocation = Allocation("gcp", asked.job_id, asked.attempt, asked.token, {}, region="us-central1", owner=OWNER.name)
    for launches in range(3):
        if launches:
            gce.heal()
        try:
            allocation = another().launch(asked)
        except ProvisionError as refusal:
            assert refusal.error_class in {"transient", "throttled", "capacity"}
        else:
            assert len(gce.instances(running=True)) == len(asked.nodes)
            break
    names = [one.name for one in gce.instances(running=True)]
    assert len(names) == len(set(names))
    gce.heal()
    another().terminate(allocation)
    time.sleep(0.5)
    assert left(gce) == {}


# --- what Compute Engine refuses --------------------------------------------------------------------------------------


def test_no_capacity_leaves_nothing_and_names_other_zones(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_capacity(T4, ZONE, "on-demand", 0)
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope) == ("capacity", "zone")
    assert refusal.code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    assert refusal.hints and all(hint.startswith("us-central1-") for hint in refusal.hints)
    assert ZONE not in refusal.hints
    assert f"start worker-0.1 (on-demand {T4}) in {ZONE}" in str(refusal)
    assert len(gce.calls("instances.insert")) == 1, "no capacity is an answer"
    assert left(gce) == {}


def test_where_there_was_no_capacity_there_may_be_some_later(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_capacity(T4, ZONE, "on-demand", 0)
    for _ in range(2):
        assert refused(another(), request()).error_class == "capacity"
    gce.set_capacity(T4, ZONE, "on-demand", 1)
    assert look(provisioner.launch(request())).phase == "running"
    assert len({call.params["requestId"] for call in gce.calls("instances.insert")}) == 3


def test_all_machines_or_none(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_capacity(T4, ZONE, "on-demand", 1)
    asked = request(*pair())
    assert refused(provisioner, asked).error_class == "capacity"
    assert left(gce) == {}
    gce.set_capacity(T4, ZONE, "on-demand", 2)
    allocation = provisioner.launch(asked)
    assert {state.phase for state in another().observe(allocation)} == {"running"}


def test_many_machines_are_asked_for_at_once_but_not_before_one_was_got(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    nodes = [node(f"worker-{rank}.1", rank=rank) for rank in range(10)]
    gce.set_capacity(T4, ZONE, "on-demand", 7)
    assert refused(provisioner, request(*nodes)).error_class == "capacity"
    assert len(gce.calls("instances.insert")) == 9, "one, four, and four of which two were refused"
    assert left(gce) == {}
    gce.set_capacity(T4, ZONE, "on-demand", 10)
    allocation = provisioner.launch(request(*nodes))
    assert list(allocation.machines) == [one.node for one in nodes]
    assert len(gce.instances(running=True)) == 10


def test_a_replacement_that_cannot_be_had_leaves_the_others_alone(gce: GceControl, provisioner: GcpProvisioner) -> None:
    nodes = [node(f"worker-{rank}.1", rank=rank) for rank in range(3)]
    first = provisioner.launch(request(*nodes))
    another().remove(first, ["worker-1.1", "worker-2.1"])
    wait_for(lambda: len(left(gce)["instances"]) == 1)
    gce.set_capacity(T4, ZONE, "on-demand", 2)
    asked = request(node(), node("worker-1.2", rank=1), node("worker-2.2", rank=2))
    assert refused(another(), asked).error_class == "capacity"
    wait_for(lambda: left(gce)["instances"] == [name_of(first.machines["worker-0.1"])])
    gce.set_capacity(T4, ZONE, "on-demand", 3)
    assert len(another().launch(asked).machines) == 3
    assert len(gce.instances(running=True)) == 3


def test_without_a_zone_all_of_the_region_are_tried(gce: GceControl, provisioner: GcpProvisioner) -> None:
    zones = [f"us-central1-{letter}" for letter in "abcf"]
    for zone in zones:
        gce.set_capacity(T4, zone, "spot", 0)
    refusal = refused(provisioner, request(zone=None, market="spot"))
    assert (refusal.error_class, refusal.scope) == ("capacity", "region")
    tried = {call.zone for call in gce.calls("instances.insert")}
    assert len(tried) > 2, "also those where the accelerator is not sold"
    gce.set_capacity(T4, "us-central1-b", "spot", 2)
    allocation = provisioner.launch(request(*pair(), zone=None, market="spot"))
    assert {one.zone for one in gce.instances(running=True)} == {"us-central1-b"}
    again = another().launch(request(*pair(), zone=None, market="spot"))
    assert again.machines == allocation.machines


def test_a_zone_where_some_machines_have_booted_is_the_last_of_an_attempt(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    """They may have taken their nodes in the job dir, so that machines of another zone would find them taken."""
    zones = [f"us-central1-{letter}" for letter in "abcf"]
    for zone in zones:
        gce.set_capacity(T4, zone, "spot", 1)
    asked = request(*pair(), zone=None, market="spot")
    assert refused(provisioner, asked).error_class == "capacity"
    tried = {call.zone for call in gce.calls("instances.insert")}
    assert len(tried) == 1 and left(gce) == {}
    for zone in zones:
        gce.set_capacity(T4, zone, "spot", 2)
    provisioner.launch(dataclasses.replace(asked, attempt=2, token="f" * 32))
    [zone] = {one.zone for one in gce.instances(running=True)}
    assert zone not in tried


def test_a_machine_type_that_is_not_sold_in_a_zone(provisioner: GcpProvisioner) -> None:
    mega = node(machine_type="a3-megagpu-8g", accelerator="H100-80GB", count=8)
    refusal = refused(provisioner, request(mega, zone="us-central1-f"))
    assert (refusal.error_class, refusal.scope) == ("not_offered", "zone")


def test_too_small_a_quota_is_told_before_anything_is_made(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_quota("us-central1", "NVIDIA_T4_GPUS", 1)
    refusal = refused(provisioner, request(*pair(), lifetime_s=30 * 86_400))
    assert (refusal.error_class, refusal.scope) == ("quota", "region")
    assert "NVIDIA_T4_GPUS" in str(refusal)
    assert not gce.calls("*.insert")


def test_a_quota_that_compute_engine_finds_too_small_itself(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """The quotas are not told to this account; the insert is refused."""
    gce.set_quota("us-central1", "NVIDIA_T4_GPUS", 1)
    gce.fail("regions.get", error("forbidden", 403, "Required 'compute.regions.get' permission"), times=None)
    refusal = refused(provisioner, request(*pair()))
    assert (refusal.error_class, refusal.scope) == ("quota", "region")
    assert left(gce) == {}


def test_machines_that_listings_do_not_show_yet_are_asked_for_by_name_and_end_all_the_same(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    gce.set_times(lag=600.0)
    allocation = provisioner.launch(request())
    assert [state.phase for state in provisioner.observe(allocation)] == ["running"]
    assert [call.params["instance"] for call in gce.calls("instances.get")] == [
        name_of(allocation.machines["worker-0.1"])
    ]
    provisioner.terminate(allocation)
    assert left(gce) == {}


def test_what_nobody_remembers_is_ended_and_found(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """The answer was lost and so was the caller: no allocation names the machines."""
    gce.fail("instances.insert", LOSE, times=None, skip=1)
    assert refused(provisioner, request(*pair())).error_class == "transient"
    gce.heal()
    other = another()
    [found] = other.find(OWNER)
    assert (found.job_id, found.attempt, found.token) == ("digits-abc", 1, TOKEN)
    assert set(found.machines) == {"worker-0.1", "worker-1.1"}
    assert other.find(Owner("somebody-else")) == []
    other.terminate(dataclasses.replace(found, machines={}))
    assert left(gce) == {} and other.find(OWNER) == []


@pytest.mark.parametrize("preempted", [False, True])
def test_only_a_launch_that_made_a_machine_is_paid_for(gce: GceControl, preempted: bool) -> None:
    unanswered = Allocation("gcp", "digits-abc", 1, TOKEN, {}, region="us-central1", owner=OWNER.name)
    gce.fail("instances.insert", error("backendError", 503), times=None)
    assert refused(another(), request(*pair(), market="spot")).error_class == "transient"
    assert not another().terminate(unanswered).has_started
    gce.heal()
    allocation = another().launch(request(*pair(), market="spot"))
    if preempted:
        for machine in allocation.machines.values():
            gce.preempt(name_of(machine), 0.0)
        wait_for(lambda: not gce.instances(running=True))
    assert another().terminate(unanswered).has_started
    assert left(gce) == {}


def test_a_firewall_rule_alone_is_a_launch_too(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.fail("instances.insert", error("backendError", 503), times=None)
    assert refused(provisioner, request(*pair())).error_class == "transient"
    gce.heal()
    assert left(gce) == {"firewalls": [f"cloudgpu-{TOKEN}"]}
    [found] = another().find(OWNER)
    assert (found.token, found.machines) == (TOKEN, {})
    another().terminate(found)
    assert left(gce) == {}


def test_terminate_waits_until_the_machines_are_gone(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request())
    gce.set_times(stopping=0.8)
    begun = time.monotonic()
    provisioner.terminate(allocation)
    assert time.monotonic() - begun >= 0.8
    assert left(gce) == {}
    provisioner.terminate(allocation)


def test_what_somebody_took_off_a_machine_goes_too(gce: GceControl, provisioner: GcpProvisioner) -> None:
    from google.cloud import compute_v1

    from cloudgpu.provisioners.gcp.clients import Clients
    from cloudgpu.provisioners.gcp.lifecycle.ending import Ending
    from cloudgpu.provisioners.gcp.resources.sightings import Sightings

    clients = Clients(FastClock())
    disks = [one["name"] for one in gce.resources("disks")]
    assert disks == []
    allocation = provisioner.launch(request())
    assert isinstance(clients.disks, compute_v1.DisksClient)
    Ending(clients, Sightings(clients), TOKEN, "", ()).run()
    assert left(gce) == {}, "the owner need not be known"
    assert look(allocation).phase == "gone"


# --- what happens to machines -----------------------------------------------------------------------------------------


def test_a_spot_machine_that_was_taken_says_so(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request(market="spot"))
    gce.preempt(name_of(allocation.machines["worker-0.1"]), 0.1)
    wait_for(lambda: look(allocation).phase == "gone")
    state = look(allocation)
    assert state.taken and "compute.instances.preempted" in state.detail
    assert left(gce) == {}, "its disk does not stay"


def test_a_machine_that_is_maintained_returns(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request())
    gce.maintain(name_of(allocation.machines["worker-0.1"]), 0.0, repair=600.0)
    wait_for(lambda: [one.status for one in gce.instances()] == ["REPAIRING"])
    assert look(allocation).returns and look(allocation).phase != "gone"
    gce.hurry()
    wait_for(lambda: look(allocation).phase == "running" and not look(allocation).detail)
    assert not look(allocation).returns


def test_a_machine_whose_host_failed_returns(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request())
    gce.crash(name_of(allocation.machines["worker-0.1"]), repair=600.0)
    wait_for(lambda: look(allocation).returns)
    gce.hurry()
    wait_for(lambda: not look(allocation).returns)


def test_a_machine_in_the_queue_is_launched_and_bills_nothing(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", 0)
    asked = request(node(machine_type="g2-standard-4", accelerator="L4"), market="flex-start")
    allocation = provisioner.launch(asked)
    state = look(allocation)
    assert (state.phase, state.queued) == ("pending", True)
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", 1)
    wait_for(lambda: look(allocation).phase == "running")
    assert not look(allocation).queued
    provisioner.terminate(allocation)
    assert left(gce) == {}


@pytest.mark.parametrize("market", ["on-demand", "flex-start"])
def test_placement_that_takes_longer_than_a_launch_waits_makes_one_machine(
    gce: GceControl, provisioner: GcpProvisioner, market: str
) -> None:
    """The first answer is lost, and the operation takes minutes: the next launch finds it by its request id."""
    gce.set_times(operation=600.0)
    gce.fail("instances.insert", LOSE)
    asked = request(node(machine_type="g2-standard-4", accelerator="L4"), market=market)
    if market == "on-demand":
        assert refused(provisioner, asked).code == "OperationTimeout"
    gce.set_times(operation=0.02)
    gce.hurry()
    allocation = another().launch(dataclasses.replace(asked, repeated=True))
    wait_for(lambda: look(allocation).phase == "running")
    assert len(gce.instances()) == 1
    provisioner.terminate(allocation)
    assert left(gce) == {}


def test_a_machine_that_is_not_got_in_the_queue_was_refused(
    gce: GceControl, provisioner: GcpProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", 0)
    asked = request(node(machine_type="g2-standard-4", accelerator="L4"), market="flex-start")
    allocation = provisioner.launch(asked)
    gce.set_quota("us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", None)
    wait_for(lambda: look(allocation).phase == "gone")
    state = look(allocation)
    assert state.refused is not None and state.refused.error_class == "quota"


def test_several_machines_do_not_wait_in_the_queue_for_each_other(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.fail(
        "instances.insert",
        error("ZONE_RESOURCE_POOL_EXHAUSTED", 503, "The zone does not have enough resources"),
        skip=1,
        times=None,
    )
    machines = [node(f"worker-{rank}.1", "g2-standard-4", rank, "L4") for rank in range(2)]
    assert refused(provisioner, request(*machines, market="flex-start")).error_class == "capacity"
    assert left(gce) == {}


# --- many jobs --------------------------------------------------------------------------------------------------------


def test_watching_a_hundred_jobs_costs_one_call(gce: GceControl, provisioner: GcpProvisioner) -> None:
    first = provisioner.launch(request())
    jobs = [dataclasses.replace(first, token=f"{number:032x}") for number in range(100)]
    time.sleep(0.01)
    fresh = another()
    fresh.observe(first)  # logs in
    gce.forget()
    fresh = another(StillClock())
    with ThreadPoolExecutor(20) as pool:
        states = list(pool.map(fresh.observe, jobs))
    assert all(state.phase == "running" for [state] in states)
    assert [call.action for call in gce.calls() if call.service == "compute"] == ["instances.aggregatedList"]


def test_a_zone_that_cannot_be_reached_keeps_jobs_of_other_regions_from_nothing(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    here = provisioner.launch(request())
    gce.cut_off("us-east1-b")
    there = dataclasses.replace(here, token="e" * 32, region="us-east1")
    assert look(here).phase == "running"
    with pytest.raises(ProvisionError, match="us-east1-b cannot be reached") as caught:
        another(FastClock()).observe(there)
    assert caught.value.error_class == "transient"
    with pytest.raises(ProvisionError, match="us-east1-b cannot be reached"):
        another(FastClock()).find(OWNER)
    provisioner.terminate(here)
    assert left(gce) == {}


def test_where_no_list_of_all_zones_can_be_had_those_of_the_region_do(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    """One zone of the world that cannot be listed makes every aggregated list fail."""
    gce.fail("*.aggregatedList", error("backendError", 503, "us-moon1-a cannot be listed"), times=None)
    here = provisioner.launch(request(*pair(), zone=None))
    assert [state.phase for state in another().observe(here)] == ["running", "running"]
    assert another(FastClock()).launch(request(*pair(), zone=None)).machines == here.machines
    provisioner.remove(here, ["worker-1.1"])
    wait_for(lambda: len(gce.instances(running=True)) == 1)
    gce.forget()
    provisioner.observe(here)
    provisioner.observe(here)
    assert gce.calls("*.aggregatedList") == [], "it was tried a moment ago"
    provisioner.terminate(here)
    assert left(gce) == {}
    with pytest.raises(ProvisionError, match="cannot be listed"):
        provisioner.find(OWNER)
    gce.heal()
    assert provisioner.find(OWNER) == []


@pytest.mark.parametrize("code", ["SOMETHING_NEW", "VM_MIN_COUNT_NOT_REACHED", "RESERVATION_CAPACITY_EXCEEDED"])
def test_an_operation_that_fails_for_an_unknown_reason_leads_to_the_next_zone(
    gce: GceControl, provisioner: GcpProvisioner, code: str
) -> None:
    gce.fail_later("us-central1-a", code, 503)
    provisioner.launch(request(zone=None, market="spot"))
    assert [one.zone for one in gce.instances(running=True)] == ["us-central1-b"]


def test_why_a_machine_is_gone_is_asked_once(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request(market="spot"))
    gce.preempt(name_of(allocation.machines["worker-0.1"]), 0.1)
    wait_for(lambda: not left(gce))
    clock = FastClock()
    watcher = another(clock)
    assert all(watcher.observe(allocation)[0].taken for _ in range(3))
    gce.forget()
    clock.sleep(10.0)
    assert watcher.observe(allocation)[0].taken
    assert [call.action for call in gce.calls() if call.service == "compute"] == ["instances.aggregatedList"]


def test_launches_and_ends_at_once(gce: GceControl, provisioner: GcpProvisioner) -> None:
    jobs = [request(token=f"{number:032x}"[::-1], job_id=f"job-{number}") for number in range(8)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        allocations = list(pool.map(provisioner.launch, jobs))
        assert len({machine for one in allocations for machine in one.machines.values()}) == len(jobs)
        assert len(gce.calls()) <= 30 * len(jobs)
        list(pool.map(provisioner.terminate, allocations))
    assert left(gce) == {}
    assert [one["name"] for one in gce.resources("firewalls")] == [KEPT]


# --- what is wrong with the account -----------------------------------------------------------------------------------


def test_machines_are_not_gone_because_the_settings_name_another_project(
    gce: GceControl, provisioner: GcpProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = provisioner.launch(request())
    assert allocation.account == provisioner.account() == "project-of-tests"
    older = Allocation.from_json({**allocation.to_json(), "account": "", "details": {"project": "project-of-tests"}})
    said = r"in the Google Cloud project project-of-tests, these credentials are of another-project: set GOOGLE_CLOUD_P"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
        stranger = another()
        for verb in (
            stranger.observe,
            stranger.terminate,
            lambda one: stranger.remove(one, list(one.machines)),
            lambda one: stranger.explain(one, next(iter(one.machines))),
            lambda _: stranger.launch(request(account="project-of-tests")),
            lambda _: stranger.check_account("project-of-tests"),
        ):
            for one in (allocation, older):
                with pytest.raises(ProvisionError, match=said) as caught:
                    verb(one)
                assert (caught.value.error_class, caught.value.code) == ("auth", "OtherAccount")
        with pytest.raises(ProvisionError, match="check GOOGLE_CLOUD_PROJECT: there is no such project") as caught:
            stranger.find(OWNER)
        assert caught.value.error_class == "auth"
    assert look(allocation).phase == "running"


def test_no_credentials(gce: GceControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    refusal = refused(another(), request())
    assert (refusal.error_class, refusal.scope) == ("auth", "cloud")
    assert "gcloud auth application-default login" in str(refusal)
    assert not gce.calls("instances.*")


@pytest.mark.parametrize(
    ("denied", "says"),
    [
        (error("forbidden", 403, "Required 'compute.x.y' permission for 'projects/p'"), "give this permission"),
        (error("accessNotConfigured", 403, "Compute Engine API has not been used in project 1"), "gcloud services"),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
@pytest.mark.parametrize(
    "action",
    ["instances.aggregatedList", "networks.get", "firewalls.insert", "images.getFromFamily", "instances.insert"],
)
def test_what_is_denied_leaves_nothing_and_is_not_repeated(
    gce: GceControl, provisioner: GcpProvisioner, denied: Fault, says: str, action: str
) -> None:
    gce.fail(action, denied, times=None)
    refusal = refused(provisioner, request())
    assert refusal.error_class == "auth"
    for text in (denied.code, denied.message, says):
        assert text in str(refusal)
    assert left(gce) == {}
    assert len(gce.calls(action)) == 1


def test_throttling_is_no_denial(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """Both are 403."""
    for action in ("instances.aggregatedList", "networks.get", "firewalls.get", "instances.insert"):
        gce.fail(action, error("rateLimitExceeded", 403, "Rate Limit Exceeded"), times=2)
    assert look(provisioner.launch(request())).phase == "running"


def test_a_key_that_was_revoked_is_told_and_a_new_one_is_used(
    gce: GceControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provisioner = another()
    good = gce.key_file(SUBMITTER, tmp_path / "good.json")
    bad = tmp_path / "bad.json"
    bad.write_text(good.read_text().replace("submitter@", "nobody@"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bad))
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope) == ("auth", "cloud")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(good))
    assert len(provisioner.launch(request()).machines) == 1


def test_without_the_machines_service_account_it_is_said_how_to_make_it(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    gce.remove_account(MACHINE)
    try:
        refusal = refused(provisioner, request())
    finally:
        gce.add_account(MACHINE)
    assert refusal.error_class == "invalid" and MACHINE in str(refusal)
    assert "CLOUDGPU_GCP_SERVICE_ACCOUNT" in str(refusal)
    assert left(gce) == {}


def test_no_network(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.remove_network("default")
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope) == ("invalid", "cloud")
    assert "gcloud compute networks create cloudgpu" in str(refusal)
    gce.add_network("default", regions=["europe-west4"])
    refusal = refused(another(), request())
    assert (refusal.error_class, refusal.scope) == ("not_offered", "region")
    assert "gcloud compute networks subnets create" in str(refusal)
    assert not gce.calls("*.insert")


def test_a_server_that_hangs_costs_no_more_than_its_timeouts(gce: GceControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudgpu.provisioners.gcp.resources.sightings.READ_S", 0.3)
    gce.fail("instances.aggregatedList", HANG, times=None)
    begun = time.monotonic()
    with pytest.raises(ProvisionError, match="look at the machines") as caught:
        another().find(OWNER)
    assert caught.value.error_class == "transient"
    assert time.monotonic() - begun < 180


def test_an_endpoint_that_is_not_encrypted_is_refused(gce: GceControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_GCP_ENDPOINT", "http://compute.example.com")
    refusal = refused(another(), request())
    assert refusal.error_class == "invalid" and "not encrypted" in str(refusal)
    assert not gce.calls()


# --- reservations -----------------------------------------------------------------------------------------------------


def test_a_reservation_is_launched_into_wherever_it_is(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.reserve("mine", T4, "us-central1-f", 2, accelerator="nvidia-tesla-t4", count=1)
    allocation = provisioner.launch(request(*pair(), zone=None, market="reservation"))
    assert {one.zone for one in gce.instances(running=True)} == {"us-central1-f"}
    assert {one.market for one in gce.instances()} == {"reservation"}
    again = another().launch(request(*pair(), zone=None, market="reservation"))
    assert again.machines == allocation.machines
    provisioner.terminate(allocation)
    assert left(gce) == {}


def test_a_reservation_that_was_used_up_in_the_meantime_is_a_lack_of_capacity(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    gce.reserve("mine", T4, "us-central1-f", 2, accelerator="nvidia-tesla-t4", count=1)
    gce.fail_later("us-central1-f", "RESERVATION_CAPACITY_EXCEEDED", 503)
    refusal = refused(provisioner, request(*pair(), zone=None, market="reservation"))
    assert (refusal.error_class, refusal.code) == ("capacity", "RESERVATION_CAPACITY_EXCEEDED")
    assert left(gce) == {}


def test_machines_of_a_dense_reservation_are_bound_to_it(
    gce: GceControl, provisioner: GcpProvisioner, caplog: pytest.LogCaptureFixture
) -> None:
    ultra = [node(f"worker-{rank}.1", "a3-ultragpu-8g", rank, "H200-141GB", 8) for rank in range(2)]
    gce.reserve("block", "a3-ultragpu-8g", "us-central1-b", 2, dense=True)
    provisioner.launch(request(*ultra, zone="us-central1-b", market="reservation"))
    models = {one.scheduling["provisioningModel"] for one in gce.instances(running=True)}
    assert models == {"RESERVATION_BOUND"} and len(gce.instances()) == 2
    assert "not by GPUDirect" in caplog.text
    assert refused(
        another(), request(ultra[0], token="e" * 32, zone="us-central1-b", market="reservation")
    ).error_class == ("capacity")


@pytest.mark.parametrize(("machine_type", "places", "count"), [(T4, 1, 1), (T4, 2, 4), ("n1-standard-8", 2, 1)])
def test_without_a_reservation_that_fits_nothing_is_made(
    gce: GceControl, provisioner: GcpProvisioner, machine_type: str, places: int, count: int
) -> None:
    gce.reserve("mine", machine_type, ZONE, places, accelerator="nvidia-tesla-t4", count=count)
    refusal = refused(provisioner, request(*pair(), market="reservation"))
    assert refusal.error_class == "capacity" and "no reservation" in str(refusal)
    assert not gce.calls("*.insert")
