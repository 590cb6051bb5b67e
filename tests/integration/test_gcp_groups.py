"""Launches on Compute Engine whose machines are a group of their own, over the wire: what is made, what goes wrong, and
that nothing of it is left."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.infra.gcp.programs import fleet_program
from cloudgpu.infra.settings import FleetSettings
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.gcp.clients import Clients
from cloudgpu.provisioners.gcp.lifecycle import gc
from cloudgpu.provisioners.gcp.machine.images import Images
from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner
from cloudgpu.provisioners.gcp.resources import instance_groups
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks.job_groups import fleet_of
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import LOSE, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import PROJECT, Gcp
from cloudgpu.tests.standins.gcp.stacks import NETWORK, REGION, create_stack
from cloudgpu.tests.standins.gcs.control import GcsControl
from cloudgpu.tests.standins.pulumi.gcp import instance_properties
from cloudgpu.tests.standins.pulumi.mocks import Registered, only, run_strict

BUCKET = "jobs-of-tests"
JOB_DIR = f"gs://{BUCKET}/jobs/digits-abc"
TOKEN = "0123456789abcdef" * 2
NAME = f"cloudgpu-{TOKEN}"
OWNER = Owner("cloudgpu-tester")
ZONE = f"{REGION}-a"
T4, A100 = "n1-standard-4", "a2-highgpu-1g"
KEPT = f"cloudgpu-closed-{NETWORK}"
MADE = ("instances", "disks", "firewalls", "instanceTemplates", "resourcePolicies", "regionInstanceGroupManagers")


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def gce(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GceControl:
    server.control.reset()
    for name, value in {**server.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    GcsControl(server.url).make_bucket(BUCKET)
    return GceControl(server.url)


@pytest.fixture
def stack(gce: GceControl) -> Infrastructure:
    made = create_stack(gce, f"gs://{BUCKET}/jobs")
    JobDir(JOB_DIR).put("agent/abc.pyz", b"an agent")
    return made


def another() -> GcpProvisioner:
    """A provisioner that has seen nothing yet, as that of another process."""
    return GcpProvisioner(FastClock())


def request(nodes: int = 2, machine_type: str = T4, accelerator: str = "T4", **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token=TOKEN,
        owner=OWNER,
        job_dir=JOB_DIR,
        job_sha256="0" * 64,
        region=REGION,
        zone=ZONE,
        market="spot",
        disk_gb=100.0,
        nodes=tuple(
            NodeRequest(f"worker-{at}.1", "worker", at, at, machine_type, accelerator, Fraction(1))
            for at in range(nodes)
        ),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
        grouped=True,
    )
    return dataclasses.replace(base, **changes)


def unanswered() -> Allocation:
    """As the supervisor knows a launch whose answer nobody has."""
    return Allocation("gcp", "digits-abc", 1, TOKEN, {}, region=REGION, owner=OWNER.name)


def left(gce: GceControl) -> dict[str, list[str]]:
    found = {kind: [str(one["name"]) for one in gce.resources(kind) if one["name"] != KEPT] for kind in MADE}
    return {kind: names for kind, names in found.items() if names}


def wait_for(condition: Callable[[], object], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def running(gce: GceControl, number: int) -> None:
    wait_for(lambda: len(gce.instances(running=True)) == number)


def refused(asked: LaunchRequest) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        another().launch(asked)
    return caught.value


def look_until(allocation: Allocation, what: Callable[[list[NodeState]], bool]) -> list[NodeState]:
    provisioner, seen = another(), list[NodeState]()

    def does() -> bool:
        seen[:] = provisioner.observe(allocation)
        return what(seen)

    wait_for(does)
    return seen


# --- what is made -----------------------------------------------------------------------------------------------------


def test_a_group_is_made_watched_and_removed_with_all_that_was_made_for_it(
    gce: GceControl, stack: Infrastructure
) -> None:
    provisioner = another()
    allocation = provisioner.launch(request())
    assert allocation.machines == {"worker-0.1": f"{NAME}/worker-0", "worker-1.1": f"{NAME}/worker-1"}
    running(gce, 2)
    assert {state.phase for state in another().observe(allocation)} == {"pending"}
    [first, second] = gce.instances(running=True)
    assert {first.zone, second.zone} == {ZONE} and {first.market, second.market} == {"spot"}
    assert first.name.startswith(f"cloudgpu-{TOKEN[:16]}-"), "machines of ours may be deleted by their names"
    assert provisioner.explain(allocation, "worker-0.1") == ""
    provisioner.remove(allocation, ["worker-0.1"])
    assert len(gce.instances(running=True)) == 2
    provisioner.terminate(allocation)
    assert left(gce) == {}
    assert {state.phase for state in another().observe(allocation)} == {"gone"}
    provisioner.terminate(allocation)


def test_everything_says_whose_it_is_and_when_it_expires(gce: GceControl, stack: Infrastructure) -> None:
    another().launch(request())
    running(gce, 2)
    wanted = {
        "cloudgpu-owner": OWNER.name,
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "1",
        "cloudgpu-token": TOKEN,
        "cloudgpu-expires": "2000000000",
    }
    assert all(one["labels"] == wanted for kind in ("instances", "disks") for one in gce.resources(kind))
    for kind in ("group", "template"):
        [part] = instance_groups.find(Clients(FastClock()), kind).found
        assert part.tags == wanted
    [group] = gce.resources("regionInstanceGroupManagers")
    assert group["namedPorts"] == [{"name": "cloudgpu-expires-2000000000", "port": 1}]


TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
GROUP = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
MARKETS: dict[str, dict[str, Any]] = {
    "spot, attached GPUs": {},
    "on demand, placed together": {"machine_type": A100, "accelerator": "A100-40GB", "market": "on-demand"},
    "one machine, no lifetime": {"nodes": 1, "lifetime_s": None, "market": "on-demand"},
    "anywhere in the region": {"zone": None},
}
MAY_DIFFER = {"description", "labels", "tags", "metadata", "resourcePolicies"}


@pytest.mark.parametrize("name", MARKETS)
def test_machines_and_group_are_those_that_the_component_makes(
    gce: GceControl, stack: Infrastructure, name: str
) -> None:
    asked = request(**MARKETS[name])
    registered = component_of(asked, stack)
    another().launch(asked)
    [template], [group] = gce.resources("instanceTemplates"), gce.resources("regionInstanceGroupManagers")
    made, wanted = template["properties"], instance_properties(only(registered, TEMPLATE).inputs)
    made["scheduling"].setdefault("preemptible", made["scheduling"]["provisioningModel"] == "SPOT")
    for labels in (made["disks"][0]["initializeParams"], wanted["disks"][0]["initializeParams"]):
        assert labels.pop("labels")
    made, wanted = whole(made), whole(wanted)
    differs = {key for key in {*made, *wanted} if made.get(key) != wanted.get(key)}
    assert differs <= MAY_DIFFER, {key: (made.get(key), wanted.get(key)) for key in differs - MAY_DIFFER}
    assert (
        bool(made.get("resourcePolicies"))
        == bool(wanted.get("resourcePolicies"))
        == (asked.nodes[0].machine_type == A100)
    )
    assert {one["key"] for one in made["metadata"]["items"]} == {one["key"] for one in wanted["metadata"]["items"]}
    told = only(registered, GROUP).inputs
    assert told["targetSize"] == group["targetSize"] == len(asked.nodes)
    assert told["distributionPolicyTargetShape"] == group["distributionPolicy"]["targetShape"]
    zones = [one["zone"].rpartition("/")[2] for one in group["distributionPolicy"].get("zones", [])]
    assert (told.get("distributionPolicyZones") or []) == zones == ([asked.zone] if asked.zone else [])
    assert told["instanceLifecyclePolicy"] == group["instanceLifecyclePolicy"]
    assert flat(told["updatePolicy"]) == flat(group["updatePolicy"])
    another().terminate(unanswered())
    assert left(gce) == {}


def component_of(asked: LaunchRequest, stack: Infrastructure) -> list[Registered]:
    fleet = fleet_of(asked, "gcp")
    settings = FleetSettings(
        stack="cluster-big",
        owner="cloudgpu-me@here",
        fleet=fleet,
        infrastructure=stack,
        user_data="#!/bin/sh\n",
        image=image_of(asked),
        fleet_dir=f"{JOB_DIR}/fleets/big",
        account=PROJECT,
        expires=2_000_000_000.0,
    )
    return run_strict(lambda: fleet_program(settings), stack="cluster-big")


def image_of(asked: LaunchRequest) -> str:
    return Images(Clients(FastClock())).find(asked.nodes[0]).source


def whole(value: Any) -> Any:
    """64-bit numbers are text on the wire; a URL may begin with a host or not."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [whole(one) for one in value]
    if not isinstance(value, str):
        return value
    return int(value) if value.isdecimal() else value.removeprefix("https://www.googleapis.com/compute/v1/")


