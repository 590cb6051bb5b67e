"""Tests of AzureProvisioner with `recover: fleet`: each launch has a dedicated scale set."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.lifecycle import gc
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.base import launch_token
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.stacks import job_groups
from cloudgpu.tests.standins.azure import SUBMITTER, AzureControl
from cloudgpu.tests.standins.azure.jobs import CONTAINER, azure_with_blobs
from cloudgpu.tests.standins.azure.machines import InstanceState
from cloudgpu.tests.standins.azure.names import AUDITOR
from cloudgpu.tests.standins.azure.permissions import EVERYTHING, SCALE_SETS
from cloudgpu.tests.standins.azure.process import Leftovers
from cloudgpu.tests.standins.azure.stacks import create_stack
from cloudgpu.tests.standins.azurite import ACCOUNT
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import LOSE
from cloudgpu.tests.standins.pulumi.azure import Cloud

pytestmark = pytest.mark.timeout(600)

REGION, OWNER = "eastus", Owner("cloudgpu-tester")
JOBS = f"az://{CONTAINER}@{ACCOUNT}/jobs"
T4, H100 = "Standard_NC4as_T4_v3", "Standard_ND96isr_H100_v5"
SETS = "Microsoft.Compute/virtualMachineScaleSets"
AGENT = AgentFile(f"agent/{'a' * 64}.pyz", "a" * 64, "x86_64")
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AzureControl, dict[str, str]]]:
    with azure_with_blobs(tmp_path_factory.mktemp("blobs"), boot=False) as (control, environ):
        yield control, dict(environ)


class Desk:
    """A subscription with an infra stack, and a provisioner."""

    def __init__(self, control: AzureControl, folder: Path) -> None:
        self.azure, self.jobs = control, f"{JOBS}/{folder.name}"
        self.stack = create_stack(control, REGION, self.jobs)
        self.remains = Leftovers(control.url)
        self.remains.ignore_existing()
        self.provisioner = AzureProvisioner(FastClock())
        self.request = self.asked()
        JobDir(self.request.job_dir).put(AGENT.key, b"an agent")

    def asked(self, nodes: int = 2, size: str = T4, gpu: str = "T4", **changes: Any) -> LaunchRequest:
        base = LaunchRequest(
            job_id="digits-abc",
            attempt=1,
            token=launch_token("digits-abc", 1, REGION, None),
            owner=OWNER,
            job_dir=f"{self.jobs}/digits-abc",
            job_sha256="0" * 64,
            region=REGION,
            zone=None,
            market="spot",
            disk_gb=100.0,
            nodes=tuple(
                NodeRequest(f"worker-{index}.1", "worker", index, index, size, gpu, Fraction(1))
                for index in range(nodes)
            ),
            lifetime_s=3_600,
            expires=2_000_000_000.0,
            agent=AGENT,
            grouped=True,
        )
        return dataclasses.replace(base, **changes)

    def launch(self, **changes: Any) -> Allocation:
        return self.provisioner.launch(dataclasses.replace(self.request, **changes))

    def refused(self, **changes: Any) -> ProvisionError:
        with pytest.raises(ProvisionError) as raised:
            self.launch(**changes)
        return raised.value

    def machines(self) -> list[InstanceState]:
        return [one for one in self.azure.instances() if one.status == "running"]

    def sets(self) -> list[dict[str, Any]]:
        return self.azure.resources(SETS)

    def until(self, met: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not met():
            assert time.monotonic() < end, (self.azure.instances(), self.azure.all_resources())
            time.sleep(0.05)

    def await_nothing(self) -> None:
        self.until(lambda: self.remains.find() == {})


@pytest.fixture
def desk(world: tuple[AzureControl, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    control, environ = world
    control.reset()
    control.add_storage(ACCOUNT)
    for name, value in {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    return Desk(control, tmp_path)


def elsewhere(allocation: Allocation) -> Allocation:
    """Return the allocation as known to a caller that got no answer to its launch: only the token, no machines."""
    return Allocation(
        "azure", allocation.job_id, allocation.attempt, allocation.token, {}, region=REGION, owner=OWNER.name
    )


# --- launch, observe, terminate ---------------------------------------------------------------------------------------


def test_a_scale_set_of_the_launch_s_own_and_nothing_left(desk: Desk) -> None:
    allocation = desk.launch()
    [made] = desk.sets()
    assert made["name"] == allocation.details[job_groups.GROUP] == "digits-abc-1"
    assert allocation.machines == {"worker-0.1": "digits-abc-1/worker-0", "worker-1.1": "digits-abc-1/worker-1"}
    assert (made["sku"]["capacity"], made["zones"]) == (2, [allocation.zone])
    machines = desk.machines()
    assert {one.zone for one in machines} == {allocation.zone} and len(machines) == 2
    for one in machines:
        assert (one.market, one.identities, one.open) == ("spot", [desk.stack.machine_role], [])
        assert one.external, "the stack's subnet has no other way out"
        assert one.tags == {
            "cloudgpu-owner": OWNER.name,
            "cloudgpu-job": "digits-abc",
            "cloudgpu-attempt": "1",
            "cloudgpu-token": allocation.token,
            "cloudgpu-expires": "2000000000",
        }
    states = desk.provisioner.observe(allocation)
    assert [(one.node, one.phase, one.queued) for one in states] == [
        ("worker-0.1", "pending", False),
        ("worker-1.1", "pending", False),
    ], "they boot, and are paid for"
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}
    assert [one.phase for one in desk.provisioner.observe(allocation)] == ["gone", "gone"]
    [order] = Fleet(allocation.details[job_groups.FLEET_DIR]).view().orders
    assert order.end is not None, "machines that boot late find nothing to do"


def test_it_is_found_and_ended_by_its_token_alone(desk: Desk) -> None:
    allocation = desk.launch()
    [found] = desk.provisioner.find(OWNER)
    assert (found.token, found.job_id, found.attempt) == (allocation.token, "digits-abc", 1)
    left = gc.find([], Clients(FastClock())).leftovers
    [ours] = [one for one in left if one.token == allocation.token]
    assert {"resource group", "scale set", "virtual machine", "disk"} <= {thing.kind for thing in ours.things}
    desk.provisioner.terminate(elsewhere(allocation))
    assert desk.remains.find() == {}
    assert desk.provisioner.find(OWNER) == []


def test_a_scale_set_that_all_have_left_is_listed_and_removed(desk: Desk) -> None:
    allocation = desk.launch()
    for one in desk.machines():
        desk.remains.delete(one.group, one.name)
    [made] = desk.sets()
    assert (Cloud().get(made["id"], "2024-07-01") or {})["sku"]["capacity"] == 0
    assert desk.machines() == []
    [ours] = gc.find([], Clients(FastClock())).leftovers
    assert "scale set" in {thing.kind for thing in ours.things}
    gc.remove(ours, Clients(FastClock()))
    assert desk.remains.find() == {}
    assert [one.phase for one in desk.provisioner.observe(allocation)] == ["gone", "gone"]


# --- idempotency -----------------------------------------------------------------------------------------------------


def test_a_repeated_launch_finds_its_scale_set_and_does_not_replace_machines_that_left(desk: Desk) -> None:
    first = desk.launch()
    gone = desk.machines()[0]
    desk.remains.delete(gone.group, gone.name)
    again = AzureProvisioner(FastClock()).launch(desk.request)
    assert (again.machines, again.details) == (first.machines, first.details)
    assert len(desk.machines()) == 1
    assert len(desk.azure.calls("virtualMachineScaleSets.write", caller=SUBMITTER)) == 1
    desk.provisioner.terminate(first)
    assert desk.remains.find() == {}


def test_answers_that_are_lost_make_nothing_twice(desk: Desk) -> None:
    for action in (
        "resourceGroups.write",
        "roleAssignments.write",
        "networkSecurityGroups.write",
        "applicationSecurityGroups.write",
        "proximityPlacementGroups.write",
        "virtualMachineScaleSets.write",
        "resourceGroups.delete",
    ):
        desk.azure.fail(action, LOSE, times=1)
    allocation = desk.launch()
    assert len(desk.sets()) == 1 and len(desk.machines()) == 2
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}
    assert len([call for call in desk.azure.calls(caller=SUBMITTER) if call.fault]) == 7


def test_what_takes_long_is_not_waited_for_for_ever(desk: Desk) -> None:
    """launch() returns while Azure is still creating the machines; observe() reports them as pending."""
    desk.azure.set_times(sets=600.0)
    allocation = desk.launch()
    [made] = desk.sets()
    assert made["properties"]["provisioningState"] == "Updating"
    assert {(one.phase, one.queued) for one in desk.provisioner.observe(allocation)} == {("pending", True)}, (
        "no bill yet"
    )
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


def test_a_scale_set_that_azure_does_not_show_yet_is_waited_for(desk: Desk) -> None:
    """Azure Resource Manager is eventually consistent: a GET just after an accepted PUT may answer 404."""
    desk.azure.set_times(cache=0.4)
    allocation = desk.launch()
    assert 404 in {call.status for call in desk.azure.calls("virtualMachineScaleSets.read", caller=SUBMITTER)}
    assert [call.status for call in desk.azure.calls("virtualMachineScaleSets.write", caller=SUBMITTER)] == [201]
    assert allocation.zone == "1" and len(desk.sets()) == 1
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


# --- refusals ---------------------------------------------------------------------------------------------------------


def full(desk: Desk, *zones: str, places: int = 0, how: Any = "allocation", region: str = REGION) -> None:
    for zone in zones:
        desk.azure.set_capacity(T4, region, zone, "spot", places, how=how)


@pytest.mark.parametrize("how", ["allocation", "constraints", "sku"])
def test_the_next_zone_is_tried_where_one_has_none(desk: Desk, how: str) -> None:
    full(desk, "1", "2", how=how)
    allocation = desk.launch()
    assert allocation.zone == "3"
    assert {one.zone for one in desk.machines()} == {"3"} and len(desk.machines()) == 2
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


@pytest.mark.parametrize("how", ["allocation", "constraints", "sku"])
def test_no_capacity_in_the_region_leaves_nothing(desk: Desk, how: str) -> None:
    full(desk, "1", "2", "3", how=how)
    error = desk.refused()
    assert (error.error_class, error.scope) == ("capacity", "region")
    desk.await_nothing()


def test_half_of_the_machines_are_none_and_the_next_attempt_begins_elsewhere(desk: Desk) -> None:
    full(desk, "1", places=1)
    assert desk.refused().error_class == "capacity"
    desk.await_nothing()
    token = launch_token("digits-abc", 2, REGION, None)
    allocation = desk.launch(attempt=2, token=token)
    assert allocation.zone == "2"
    desk.provisioner.terminate(allocation)


def test_over_quota_is_refused_before_anything_is_made(desk: Desk) -> None:
    desk.azure.set_quota(REGION, "lowPriorityCores", 4)
    error = desk.refused()
    assert error.error_class == "quota"
    assert desk.remains.find() == {}
    assert desk.azure.calls("*.write", caller=SUBMITTER) == []


def test_a_zone_that_is_named_is_the_only_one(desk: Desk) -> None:
    full(desk, "2")
    assert desk.refused(zone="2").error_class == "capacity"
    desk.await_nothing()
    asked = desk.azure.calls("virtualMachineScaleSets.write", caller=SUBMITTER)
    assert len(asked) == 1


def test_a_refusal_after_the_launch_ends_the_order_and_is_reported(desk: Desk) -> None:
    desk.azure.set_times(sets=600.0)  # seconds; longer than launch() waits
    allocation = desk.launch()
    full(desk, "1", "2", "3")
    desk.azure.set_times(sets=0.0)
    desk.until(lambda: desk.sets()[0]["properties"]["provisioningState"] == "Failed")
    states = desk.provisioner.observe(allocation)
    assert {one.phase for one in states} == {"gone"}
    assert {one.refused and one.refused.error_class for one in states} == {"capacity"}
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


def test_without_a_stack_nothing_is_made_and_what_to_do_is_said(desk: Desk) -> None:
    infra_outputs.forget("azure", REGION)
    error = desk.refused()
    assert (error.error_class, error.scope) == ("invalid", "region")
    assert f"cloudgpu infra up --cloud azure --region {REGION}" in str(error)
    assert desk.azure.calls("*.write", caller=SUBMITTER) == []


def test_a_stack_of_before_has_no_role_to_leave_by(desk: Desk) -> None:
    infra_outputs.save(dataclasses.replace(desk.stack, stack="infra-azure-old"))
    error = desk.refused()
    assert error.error_class == "invalid" and f"cloudgpu infra up --cloud azure --region {REGION}" in str(error)
    desk.await_nothing()


# --- placement and reservations ---------------------------------------------------------------------------------------


def test_machines_with_infiniband_are_in_one_placement_group(desk: Desk) -> None:
    request = desk.asked(size=H100, gpu="H100-80GB", market="on-demand")
    allocation = desk.provisioner.launch(request)
    [made] = desk.sets()
    [group] = desk.azure.resources("Microsoft.Compute/proximityPlacementGroups")
    assert made["properties"]["singlePlacementGroup"] is True
    assert made["properties"]["proximityPlacementGroup"] == {"id": group["id"]}
    desk.provisioner.terminate(allocation)
    assert desk.remains.find() == {}


def test_one_machine_is_in_no_group_of_peers(desk: Desk) -> None:
    allocation = desk.launch(nodes=desk.request.nodes[:1])
    for kind in ("Microsoft.Compute/proximityPlacementGroups", "Microsoft.Network/applicationSecurityGroups"):
        assert desk.azure.resources(kind) == []
    desk.provisioner.terminate(allocation)


def test_a_reservation_s_machines_are_of_it(desk: Desk) -> None:
    compute: Any = Clients(FastClock()).compute
    compute.capacity_reservation_groups.create_or_update("storage", "ours", {"location": REGION})
    body = {"location": REGION, "sku": {"name": T4, "capacity": 2}}
    compute.capacity_reservations.begin_create_or_update("storage", "ours", "t4", body, polling_interval=0.05).result()
    allocation = desk.launch(market="reservation")
    assert [one.market for one in desk.machines()] == ["reservation", "reservation"]
    desk.provisioner.terminate(allocation)
    assert desk.machines() == []


# --- machines that remove themselves ----------------------------------------------------------------------------------


def test_the_right_to_leave_is_on_the_launch_s_group_only(desk: Desk) -> None:
    before = {one["id"] for one in desk.azure.resources("Microsoft.Authorization/roleAssignments")}
    allocation = desk.launch()
    roles = desk.azure.resources("Microsoft.Authorization/roleAssignments")
    [given] = [one["properties"] for one in roles if one["id"] not in before]
    assert given["scope"].endswith(f"/resourceGroups/cloudgpu-{allocation.token}")
    definitions = {one["name"]: one for one in desk.azure.resources("Microsoft.Authorization/roleDefinitions")}
    role = definitions[given["roleDefinitionId"].rpartition("/")[2]]
    assert role["properties"]["roleName"] == f"{desk.stack.stack} leaving"
    desk.provisioner.terminate(allocation)
    assert desk.azure.calls("roleAssignments.delete") == [], "it goes with the group, and not before"
    assert desk.remains.find() == {}


# --- the submitter's permissions --------------------------------------------------------------------------------------


def permitted(desk: Desk, without: str = "") -> None:
    desk.azure.enforce({SUBMITTER: sorted(EVERYTHING - {without}), AUDITOR: ["*"]})


@pytest.fixture
def enforced(desk: Desk) -> Iterator[Desk]:
    permitted(desk)
    yield desk
    desk.azure.enforce(None)


def test_the_roles_of_the_page_are_enough(enforced: Desk) -> None:
    full(enforced, "1")
    allocation = enforced.launch()
    enforced.provisioner.observe(allocation)
    assert [one.token for one in enforced.provisioner.find(OWNER)] == [allocation.token]
    [left] = [one for one in gc.find([], Clients(FastClock())).leftovers if one.token == allocation.token]
    gc.remove(left, Clients(FastClock()))
    assert enforced.remains.find() == {}


ROLES = "Microsoft.Authorization/roleAssignments"


@pytest.mark.parametrize("action", sorted({*SCALE_SETS, f"{ROLES}/write"}))
def test_without_an_action_a_step_names_it(enforced: Desk, action: str, caplog: pytest.LogCaptureFixture) -> None:
    permitted(enforced, action)
    try:
        if action.endswith("/delete"):
            full(enforced, "1", "2", "3")
        if action.endswith("instanceView/read"):
            enforced.azure.set_times(sets=600.0)
        allocation = enforced.launch()
        full(enforced, "1", "2", "3")
        enforced.azure.set_times(sets=0.0)
        enforced.until(lambda: enforced.sets()[0]["properties"]["provisioningState"] == "Failed")
        enforced.provisioner.observe(allocation)
    except ProvisionError as error:
        is_cleanup = action.endswith("virtualMachineScaleSets/delete")  # whose failure is only logged
        said = caplog.text if is_cleanup else str(error)
        assert error.error_class == ("capacity" if is_cleanup else "auth")
        assert action in said and "docs/reference/azure-permissions.md" in said
    else:
        pytest.fail(f"a scale set works without {action}: it is too much")
    permitted(enforced)
    enforced.provisioner.terminate(Allocation("azure", "digits-abc", 1, enforced.request.token, {}))
    assert enforced.remains.find() == {}


def test_without_the_right_to_assign_roles_the_launch_fails_and_nothing_bills(enforced: Desk) -> None:
    permitted(enforced, f"{ROLES}/write")
    error = enforced.refused()
    assert (error.error_class, error.scope) == ("auth", "cloud")
    enforced.await_nothing()
    assert enforced.azure.calls("virtualMachineScaleSets.write", caller=SUBMITTER) == []
