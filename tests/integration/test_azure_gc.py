"""Tests of `cloudgpu gc` on Azure: whatever a launch left is found by tags and names alone, and removed.

Resources of other owners are kept.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.submit.submission import owner_name
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError, tagged_resources
from cloudgpu.provisioners.azure import operations
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.lifecycle import gc
from cloudgpu.provisioners.azure.names import group_name
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.azure.resources import identity, resource_groups, rights
from cloudgpu.tests.standins.azure import Azure, AzureControl
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML, LOSE, error

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGION = "eastus"
TOKEN = "0123456789abcdef" * 2
SIZE = "Standard_NC4as_T4_v3"


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure() as azure:
        yield azure


@pytest.fixture
def azure(server: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AzureControl:
    server.control.reset()
    settings = {**server.environ(tmp_path / "az"), "CLOUDGPU_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    server.control.add_storage("myaccount")
    return server.control


def request(**changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="ghost-abcdefgh",
        attempt=2,
        token=TOKEN,
        owner=Owner(owner_name()),
        job_dir="az://jobs@myaccount/jobs/ghost-abcdefgh",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market="on-demand",
        disk_gb=100.0,
        nodes=tuple(NodeRequest(f"worker-{i}.1", "worker", i, i, SIZE, "T4", Fraction(1)) for i in range(2)),
        lifetime_s=None,
        expires=None,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def launch(**changes: Any) -> None:
    AzureProvisioner(FastClock()).launch(request(**changes))


def run_gc(*arguments: str, regions: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    where = [word for region in regions for word in ("--region", region)]
    command = [CLOUDGPU, "gc", "--cloud", "azure", *where, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert "Traceback" not in done.stderr
    return done


def found(*regions: str) -> list[tagged_resources.Leftover]:
    return gc.find(regions, Clients(FastClock())).leftovers


def remove(left: tagged_resources.Leftover) -> None:
    gc.remove(left, Clients(FastClock()))


def kinds(left: tagged_resources.Leftover) -> set[str]:
    return {thing.kind for thing in left.things}


def left(azure: AzureControl) -> list[str]:
    """Return the ids of all resources of launches, and of all role assignments."""
    return [one for one in azure.all_resources() if "/cloudgpu-" in one or "roleAssignments" in one]


def test_role_assignments_of_a_deleted_group_are_found_and_removed(azure: AzureControl) -> None:
    launch()
    other = "fedcba9876543210" * 2
    launch(token=other)
    clients = Clients(FastClock())
    clients.resources.resource_groups.begin_delete(group_name(TOKEN), polling=False).result()
    while any(f"/{group_name(TOKEN)}" in one and "roleAssignments" not in one for one in azure.all_resources()):
        time.sleep(0.05)
    [orphan] = [one for one in found() if one.token == TOKEN]
    assert kinds(orphan) == {"role assignment"} and (orphan.job_id, orphan.attempt) == ("ghost-abcdefgh", 2)
    assert [thing.detail for thing in orphan.things if thing.detail == "on jobs"] == ["on jobs"]
    assert not [one for one in found(REGION) if one.token == TOKEN], "it is in no region"
    for _ in range(2):
        remove(orphan)
    assert [one.token for one in found()] == [other], "nobody else's is touched"
    assert not [one for one in left(azure) if TOKEN in one]
    [its] = found()
    remove(its)
    assert left(azure) == []


def test_role_assignments_of_others_are_not_ours(azure: AzureControl) -> None:
    clients = Clients(FastClock())
    scope = f"{azure.add_storage('myaccount')}/blobServices/default/containers/jobs"
    for number, text in enumerate((None, "", "{}", "[1]", '{"cloudgpu-token": "no token"}', "somebody's")):
        body: Any = {
            "properties": {
                "roleDefinitionId": f"/subscriptions/{clients.subscription}/providers/Microsoft.Authorization"
                f"/roleDefinitions/{rights.READER}",
                "principalId": f"00000000-0000-4000-8000-00000000000{number}",
                "principalType": "ServicePrincipal",
                "description": text,
            }
        }
        clients.authorization.role_assignments.create(scope, str(uuid.uuid4()), body)
    assert found() == []


# --- all resources of a launch ----------------------------------------------------------------------------------------


def test_all_that_a_launch_left_is_one_and_goes_in_one_command(azure: AzureControl) -> None:
    launch()
    [one] = json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]
    assert {thing["kind"] for thing in one["things"]} == {
        *("resource group", "managed identity", "role assignment", "virtual network", "network security group"),
        *("application security group", "network interface", "public address", "virtual machine", "disk"),
    }
    # The group; identity, virtual network and 2 security groups; 4 per machine; 2 role assignments (container, group).
    assert len(one["things"]) == 1 + 4 + 2 * 4 + 2
    assert (one["state"], one["removable"], one["regions"]) == ("orphaned", True, [REGION])
    assert (one["owner"], one["job_id"], one["attempt"], one["token"]) == (owner_name(), "ghost-abcdefgh", 2, TOKEN)
    refused = run_gc()
    assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    done = run_gc("--yes")
    assert done.returncode == 0, done.stderr
    assert "removed what was left of ghost-abcdefgh, attempt 2" in done.stderr
    assert left(azure) == []
    assert "nothing to do" in run_gc().stderr


def test_a_group_with_nothing_in_it_is_found_and_removed(azure: AzureControl) -> None:
    resource_groups.make_group(Clients(FastClock()), request(), [])
    [one] = found()
    assert kinds(one) == {"resource group"}
    assert (one.owner, one.job_id, one.attempt, one.token) == (owner_name(), "ghost-abcdefgh", 2, TOKEN)
    remove(one)
    assert (found(), left(azure)) == ([], [])
    remove(one)  # idempotent


def test_a_launch_that_died_before_its_machines_leaves_no_role_behind(azure: AzureControl) -> None:
    clients = Clients(FastClock())
    grants = identity.find_grants(clients, request())
    resource_groups.make_group(clients, request(), [grant.target.to_tag() for grant in grants])
    identity.assign_roles(clients, request(), identity.make_identity(clients, request()), grants)
    [one] = found()
    assert kinds(one) == {"resource group", "managed identity", "role assignment"}
    assert {thing.detail for thing in one.things if thing.kind == "role assignment"} == {
        "on jobs",
        f"on {group_name(TOKEN)}",
    }
    remove(one)
    assert left(azure) == []


def test_what_was_taken_out_of_a_launch_by_hand_is_removed_with_the_rest(azure: AzureControl) -> None:
    launch()
    clients = Clients(FastClock())
    machines = clients.compute.virtual_machines
    begin = partial(machines.begin_delete, group_name(TOKEN), "cloudgpu-worker-0-1")
    operations.delete(clients, "delete", begin, partial(machines.get, group_name(TOKEN), "cloudgpu-worker-0-1"))
    [one] = found()
    assert [thing.id for thing in one.things if thing.kind == "virtual machine"] == ["cloudgpu-worker-1-1"]
    remove(one)
    assert left(azure) == []


def test_a_group_whose_tags_were_changed_is_recognized_by_its_name(azure: AzureControl) -> None:
    clients = Clients(FastClock())
    resource_groups.make_group(clients, request(), [])
    body: Any = {"operation": "Delete", "properties": {"tags": {"cloudgpu-token": TOKEN, "cloudgpu-attempt": "2"}}}
    clients.resources.tags.begin_update_at_scope(
        f"subscriptions/{clients.subscription}/resourceGroups/{group_name(TOKEN)}", body
    ).result()
    [one] = found()
    assert (one.token, one.attempt) == (TOKEN, 0)
    remove(one)
    assert left(azure) == []


# --- output -----------------------------------------------------------------------------------------------------------


def test_prices_ages_and_expiries_are_shown(azure: AzureControl) -> None:
    launch(nodes=request().nodes[:1], expires=time.time() + 7_170)
    [one] = found()
    of_kind = {thing.kind: thing for thing in one.things}
    machine = of_kind["virtual machine"]
    assert (machine.detail, machine.price) == (f"{SIZE} on-demand, running", Decimal("0.526"))
    assert machine.created is not None and time.time() - machine.created < 600
    assert of_kind["disk"].detail == "100 GB, attached"
    disk = of_kind["disk"].price
    assert disk is not None and 0.005 < disk < 0.02
    assert machine.price is not None and one.price == machine.price + disk + Decimal("0.005")
    shown = run_gc("--dry-run").stdout
    assert "1h 59m" in shown or "1h 58m" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_a_machine_that_has_deallocated_itself_costs_its_disk_only(azure: AzureControl) -> None:
    launch(nodes=request().nodes[:1])
    clients = Clients(FastClock())
    machines = clients.compute.virtual_machines
    machines.begin_deallocate(group_name(TOKEN), "cloudgpu-worker-0-1", polling_interval=0.1).result()
    [one] = found()
    [machine] = [thing for thing in one.things if thing.kind == "virtual machine"]
    assert (machine.detail, machine.price) == (f"{SIZE} on-demand, deallocated", Decimal(0))


def test_a_machine_that_has_only_powered_itself_off_is_paid_for(azure: AzureControl) -> None:
    launch(nodes=request().nodes[:1])
    clients = Clients(FastClock())
    machines = clients.compute.virtual_machines
    machines.begin_power_off(group_name(TOKEN), "cloudgpu-worker-0-1", polling_interval=0.1).result()
    [one] = found()
    [machine] = [thing for thing in one.things if thing.kind == "virtual machine"]
    assert (machine.detail, machine.price) == (f"{SIZE} on-demand, stopped", Decimal("0.526"))


# --- owners and regions -----------------------------------------------------------------------------------------------


def test_what_belongs_to_others_goes_only_once_it_has_expired_and_only_when_asked_for(azure: AzureControl) -> None:
    other_owner, clients = Owner("cloudgpu-somebody"), Clients(FastClock())
    for letter, expires in (("a", time.time() - 60), ("b", time.time() + 3_600), ("c", None)):
        resource_groups.make_group(clients, request(owner=other_owner, token=letter * 32, expires=expires), [])
    states = {one["token"][0]: one["state"] for one in json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]}
    assert states == {"a": "expired", "b": "another's", "c": "another's"}
    run_gc("--yes")
    assert len(found()) == 3
    run_gc("--yes", "--others")
    assert {one.token[0] for one in found()} == {"b", "c"}


def test_only_the_regions_asked_for_are_looked_at(azure: AzureControl) -> None:
    clients = Clients(FastClock())
    resource_groups.make_group(clients, request(), [])
    resource_groups.make_group(clients, request(token="b" * 32, region="westeurope"), [])
    assert {one.token[0] for one in found()} == {"0", "b"}
    [one] = found("westeurope")
    assert (one.token[0], one.regions) == ("b", ["westeurope"])
    refused = run_gc(regions=("eastus9",))
    assert "Azure has no region eastus9" in refused.stderr
    assert refused.returncode in {4, 6}


def test_groups_of_others_are_not_ours(azure: AzureControl) -> None:
    """A group needs both the tag and the name of a launch's group to be collected."""
    clients = Clients(FastClock())
    for name, tags in (("cloudgpu", {"cloudgpu-owner": "me"}), (f"cloudgpu-{'d' * 32}", {"team": "other"})):
        body: Any = {"location": REGION, "tags": tags}
        clients.resources.resource_groups.create_or_update(name, body)
    assert found() == []