def flat(policy: Any) -> dict[str, Any]:
    """Pulumi has `maxSurgeFixed` where the API has `maxSurge.fixed`."""
    found: dict[str, Any] = {}
    for key, value in policy.items():
        found |= {f"{key}Fixed": value["fixed"]} if isinstance(value, dict) else {key: value}
    return found


def test_a_reservation_is_used_where_it_has_room(gce: GceControl, stack: Infrastructure) -> None:
    gce.reserve("r", T4, f"{REGION}-b", 2, accelerator="nvidia-tesla-t4", count=1)
    another().launch(request(market="reservation", zone=None))
    running(gce, 2)
    assert {one.zone for one in gce.instances()} == {f"{REGION}-b"}
    another().terminate(unanswered())
    error = refused(request(nodes=3, market="reservation", zone=None, token="e" * 32))
    assert error.error_class == "capacity" and "no reservation" in str(error)
    assert left(gce) == {}


# --- again, and after the end -----------------------------------------------------------------------------------------


def test_who_asks_again_gets_the_same_group(gce: GceControl, stack: Infrastructure) -> None:
    first = another().launch(request())
    assert another().launch(request()) == first
    assert len(gce.calls("regionInstanceGroupManagers.insert")) == 1
    assert len(gce.calls("instanceTemplates.insert")) == 1
    another().terminate(first)


