"""Tests of AzureProvisioner with Azure's SDK against the stand-in of tests/standins/azure over TLS, with faults."""

from __future__ import annotations

import dataclasses
import datetime
import time
import traceback
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from cloudgpu.provisioners.azure import console as diagnostics
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.stacks.fleet_queries import Reserved, reserved_for
from cloudgpu.tests.contract.targets.standin import refused, until
from cloudgpu.tests.standins.azure import Azure, AzureControl
from cloudgpu.tests.standins.clocks import FastClock, StillClock
from cloudgpu.tests.standins.faults import HANG, HTML, RESET, Call, error

OWNER = Owner("cloudgpu-tester")
TOKEN = "0123456789abcdef0123456789abcdef"
GROUP = f"cloudgpu-{TOKEN}"
REGION = "eastus"
T4 = "Standard_NC4as_T4_v3"
H100 = "Standard_ND96isr_H100_v5"
VM = "Microsoft.Compute/virtualMachines"
ACCOUNT = "jobsoftests"
LOGIN_PAGE = dataclasses.replace(HTML, status=200)
"""HTML answer with status 200, as from a captive portal between this computer and Azure."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Azure, dict[str, str]]]:
    with Azure() as azure:
        yield azure, azure.environ(tmp_path_factory.mktemp("azure"))


@pytest.fixture
def azure(server: tuple[Azure, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> AzureControl:
    standin, environ = server
    standin.control.reset()
    standin.control.add_storage(ACCOUNT)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return standin.control


@pytest.fixture
def provisioner(azure: AzureControl) -> AzureProvisioner:
    return another()


def another() -> AzureProvisioner:
    """Return a provisioner with empty caches, like one of another process."""
    return AzureProvisioner(FastClock())


def node(
    name: str = "worker-0.1", machine_type: str = T4, rank: int = 0, accelerator: str | None = "T4", count: int = 1
) -> NodeRequest:
    role, _, rest = name.rpartition("-")
    return NodeRequest(name, role, int(rest.partition(".")[0]), rank, machine_type, accelerator, Fraction(count))


def pair() -> tuple[NodeRequest, NodeRequest]:
    return node(), node("worker-1.1", rank=1)


def h100s() -> tuple[NodeRequest, NodeRequest]:
    return tuple(node(f"worker-{rank}.1", H100, rank, "H100-80GB", 8) for rank in range(2))  # type: ignore[return-value]


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token=TOKEN,
        owner=OWNER,
        job_dir=f"az://jobs@{ACCOUNT}/team/digits-abc",
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


def left(azure: AzureControl) -> list[str]:
    """Return the ids of launches' resource groups, of the resources in them, and of all role assignments."""
    found = azure.all_resources()
    return [one for one in found if "/cloudgpu-" in one.lower() or "roleassignments" in one.lower()]


def nothing_left(azure: AzureControl) -> bool:
    return not left(azure)


def machines(azure: AzureControl) -> list[str]:
    return sorted(str(one["name"]) for one in azure.resources(VM))


def look(allocation: Allocation) -> NodeState:
    """Observe the only node of an allocation with empty caches."""
    [state] = another().observe(allocation)
    return state


# --- launch parameters ------------------------------------------------------------------------------------------------


