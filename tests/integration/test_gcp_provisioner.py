"""Target gcp over the wire: Google's SDK against the stand-in in tests/standins/gcp, with injected faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.contract.targets.standin import refused, until
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HANG, LOSE, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcp.project import account

OWNER = Owner("cloudgpu-tester")
TOKEN = "0123456789abcdef0123456789abcdef"
ZONE = "us-central1-a"
T4 = "n1-standard-4"
KEPT = "cloudgpu-closed-default"
"""The firewall rule that all launches share, and which stays."""


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
    """Return a provisioner without cached state, like that of another process."""
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
    """Return the names of cloudgpu's resources by kind, except the shared firewall rule."""
    found = {
        kind: [str(one["name"]) for one in gce.resources(kind) if one["name"] != KEPT]
        for kind in ("instances", "disks", "firewalls")
    }
    return {kind: names for kind, names in found.items() if names}


def name_of(machine: str) -> str:
    return machine.partition("/")[2]


def look(allocation: Allocation) -> NodeState:
    """Observe the only node with a provisioner that has no cached state."""
    [state] = another().observe(allocation)
    return state


# --- properties of a machine ------------------------------------------------------------------------------------------


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
    """Save the outputs of an infra stack, as `cloudgpu infra up` does."""
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
    infra_outputs.save(found)
    return found


def used(gce: GceControl) -> list[tuple[str, str]]:
    """Return the subnetwork and the service account of each machine."""
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
    infra_outputs.path_of("gcp", "us-central1").write_text("{")
    assert "cannot be read" in str(refused(provisioner, request(token="e" * 32)))
    assert len(gce.instances()) == 1