def test_what_was_ended_does_not_come_to_life_again(gce: GceControl, stack: Infrastructure) -> None:
    allocation = another().launch(request())
    another().terminate(allocation)
    again = another().launch(request())
    assert {state.phase for state in another().observe(again)} == {"gone"}
    assert left(gce) == {}


def test_a_call_whose_answer_is_lost_makes_nothing_twice(gce: GceControl, stack: Infrastructure) -> None:
    actions = ["instanceTemplates.insert", "regionInstanceGroupManagers.insert", "resourcePolicies.insert"]
    for action in actions:
        gce.fail(action, LOSE)
    allocation = another().launch(request(machine_type=A100, accelerator="A100-40GB"))
    assert {call.action for call in gce.calls() if call.fault} == set(actions)
    assert {kind: len(names) for kind, names in left(gce).items() if kind not in {"instances", "disks"}} == {
        "firewalls": 1,
        "instanceTemplates": 1,
        "resourcePolicies": 1,
        "regionInstanceGroupManagers": 1,
    }
    another().terminate(allocation)
    assert left(gce) == {}


@pytest.mark.parametrize("grouped", [True, False], ids=["a group", "machines"])
def test_where_no_list_of_all_regions_can_be_had_that_of_the_region_does(
    gce: GceControl, stack: Infrastructure, grouped: bool
) -> None:
    """One zone of the world that cannot be listed makes every aggregated list fail."""
    gce.fail("*.aggregatedList", error("backendError", 503, "us-moon1-a cannot be listed"), times=None)
    asked = request(machine_type=A100, accelerator="A100-40GB", grouped=grouped)
    allocation = another().launch(asked)
    running(gce, 2)
    assert {state.phase for state in another().observe(allocation)} <= {"pending", "running"}
    assert another().launch(asked).machines == allocation.machines
    another().terminate(unanswered())
    assert left(gce) == {}


@pytest.mark.parametrize("known", [True, False], ids=["its region is known", "by its token only"])
def test_a_launch_whose_answer_nobody_has_is_ended(gce: GceControl, stack: Infrastructure, known: bool) -> None:
    gce.set_times(operation=0.3, stopping=0.3, lag=0.5)
    another().launch(request())
    allocation = unanswered() if known else dataclasses.replace(unanswered(), region="", owner="")
    another().terminate(allocation)
    assert left(gce) == {}


def test_a_group_of_no_machines_is_found_and_removed(gce: GceControl, stack: Infrastructure) -> None:
    """As machines leave it that have done their work."""
    allocation = another().launch(request())
    running(gce, 2)
    empty(gce)
    assert {(one.phase, one.refused is None) for one in another().observe(allocation)} == {("gone", False)}
    [found] = another().find(OWNER)
    assert (found.token, found.job_id, found.attempt, found.machines) == (TOKEN, "digits-abc", 1, {})
    another().terminate(found)
    assert left(gce) == {}