def test_the_machine_is_as_asked_for_and_tagged_from_the_start(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    provisioner.launch(request(market="spot"))
    [machine] = azure.instances(running=True)
    assert (machine.size, machine.market, machine.region, machine.zone) == (T4, "spot", REGION, "1")
    wanted = {
        "cloudgpu-owner": OWNER.name,
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "1",
        "cloudgpu-token": TOKEN,
        "cloudgpu-expires": "2000000000",
    }
    assert {**wanted, "cloudgpu-node": "worker-0.1", "cloudgpu-rank": "0"}.items() <= machine.tags.items()
    [disk] = azure.resources("Microsoft.Compute/disks")
    assert disk["properties"]["diskSizeGB"] == 100
    for kind in ("networkInterfaces", "publicIPAddresses", "virtualNetworks", "networkSecurityGroups"):
        [made] = azure.resources(f"Microsoft.Network/{kind}")
        assert wanted.items() <= made["tags"].items()


def test_nothing_may_come_in_but_from_the_jobs_own_machines(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    provisioner.launch(request(*pair()))
    assert [one.open for one in azure.instances()] == [[], []], "they have addresses, and nothing is open"
    [rules] = azure.resources("Microsoft.Network/networkSecurityGroups")
    rules_by_name = {one["name"]: one["properties"] for one in rules["properties"]["securityRules"]}
    [peers] = azure.resources("Microsoft.Network/applicationSecurityGroups")
    assert rules_by_name["peers"]["sourceApplicationSecurityGroups"] == [{"id": peers["id"]}]
    assert (
        rules_by_name["nobody"]["access"] == "Deny"
        and rules_by_name["nobody"]["priority"] > rules_by_name["peers"]["priority"]
    )
    for nic in azure.resources("Microsoft.Network/networkInterfaces"):
        assert nic["properties"]["networkSecurityGroup"]["id"] == rules["id"]
        [inner] = nic["properties"]["ipConfigurations"]
        assert inner["properties"]["applicationSecurityGroups"] == [{"id": peers["id"]}]


def test_a_named_subnet_is_used_without_public_addresses(
    azure: AzureControl,
    provisioner: AzureProvisioner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = Clients(FastClock())
    subnets = [{"name": "gpus", "properties": {"addressPrefix": "10.1.0.0/24", "defaultOutboundAccess": False}}]
    body: Any = {
        "location": REGION,
        "properties": {"addressSpace": {"addressPrefixes": ["10.1.0.0/16"]}, "subnets": subnets},
    }
    clients.network.virtual_networks.begin_create_or_update("storage", "ours", body, polling=False).result()
    network = next(one["id"] for one in azure.resources("Microsoft.Network/virtualNetworks"))
    monkeypatch.setenv("CLOUDGPU_AZURE_SUBNET", f"{network}/subnets/gpus")
    allocation = another().launch(request())
    assert [one.external for one in azure.instances()] == [False]
    assert "has no NAT gateway" in caplog.text
    another().terminate(allocation)
    assert nothing_left(azure)
    for named, error_class, message in (
        (f"{network}/subnets/other", "invalid", "there is no subnet"),
        ("/subscriptions/x/subnets/y", "invalid", "is no subnet of subscription"),
    ):
        monkeypatch.setenv("CLOUDGPU_AZURE_SUBNET", named)
        refusal = refused(another(), request())
        assert refusal.error_class == error_class and message in str(refusal)
    monkeypatch.setenv("CLOUDGPU_AZURE_SUBNET", f"{network}/subnets/gpus")
    refusal = refused(another(), request(region="westus2"))
    assert (refusal.error_class, refusal.scope) == ("not_offered", "region")
    until(lambda: nothing_left(azure))


def test_machines_may_reach_the_jobs_folder_and_switch_themselves_off(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    reads = (f"az://data@{ACCOUNT}/mnist", f"az://jobs@{ACCOUNT}/shared", f"az://data@{ACCOUNT}/mnist/train")
    provisioner.launch(request(reads=reads, writes=(f"az://jobs@{ACCOUNT}/models",)))
    given = {}
    for one in azure.resources("Microsoft.Authorization/roleAssignments"):
        role = one["properties"]["roleDefinitionId"].rpartition("/")[2]
        scope = one["properties"].get("scope") or one["id"].partition("/providers/Microsoft.Authorization/")[0]
        given[role[:8], scope.rpartition("/")[2]] = one["properties"].get("condition") or ""
    assert set(given) == {("40c5ff49", GROUP), ("ba92f5b4", "jobs"), ("2a2b9908", "jobs"), ("2a2b9908", "data")}
    assert "'team/digits-abc/'" in given["ba92f5b4", "jobs"] and "'models/'" in given["ba92f5b4", "jobs"]
    assert "'shared/'" not in given["ba92f5b4", "jobs"] and "'shared/'" in given["2a2b9908", "jobs"]
    assert "'mnist/'" in given["2a2b9908", "data"] and "train" not in given["2a2b9908", "data"]
    [machine] = azure.instances()
    assert [one.lower() for one in machine.identities] == [
        one["id"].lower() for one in azure.resources("Microsoft.ManagedIdentity/userAssignedIdentities")
    ]


def test_an_existing_identity_is_used_and_no_role_is_assigned(
    azure: AzureControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(FastClock())
    body: Any = {"location": REGION}
    made: Any = clients.identities.user_assigned_identities.create_or_update("storage", "trainer", body)
    monkeypatch.setenv("CLOUDGPU_AZURE_IDENTITY", str(made.id))
    allocation = another().launch(request(job_dir="az://jobs@elsewhere/digits-abc"))
    [machine] = azure.instances()
    assert [one.lower() for one in machine.identities] == [str(made.id).lower()]
    assert not azure.calls("roleAssignments.*")
    another().terminate(allocation)
    assert not azure.calls("roleAssignments.*")
    assert [one["name"] for one in azure.resources("Microsoft.ManagedIdentity/userAssignedIdentities")] == ["trainer"]
    monkeypatch.setenv("CLOUDGPU_AZURE_IDENTITY", "trainer")
    assert "is no identity of subscription" in str(refused(another(), request()))


def test_an_unknown_storage_account_is_refused_before_anything_is_made(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    refusal = refused(provisioner, request(job_dir="az://jobs@elsewhere/digits-abc"))
    assert refusal.error_class == "invalid" and "no storage account elsewhere" in str(refusal)
    assert not azure.calls("*.write")


# --- reservations -----------------------------------------------------------------------------------------------------


def reserve(name: str, size: str, machines: int, *, zone: str | None = None, **properties: Any) -> str:
    """Create a capacity reservation in a new capacity reservation group, and return the group's id."""
    compute: Any = Clients(FastClock()).compute
    zones = [zone] if zone else []
    body: dict[str, Any] = {"location": REGION, "zones": zones}
    group = compute.capacity_reservation_groups.create_or_update("storage", name, body)
    body |= {"sku": {"name": size, "capacity": machines}, "properties": properties}
    compute.capacity_reservations.begin_create_or_update(
        "storage", name, f"{name}-1", body, polling_interval=0.05
    ).result()
    return str(group.id).lower()


def reserved_in(azure: AzureControl) -> list[str]:
    groups = [one["properties"]["capacityReservation"]["capacityReservationGroup"]["id"] for one in azure.resources(VM)]
    return [str(one).lower() for one in groups]


def test_reserved_machines_are_launched_where_all_of_them_have_room(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    azure.set_capacity(T4, REGION, "", "on-demand", 0)
    azure.set_quota(REGION, "cores", 0)
    reserve("small", T4, 1, zone="1")
    reserve("large", T4, 5, zone="2")
    fitting = reserve("fitting", T4, 2, zone="2")
    reserve("other", H100, 2, zone="2")
    allocation = provisioner.launch(request(*pair(), market="reservation"))
    assert [(one.zone, one.market) for one in azure.instances(running=True)] == [("2", "reservation")] * 2
    assert reserved_in(azure) == [fitting] * 2
    assert another().launch(request(*pair(), market="reservation")).machines == allocation.machines
    # A lost machine is replaced in the zone of the others, although another reservation has more free capacity.
    another().remove(allocation, ["worker-1.1"])
    until(lambda: len(machines(azure)) == 1)
    another().launch(request(node(), node("worker-1.2", rank=1), market="reservation"))
    assert [one.zone for one in azure.instances(running=True)] == ["2", "2"]
    provisioner.terminate(allocation)
    assert nothing_left(azure)


def test_a_reservation_without_a_zone_takes_machines_without_a_zone(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    group = reserve("regional", T4, 1)
    assert refused(provisioner, request(market="reservation", zone="1")).error_class == "capacity"
    provisioner.launch(request(market="reservation"))
    assert [one.zone for one in azure.instances(running=True)] == [""]
    assert reserved_in(azure) == [group]


def test_a_cluster_gets_a_reservation_with_room_for_all(azure: AzureControl) -> None:
    def asked(size: int, *zones: str) -> Reserved:
        place: dict[str, Any] = {"cloud": "azure", "region": REGION, "zones": zones}
        wanted: dict[str, Any] = {"machine_type": T4, "accelerator": "T4", "gpus": "1", "market": "reservation"}
        found = reserved_for(FleetSpec(name="big", size=size, **place, **wanted))
        return found._replace(name=str(found.name).lower())

    with pytest.raises(ProvisionError, match="are none of these sizes"):
        asked(1)
    anywhere = reserve("regional", T4, 1)
    assert asked(0) == Reserved(None, anywhere)
    zonal = reserve("zonal", T4, 2, zone="2")
    assert asked(2) == asked(1, "2") == Reserved("2", zonal)
    assert not azure.calls("*virtualMachine*.write")


def test_reserved_machines_with_infiniband_are_in_no_placement_group(
    azure: AzureControl, provisioner: AzureProvisioner, caplog: pytest.LogCaptureFixture
) -> None:
    reserve("fabric", H100, 2)
    provisioner.launch(request(*h100s(), market="reservation"))
    assert [one.market for one in azure.instances(running=True)] == ["reservation"] * 2
    assert "without InfiniBand" in caplog.text


def test_without_a_reservation_that_has_room_nothing_is_made(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    refusal = refused(provisioner, request(market="reservation"))
    assert (refusal.error_class, refusal.scope, refusal.code) == ("capacity", "region", "InsufficientReservedCapacity")
    assert "are none of these sizes" in str(refusal)
    reserve("ours", T4, 1, zone="1")
    refusal = refused(provisioner, request(*pair(), market="reservation"))
    assert "have no room for them: ours-1 (1 Standard_NC4as_T4_v3 free)" in str(refusal)
    soon = f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2):%Y-%m-%d}"
    reserve("later", H100, 2, scheduleProfile={"start": soon})
    refusal = refused(provisioner, request(*h100s(), market="reservation"))
    assert f"begins at {soon} 00:00 UTC" in str(refusal)
    assert refusal.retry_after is not None and 86_400 <= refusal.retry_after <= 2 * 86_400
    assert nothing_left(azure) and not azure.calls("virtualMachines.write")


# --- several machines -------------------------------------------------------------------------------------------------


def test_machines_with_infiniband_are_in_an_availability_set_and_in_no_zone(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    azure.set_sku(H100, REGION, zones=["1", "2"])
    allocation = provisioner.launch(request(*h100s()))
    [together] = azure.resources("Microsoft.Compute/availabilitySets")
    for one in azure.resources(VM):
        assert one["properties"]["availabilitySet"]["id"].lower() == together["id"].lower()
        assert not one.get("zones")
    provisioner.terminate(allocation)
    assert nothing_left(azure)


def test_spot_machines_with_infiniband_are_near_each_other_at_least(
    azure: AzureControl, provisioner: AzureProvisioner, caplog: pytest.LogCaptureFixture
) -> None:
    provisioner.launch(request(*h100s(), market="spot"))
    [near] = azure.resources("Microsoft.Compute/proximityPlacementGroups")
    assert {one["properties"]["proximityPlacementGroup"]["id"].lower() for one in azure.resources(VM)} == {
        near["id"].lower()
    }
    assert "without InfiniBand" in caplog.text


# --- idempotency ------------------------------------------------------------------------------------------------------


def test_a_group_expires_with_the_machine_that_lives_longest(azure: AzureControl) -> None:
    """The expiry is a tag of the resource group, which the reaper deletes as a whole."""
    another().remove(another().launch(request(*pair())), ["worker-1.1"])
    for expires in (2_000_900_000.0, 2_000_500_000.0):
        another().launch(request(node(), node("worker-1.2", rank=1), expires=expires))
        [group] = [one for one in azure.resources("Microsoft.Resources/resourceGroups") if one["name"] == GROUP]
        assert group["tags"]["cloudgpu-expires"] == "2000900000"


def test_a_machine_that_was_never_asked_for_is_asked_for_again(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    """The node is marked as started and its interface exists, but the machine was never created."""
    azure.fail("virtualMachines.write", RESET, times=None)
    assert refused(provisioner, request()).error_class == "transient"
    azure.heal()
    assert machines(azure) == []
    allocation = another().launch(request())
    assert machines(azure) == list(allocation.machines.values())


def life(azure: AzureControl, provisioner: AzureProvisioner) -> list[Call]:
    """Launch, observe and terminate two machines, check that nothing is left, and return the API calls."""
    azure.forget()
    before = len(azure.instances())
    allocation = provisioner.launch(request(*pair()))
    assert len(azure.instances()) == before + 2
    provisioner.observe(allocation)
    provisioner.terminate(allocation)
    called = azure.calls()
    assert nothing_left(azure)
    return called


def test_every_call_of_a_life_is_answered_by_a_login_page_once(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    actions = {call.action for call in life(azure, provisioner) if call.service != "login"}
    assert {"virtualMachines.write", "roleAssignments.delete", "resourceGroups.delete"} <= actions
    for action in sorted(actions):
        azure.fail(action, LOGIN_PAGE)
    life(azure, another())
    assert {call.fault for call in azure.calls()} == {"", LOGIN_PAGE.kind}


def test_a_machine_that_is_being_deleted_is_not_ordered_again(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    """The launch must not create another machine while the interface of the old one still exists."""
    first = provisioner.launch(request(*pair()))
    azure.set_times(operation=4.0)
    another().remove(first, ["worker-1.1"])
    azure.forget()
    assert another().launch(request(*pair())).machines == first.machines
    assert not azure.calls("virtualMachines.write")
    until(lambda: machines(azure) == [first.machines["worker-0.1"]])
    azure.set_times(operation=0.02)
    assert [state.phase for state in another().observe(first)] == ["running", "gone"]


def test_one_that_was_refused_and_is_being_deleted_is_waited_for_and_made_anew(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    """The process of the refused launch died after it had requested the machine's deletion."""
    azure.set_sku(T4, REGION, zones=[])
    azure.set_capacity(T4, REGION, "", "on-demand", 0)
    azure.fail("virtualMachines.delete|resourceGroups.delete", error("InternalExecutionError", 500), times=None)
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.may_have_created) == ("capacity", True), "the cleanup does not replace it"
    azure.heal()
    azure.set_capacity(T4, REGION, "", "on-demand", 1)
    azure.set_times(operation=60.0)
    Clients(FastClock()).compute.virtual_machines.begin_delete(GROUP, "cloudgpu-worker-0-1", polling=False).result()
    azure.set_times(operation=0.02)
    allocation = another().launch(request())
    assert machines(azure) == list(allocation.machines.values())


def test_nodes_that_were_replaced_are_marked_no_more(azure: AzureControl) -> None:
    """A resource group may have 50 tags, and a node may be replaced more often than that."""
    allocation = another().launch(request())
    for incarnation in range(2, 6):
        another().remove(allocation, list(allocation.machines))
        allocation = another().launch(request(node(f"worker-0.{incarnation}")))
    [group] = [one for one in azure.resources("Microsoft.Resources/resourceGroups") if one["name"] == GROUP]
    assert [name for name in group["tags"] if "started" in name] == ["cloudgpu-started-worker-0.5"]


def test_a_change_of_tags_that_takes_its_time_is_waited_for(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    """The node's tag is removed after the first zone's refusal, which must not undo the tag for the second zone."""
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.set_capacity(T4, REGION, "1", "on-demand", 0)
    azure.set_times(tags=1.0)
    allocation = provisioner.launch(request())
    azure.set_times(tags=0.0)
    [group] = [one for one in azure.resources("Microsoft.Resources/resourceGroups") if one["name"] == GROUP]
    assert group["tags"]["cloudgpu-started-worker-0.1"] == "worker-0.1"
    assert [call.zone for call in azure.calls("virtualMachines.write")] == ["1", "2"]
    assert look(allocation).phase == "running"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["allocation", "constraints", "sku"])
def test_no_capacity_in_a_zone_leads_to_the_next_and_leaves_nothing_of_the_first(
    azure: AzureControl, provisioner: AzureProvisioner, how: Any
) -> None:
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.set_capacity(T4, REGION, "1", "on-demand", 0, how=how)
    allocation = provisioner.launch(request())
    [machine] = azure.instances(running=True)
    assert machine.zone == "2"
    assert len(azure.resources("Microsoft.Compute/disks")) == 1
    assert len(azure.resources("Microsoft.Network/networkInterfaces")) == 1
    provisioner.terminate(allocation)
    assert nothing_left(azure)


def test_a_size_that_is_not_sold_to_the_subscription(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    azure.set_sku(T4, REGION, restricted=[])
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.scope) == ("not_offered", "region")
    assert "NotAvailableForSubscription" in str(refusal)
    assert not azure.calls("*.write")


def test_zones_that_are_closed_to_the_subscription_are_not_tried(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    azure.set_sku(T4, REGION, zones=["1", "2", "3"], restricted=["1", "2"])
    provisioner.launch(request())
    assert [one.zone for one in azure.instances()] == ["3"]
    assert len(azure.calls("virtualMachines.write")) == 1


def test_a_quota_that_azure_finds_too_small_itself(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    """The account may not read the quotas, so Azure refuses the machine itself."""
    azure.set_quota(REGION, "lowPriorityCores", 4)
    azure.fail("locations.usages", error("AuthorizationFailed", 403, "no permission"), times=None)
    refusal = refused(provisioner, request(*pair(), market="spot"))
    assert (refusal.error_class, refusal.scope) == ("quota", "region")
    until(lambda: nothing_left(azure))


@pytest.mark.parametrize(
    ("action", "code", "status", "error_class"),
    [
        ("virtualMachines.write", "RequestDisallowedByPolicy", 403, "auth"),
        ("virtualMachines.write", "InvalidParameter", 400, "invalid"),
        ("virtualMachines.write", "SomethingNew", 400, "invalid"),
        ("virtualMachines.write", "SomethingNew", 409, "capacity"),
        ("resourceGroups.write", "RequestDisallowedByAzure", 403, "auth"),
        ("roleAssignments.write", "AuthorizationFailed", 403, "auth"),
        ("publicIPAddresses.write", "PublicIPCountLimitReached", 400, "quota"),
        ("resourceGroups.write", "ReadOnlyDisabledSubscription", 409, "auth"),
    ],
)
def test_what_is_refused_leaves_nothing(  # noqa: PLR0917
    azure: AzureControl, provisioner: AzureProvisioner, action: str, code: str, status: int, error_class: str
) -> None:
    azure.fail(action, error(code, status, f"{code}: for a reason"), times=None)
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.code) == (error_class, code)
    azure.heal()
    until(lambda: nothing_left(azure))


def test_a_role_is_called_by_its_name(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    azure.fail("roleAssignments.write", error("AuthorizationFailed", 403, "no permission"), times=None)
    assert "give the role Desktop Virtualization Power On Off Contributor" in str(refused(provisioner, request()))


def test_a_reservation_that_was_used_up_in_the_meantime_is_a_lack_of_capacity(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    reserve("mine", T4, 2, zone="1")
    azure.fail_operation(VM, "write", "AllocationFailed", "No room in the reservation", where="worker-1")
    refusal = refused(provisioner, request(*pair(), market="reservation"))
    assert (refusal.error_class, refusal.code) == ("capacity", "AllocationFailed")
    until(lambda: not machines(azure))


def test_a_disk_that_is_not_gone_yet_is_waited_for(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    """The disk of a machine that was refused before may be deleted later than the machine."""
    taken = error("ConflictingUserInput", 409, "Disk x already exists. Only CreateOption.Attach is supported.")
    azure.fail("virtualMachines.write", taken, times=3)
    assert look(provisioner.launch(request())).phase == "running"


def test_where_azure_names_no_reason_the_next_zone_is_tried(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.fail_operation(VM, "write", "", where="worker-0")
    provisioner.launch(request())
    assert [one.zone for one in azure.instances(running=True)] == ["2"]


@pytest.mark.parametrize("code", ["SomethingNew", "DiskServiceInternalError", "OverConstrainedZonalAllocationRequest"])
def test_an_unknown_failure_leads_to_the_next_zone(
    azure: AzureControl, provisioner: AzureProvisioner, code: str
) -> None:
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.fail_operation(VM, "write", code, where="worker-0")
    provisioner.launch(request())
    assert [one.zone for one in azure.instances(running=True)] == ["2"]


def test_a_machine_that_azure_does_not_show_yet_is_waited_for(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    """Azure Resource Manager is eventually consistent: a GET just after an accepted PUT may answer 404."""
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.set_times(cache=0.4)
    provisioner.launch(request(*pair()))
    assert sorted((one.name, one.zone) for one in azure.instances()) == [
        ("cloudgpu-worker-0-1", "1"),
        ("cloudgpu-worker-1-1", "1"),
    ]


def test_a_machine_that_azure_does_not_show_and_could_not_make_was_refused(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    azure.set_sku(T4, REGION, zones=["1", "2"])
    azure.set_times(cache=0.3)
    azure.fail_operation(VM, "write", "ZonalAllocationFailed", where="worker-0")
    provisioner.launch(request())
    assert [one.zone for one in azure.instances(running=True)] == ["2"]


def test_a_machine_that_azure_never_shows_is_given_up(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    azure.set_sku(T4, REGION, zones=[])
    azure.set_times(cache=600.0)
    refusal = refused(provisioner, request())
    assert (refusal.error_class, refusal.code) == ("capacity", "AllocationFailed")
    until(lambda: nothing_left(azure))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("OperationNotAllowed", "Operation 'PUT' is not allowed on VM 'x' since the VM is marked for deletion."),
        ("Conflict", "The request failed due to conflict with a concurrent request."),
        ("ConflictingConcurrentWriteNotAllowed", "The operation was interrupted by a conflicting concurrent write."),
        ("InvalidResourceReference", "Resource x referenced by resource y was not found."),
    ],
)
def test_what_will_be_gone_in_a_moment_is_waited_for(
    azure: AzureControl, provisioner: AzureProvisioner, code: str, message: str
) -> None:
    azure.fail("virtualMachines.write", error(code, 409, message), times=3)
    assert look(provisioner.launch(request())).phase == "running"


def test_zones_that_were_not_tried_are_named(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    """Two zones have capacity for one of two machines, the third for both. Each attempt tries one zone."""
    azure.set_sku(T4, REGION, zones=["1", "2", "3"])
    for zone in ("1", "2"):
        azure.set_capacity(T4, REGION, zone, "on-demand", 1)
    asked = request(*pair())
    for attempt, left_over in ((1, ("2", "3")), (2, ("3", "1"))):
        refusal = refused(provisioner, dataclasses.replace(asked, attempt=attempt, token=f"{attempt:032x}"))
        assert (refusal.error_class, refusal.scope, refusal.hints) == ("capacity", "attempt", left_over)
    provisioner.launch(dataclasses.replace(asked, attempt=3, token=f"{3:032x}"))
    assert {one.zone for one in azure.instances(running=True)} == {"3"}


@pytest.mark.parametrize("code", ["OperationPreempted", "InternalExecutionError"])
def test_an_operation_that_fails_later_leaves_no_machine(
    azure: AzureControl, provisioner: AzureProvisioner, code: str
) -> None:
    azure.set_sku(T4, REGION, zones=[])
    azure.fail_operation(VM, "write", code, where="worker-0")
    refusal = refused(provisioner, request())
    assert refusal.code == code
    another().terminate(Allocation("azure", "digits-abc", 1, TOKEN, {}, owner=OWNER.name))
    assert nothing_left(azure)


def test_an_identity_that_is_not_known_everywhere_yet(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    azure.set_times(roles=0.5)
    azure.fail("roleAssignments.write", error("PrincipalNotFound", 400, "Principal x does not exist"), times=3)
    assert look(provisioner.launch(request())).phase == "running"


# --- failures of machines ---------------------------------------------------------------------------------------------


def test_a_machine_whose_system_never_reported_is_shown_with_the_end_of_its_console(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    azure.fail_operation(VM, "provision", "OSProvisioningTimedOut", "OS Provisioning did not finish")
    allocation = provisioner.launch(request())
    until(lambda: "OSProvisioningTimedOut" in look(allocation).detail)
    state = look(allocation)
    assert state.phase == "running", "it runs: whether it is of use its agent tells"
    assert isinstance(diagnostics.console(Clients(FastClock()), GROUP, allocation.machines["worker-0.1"]), str)
    assert azure.calls("virtualMachines.retrieveBootDiagnosticsData")


def test_a_login_page_instead_of_a_list_is_no_bug_of_ours(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    provisioner.launch(request())
    azure.fail("*.list", LOGIN_PAGE, times=2)
    assert [one.token for one in another().find(OWNER)] == [TOKEN]


def test_the_key_to_a_console_is_not_shown(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    allocation = provisioner.launch(request())
    [resource] = azure.resources(VM)
    azure.fail("console.read", error("AuthenticationFailed", 403), times=None)
    with pytest.raises(ProvisionError) as caught:
        provisioner.explain(allocation, "worker-0.1")
    shown = "".join(traceback.format_exception(caught.value))
    assert "read the console of cloudgpu-worker-0-1: HTTPError (HTTP status 403)" in str(caught.value)
    assert "sig=" not in shown and resource["properties"]["vmId"] not in shown


@pytest.mark.parametrize("code", ["AllocationFailed", ""])
@pytest.mark.parametrize("young", [True, False])
def test_a_machine_that_azure_does_not_keep_is_refused_only_while_it_is_young(
    azure: AzureControl, provisioner: AzureProvisioner, code: str, young: bool
) -> None:
    """A machine that Azure cannot move to another host after days of running is lost; it was not refused."""
    allocation = provisioner.launch(request())
    azure.fail_now(allocation.machines["worker-0.1"], code)
    launched_at = {"worker-0.1": time.time() - (60 if young else 86_400)}
    allocation = dataclasses.replace(allocation, launched_at=launched_at)
    watcher = another()
    [state] = watcher.observe(allocation)
    assert state.phase == "gone"
    assert (state.refused is not None and state.refused.error_class) == (young and "capacity")
    assert (code or "Failed") in state.detail
    assert watcher.observe(allocation) == [state], "and it stays so"
    until(lambda: machines(azure) == [])


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_a_machine_that_azure_starts_again_returns(
    azure: AzureControl, provisioner: AzureProvisioner, kind: str
) -> None:
    allocation = provisioner.launch(request())
    assert not look(allocation).restarting
    azure.set_times(restart=4.0)
    azure.maintain(allocation.machines["worker-0.1"], kind, 0.0)
    until(lambda: look(allocation) == NodeState("worker-0.1", "running", "it is being restarted", restarting=True))
    until(lambda: not look(allocation).restarting)


def test_a_machine_that_was_restarted_by_hand_returns(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    allocation = provisioner.launch(request())
    azure.set_times(operation=4.0)
    Clients(FastClock()).compute.virtual_machines.begin_restart(
        GROUP, allocation.machines["worker-0.1"], polling=False
    ).result()
    assert look(allocation).restarting
    until(lambda: not look(allocation).restarting)


def test_a_machine_that_is_off_does_not_return(azure: AzureControl, provisioner: AzureProvisioner) -> None:
    allocation = provisioner.launch(request())
    Clients(FastClock()).compute.virtual_machines.begin_deallocate(
        GROUP, allocation.machines["worker-0.1"], polling=False
    ).result()
    until(lambda: not azure.instances(running=True))
    assert not look(allocation).restarting


def test_machines_end_even_if_their_roles_cannot_be_taken_away(
    azure: AzureControl, provisioner: AzureProvisioner
) -> None:
    allocation = provisioner.launch(request())
    azure.fail("roleAssignments.delete", error("ScopeLocked", 409, "The scope is locked"), times=None)
    with pytest.raises(ProvisionError, match="remove the lock") as locked:
        another().terminate(allocation)
    assert locked.value.error_class == "auth"
    until(lambda: machines(azure) == [])
    azure.heal()
    another().terminate(allocation)
    assert nothing_left(azure)


# --- credentials and network ------------------------------------------------------------------------------------------


def test_a_server_that_hangs_is_given_up(
    azure: AzureControl, provisioner: AzureProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudgpu.provisioners.azure.clients.READ_S", 0.3)
    azure.fail("resourceGroups.read", HANG, times=None)
    begun = time.monotonic()
    refusal = refused(another(), request())
    assert (refusal.error_class, refusal.code) == ("transient", "ServiceResponseTimeoutError")
    assert time.monotonic() - begun < 180


def test_machines_of_an_unknown_account_are_not_gone_in_a_subscription_that_does_not_exist(
    provisioner: AzureProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = dataclasses.replace(provisioner.launch(request()), account="")
    monkeypatch.setenv("AZURE_SUBSCRIPTION_ID", "5ab50000-0000-4000-8000-00000000ffff")
    stranger = another()
    for verb in (stranger.observe, stranger.terminate):
        with pytest.raises(ProvisionError, match="check AZURE_SUBSCRIPTION_ID") as caught:
            verb(allocation)
        assert (caught.value.error_class, caught.value.code) == ("auth", "SubscriptionNotFound")


def test_a_token_that_was_revoked_is_renewed_within_the_launch(azure: AzureControl) -> None:
    mine = another()
    mine.find(OWNER)
    azure.revoke("submitter")
    assert mine.launch(request()).machines


def test_watching_costs_one_call_for_each_launch_and_one_a_minute_for_each_machine(
    azure: AzureControl,
) -> None:
    provisioner = AzureProvisioner(StillClock())
    allocation = provisioner.launch(request(*pair()))
    azure.forget()
    for _ in range(5):
        assert {state.phase for state in provisioner.observe(allocation)} == {"running"}
    assert len(azure.calls("virtualMachines.list")) <= 2
    assert len(azure.calls("virtualMachines.read")) == 2