def test_the_network_of_a_stack_is_found_where_nothing_is_written_down(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    gce.add_network("cloudgpu-us-central1", regions=["us-central1"], private_access=True)
    provisioner.launch(request())
    assert used(gce) == [("cloudgpu-us-central1", MACHINE)]


# --- repeated launches ------------------------------------------------------------------------------------------------


def test_a_machine_whose_request_id_is_forgotten_is_known_by_its_name(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    provisioner.launch(request())
    # The owner label differs, so no list finds the machine; and listing operations fails.
    gce.fail("globalOperations.aggregatedList|zoneOperations.list", error("internalError", 500), times=None)
    assert refused(another(), request(owner=Owner("somebody-else"))).error_class == "transient"
    gce.heal()
    allocation = another().launch(request(owner=Owner("somebody-else")))
    assert len(gce.instances()) == 1 and look(allocation).phase == "running"


def test_a_machine_missing_in_lists_is_found_by_its_operation_and_deleted(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    """The launch's answer was lost and lists do not show the machine, which is still being created when the launch is
    terminated."""
    gce.set_times(operation=1.5)
    gce.fail("instances.insert", LOSE, times=None)
    gce.set_times(lag=1.0)
    assert refused(provisioner, request()).error_class == "transient"
    gce.heal()
    another().terminate(Allocation("gcp", "digits-abc", 1, TOKEN, {}, region="us-central1", owner=OWNER.name))
    assert len(gce.instances()) == 1
    assert left(gce) == {}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_machine_type_that_is_not_sold_in_a_zone(provisioner: GcpProvisioner) -> None:
    mega = node(machine_type="a3-megagpu-8g", accelerator="H100-80GB", count=8)
    refusal = refused(provisioner, request(mega, zone="us-central1-f"))
    assert (refusal.error_class, refusal.scope) == ("not_offered", "zone")


def test_a_quota_that_compute_engine_finds_too_small_itself(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """The account may not read quotas, so only the insert is refused."""
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


def test_a_firewall_rule_alone_is_a_launch_too(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.fail("instances.insert", error("backendError", 503), times=None)
    assert refused(provisioner, request(*pair())).error_class == "transient"
    gce.heal()
    assert left(gce) == {"firewalls": [f"cloudgpu-{TOKEN}"]}
    [found] = another().find(OWNER)
    assert (found.token, found.machines) == (TOKEN, {})
    another().terminate(found)
    assert left(gce) == {}


def test_teardown_without_owner_and_region_leaves_nothing(gce: GceControl, provisioner: GcpProvisioner) -> None:
    from google.cloud import compute_v1

    from cloudgpu.provisioners.gcp.clients import Clients
    from cloudgpu.provisioners.gcp.lifecycle.teardown import Teardown
    from cloudgpu.provisioners.gcp.resources.instance_cache import InstanceCache

    clients = Clients(FastClock())
    disks = [one["name"] for one in gce.resources("disks")]
    assert disks == []
    allocation = provisioner.launch(request())
    assert isinstance(clients.disks, compute_v1.DisksClient)
    Teardown(clients, InstanceCache(clients), TOKEN, "", ()).run()
    assert left(gce) == {}, "the owner need not be known"
    assert look(allocation).phase == "gone"


# --- states of machines -----------------------------------------------------------------------------------------------


def test_a_machine_that_is_maintained_returns(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request())
    gce.maintain(name_of(allocation.machines["worker-0.1"]), 0.0, repair=600.0)
    until(lambda: [one.status for one in gce.instances()] == ["REPAIRING"])
    assert look(allocation).restarting and look(allocation).phase != "gone"
    gce.run_delayed()
    until(lambda: look(allocation).phase == "running" and not look(allocation).detail)
    assert not look(allocation).restarting


def test_a_machine_whose_host_failed_returns(gce: GceControl, provisioner: GcpProvisioner) -> None:
    allocation = provisioner.launch(request())
    gce.crash(name_of(allocation.machines["worker-0.1"]), repair=600.0)
    until(lambda: look(allocation).restarting)
    gce.run_delayed()
    until(lambda: not look(allocation).restarting)


def test_a_machine_in_the_queue_is_launched_and_bills_nothing(gce: GceControl, provisioner: GcpProvisioner) -> None:
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", 0)
    asked = request(node(machine_type="g2-standard-4", accelerator="L4"), market="flex-start")
    allocation = provisioner.launch(asked)
    state = look(allocation)
    assert (state.phase, state.queued) == ("pending", True)
    gce.set_capacity("g2-standard-4", ZONE, "flex-start", 1)
    until(lambda: look(allocation).phase == "running")
    assert not look(allocation).queued
    provisioner.terminate(allocation)
    assert left(gce) == {}


@pytest.mark.parametrize("market", ["on-demand", "flex-start"])
def test_placement_that_takes_longer_than_a_launch_waits_makes_one_machine(
    gce: GceControl, provisioner: GcpProvisioner, market: str
) -> None:
    """The first answer is lost and the operation takes minutes: the next launch finds it by its request id."""
    gce.set_times(operation=600.0)
    gce.fail("instances.insert", LOSE)
    asked = request(node(machine_type="g2-standard-4", accelerator="L4"), market=market)
    if market == "on-demand":
        assert refused(provisioner, asked).code == "OperationTimeout"
    gce.set_times(operation=0.02)
    gce.run_delayed()
    allocation = another().launch(dataclasses.replace(asked, may_be_retry=True))
    until(lambda: look(allocation).phase == "running")
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
    until(lambda: look(allocation).phase == "gone")
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


def test_a_failing_aggregated_list_is_replaced_by_the_regions_lists(
    gce: GceControl, provisioner: GcpProvisioner
) -> None:
    """One zone that cannot be listed makes every aggregated list fail."""
    gce.fail("*.aggregatedList", error("backendError", 503, "us-moon1-a cannot be listed"), times=None)
    here = provisioner.launch(request(*pair(), zone=None))
    assert [state.phase for state in another().observe(here)] == ["running", "running"]
    assert another(FastClock()).launch(request(*pair(), zone=None)).machines == here.machines
    provisioner.remove(here, ["worker-1.1"])
    until(lambda: len(gce.instances(running=True)) == 1)
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
    until(lambda: not left(gce))
    clock = FastClock()
    watcher = another(clock)
    assert all(watcher.observe(allocation)[0].reclaimed for _ in range(3))
    gce.forget()
    clock.sleep(10.0)
    assert watcher.observe(allocation)[0].reclaimed
    assert [call.action for call in gce.calls() if call.service == "compute"] == ["instances.aggregatedList"]


# --- errors of the account --------------------------------------------------------------------------------------------


def test_nothing_is_found_in_a_project_that_does_not_exist(gce: GceControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
    with pytest.raises(ProvisionError, match="check GOOGLE_CLOUD_PROJECT: there is no such project") as caught:
        another().find(OWNER)
    assert caught.value.error_class == "auth"


def test_no_credentials(gce: GceControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    refusal = refused(another(), request())
    assert (refusal.error_class, refusal.scope) == ("auth", "cloud")
    assert "gcloud auth application-default login" in str(refusal)
    assert not gce.calls("instances.*")


def test_throttling_is_no_denial(gce: GceControl, provisioner: GcpProvisioner) -> None:
    """Compute Engine answers 403 to throttled calls as well as to denied ones."""
    for action in ("instances.aggregatedList", "networks.get", "firewalls.get", "instances.insert"):
        gce.fail(action, error("rateLimitExceeded", 403, "Rate Limit Exceeded"), times=2)
    assert look(provisioner.launch(request())).phase == "running"


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
    monkeypatch.setattr("cloudgpu.provisioners.gcp.resources.instance_cache.READ_S", 0.3)
    gce.fail("instances.aggregatedList", HANG, times=None)
    begun = time.monotonic()
    with pytest.raises(ProvisionError, match="look at the machines") as caught:
        another().find(OWNER)
    assert caught.value.error_class == "transient"
    assert time.monotonic() - begun < 180


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