# --- faults and missing permissions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LOSE, HTML], ids=lambda fault: fault.kind)
def test_lost_answers_and_5xx_do_no_harm(azure: AzureControl, fault: Any) -> None:
    launch()
    for action in ("resource[gG]roups.*", "resources.list", "roleAssignments.*", "virtualMachines.*", "disks.*"):
        azure.fail(action, fault)
    [one] = found()
    azure.fail("resourceGroups.delete", fault)
    azure.fail("roleAssignments.delete", fault)
    remove(one)
    azure.heal()
    assert left(azure) == []


def test_a_group_that_may_not_be_looked_into_is_named_with_the_reason(azure: AzureControl) -> None:
    launch()
    azure.fail("disks.read", error("AuthorizationFailed", 403, "no Microsoft.Compute/disks/read"), times=None)
    looked = gc.find([], Clients(FastClock()))
    assert looked.leftovers == []
    assert list(looked.failed) == [group_name(TOKEN)]
    assert "Microsoft.Compute/disks/read" in looked.failed[group_name(TOKEN)]
    done = run_gc("--yes")
    assert (done.returncode, "Microsoft.Compute/disks/read" in done.stderr) == (6, True)


def test_groups_that_may_not_be_listed_are_an_error_and_not_taken_for_none(azure: AzureControl) -> None:
    launch()
    azure.fail("resource[gG]roups.list", error("AuthorizationFailed", 403, "no groups for you"), times=None)
    with pytest.raises(ProvisionError, match="no groups for you") as refused:
        found()
    assert refused.value.error_class == "auth"


def test_a_group_that_goes_while_it_is_looked_at_is_no_error(azure: AzureControl) -> None:
    launch()
    clients = Clients(FastClock())
    [group] = resource_groups.groups_of(clients)
    AzureProvisioner(FastClock()).terminate(AzureProvisioner(FastClock()).find(Owner(owner_name()))[0])
    assert [one.thing.kind for one in gc._in_group(clients, group)] == ["resource group"]