def empty(gce: GceControl) -> None:
    import google.auth
    from google.cloud import compute_v1

    credentials, project = google.auth.default()
    client = compute_v1.RegionInstanceGroupManagersClient(
        credentials=credentials, client_options={"api_endpoint": gce.url}
    )
    client.resize_unary(project=project, region=REGION, instance_group_manager=NAME, size=0, timeout=30)
    wait_for(lambda: not gce.resources("instances"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_without_a_stack_it_says_how_to_make_one(gce: GceControl) -> None:
    error = refused(request())
    assert (error.error_class, error.scope) == ("invalid", "region")
    assert f"cloudgpu infra up --cloud gcp --region {REGION}" in str(error)
    assert not gce.calls("*.insert", service="compute")


def test_a_stack_of_another_project_is_no_stack(
    gce: GceControl, stack: Infrastructure, monkeypatch: pytest.MonkeyPatch
) -> None:
    subnet = stack.subnets[""].replace("/projects/", "/projects/other-")
    infra_outputs.save(dataclasses.replace(stack, subnets={"": subnet}))
    error = refused(request())
    assert (error.error_class, error.scope) == ("invalid", "region")
    assert "is not of project" in str(error)


def test_a_zone_without_room_ends_the_order_and_says_where_there_is_some(
    gce: GceControl, stack: Infrastructure
) -> None:
    """The supervisor then goes on to another place."""
    gce.set_capacity(T4, ZONE, "spot", 1)
    allocation = another().launch(request())
    states = look_until(allocation, lambda seen: all(state.phase == "gone" for state in seen))
    for state in states:
        assert state.refused is not None
        assert (state.refused.error_class, state.refused.scope) == ("capacity", "zone")
    order = Fleet(f"{JOB_DIR}/fleets/{TOKEN[:16]}").view().of_token(TOKEN)
    assert order is not None and order.end is not None and order.end.unserved
    another().terminate(allocation)
    assert left(gce) == {}


def test_a_zone_without_room_is_no_reason_where_there_are_others(gce: GceControl, stack: Infrastructure) -> None:
    group = instance_groups.Part("group", NAME, REGION, {}, "", zones=(ZONE, f"{REGION}-b"))
    gce.set_capacity(T4, ZONE, "spot", 0)
    another().launch(request())
    clients = Clients(FastClock())
    wait_for(lambda: instance_groups.trouble(clients, group._replace(zones=(ZONE,))))
    assert instance_groups.trouble(clients, group) is None
    another().terminate(unanswered())


def test_a_quota_that_is_used_up_is_told(gce: GceControl, stack: Infrastructure) -> None:
    """It is taken by somebody else after it was looked at."""
    allocation = another().launch(request())
    running(gce, 2)
    gce.set_quota(REGION, "PREEMPTIBLE_NVIDIA_T4_GPUS", 1)
    for one in gce.instances(running=True):
        delete(gce, one.zone, one.name)
    states = look_until(allocation, lambda seen: any(state.refused for state in seen))
    assert {state.refused.error_class for state in states if state.refused} == {"quota"}
    another().terminate(allocation)
    assert left(gce) == {}


def delete(gce: GceControl, zone: str, name: str) -> None:
    import google.auth
    from google.cloud import compute_v1

    credentials, project = google.auth.default()
    client = compute_v1.InstancesClient(credentials=credentials, client_options={"api_endpoint": gce.url})
    client.delete_unary(project=project, zone=zone, instance=name, timeout=30)


@pytest.mark.parametrize("action", ["instanceTemplates.insert", "regionInstanceGroupManagers.insert"])
def test_a_refused_launch_leaves_nothing(gce: GceControl, stack: Infrastructure, action: str) -> None:
    gce.fail(action, error("forbidden", 403, "Required permission"))
    assert refused(request()).error_class == "auth"
    assert left(gce) == {}
    gce.heal()
    another().launch(request())
    running(gce, 2)
    another().terminate(unanswered())
    assert left(gce) == {}


def test_flex_start_is_refused(gce: GceControl, stack: Infrastructure) -> None:
    assert "flex-start" in str(refused(request(nodes=1, market="flex-start")))
    assert left(gce) == {}


# --- gc ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [{"instances"}, {"instances", "regionInstanceGroupManagers"}], ids=["group", "template"]
)
def test_gc_finds_what_is_left_of_a_group_and_removes_it(
    gce: GceControl, stack: Infrastructure, parts: set[str]
) -> None:
    """Not only machines: an empty group makes new ones when somebody sets its size, a template stays for ever."""
    another().launch(request())
    running(gce, 2)
    empty(gce)
    if "regionInstanceGroupManagers" in parts:
        clients = Clients(FastClock())
        instance_groups.end(clients, TOKEN, REGION, clients.clock.monotonic() + 60)
    [found] = gc.find([REGION], Clients(FastClock())).leftovers
    kinds = {thing.kind for thing in found.things}
    assert kinds >= {"instance template", "firewall rule"}
    assert ("instance group" in kinds) == (parts == {"instances"})
    assert (found.token, found.owner, found.expires) == (TOKEN, OWNER.name, 2_000_000_000.0)
    gc.remove(found, Clients(FastClock()))
    assert left(gce) == {}
    assert gc.find([], Clients(FastClock())).leftovers == []
