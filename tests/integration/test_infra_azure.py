"""Stacks on Azure, from creation to teardown: Automation API, engine, provider and Resource Manager's stand-in.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. The provider is a stand-in
for both.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.infra.azure.programs import fleet_program, infra_program
from cloudgpu.infra.azure.role import SWITCH_OFF
from cloudgpu.infra.engine import executable as engines
from cloudgpu.infra.engine.automation import ProgressCallbacks, Stack, opened
from cloudgpu.infra.engine.backend import backend_of
from cloudgpu.infra.errors import InfraError
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners.azure.names import leaving_role
from cloudgpu.provisioners.azure.resources.rights import LEAVING, WRITER
from cloudgpu.provisioners.boot import BootRecord
from cloudgpu.provisioners.boot.files import boot_files
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.azure import SUBSCRIPTION, Azure, AzureControl
from cloudgpu.tests.standins.azure.machines import InstanceState
from cloudgpu.tests.standins.faults import LOSE, error
from cloudgpu.tests.standins.pulumi import azure as azure_provider
from cloudgpu.tests.standins.pulumi.engines import Engine, engine
from cloudgpu.tests.standins.pulumi.provider import Provider

__all__ = ["engine"]

pytestmark = pytest.mark.timeout(600)

ROLES = "Microsoft.Authorization/roleAssignments"
DEFINITIONS = "Microsoft.Authorization/roleDefinitions"
REGION, OWNER = "eastus", "cloudgpu-tester"
T4 = "Standard_NC4as_T4_v3"
TIMEOUT_S = 180.0
INFRA = InfraSettings("azure", REGION, "infra-azure-eastus", OWNER, account=SUBSCRIPTION)
FLEET = FleetSpec(
    name="big", cloud="azure", region=REGION, zones=("1", "2"), machine_type=T4, accelerator="T4", gpus="1", size=2
)
IMAGE = "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026100101"


class Desk:
    """Brings stacks up and down, and inspects the subscription that they are in."""

    def __init__(self, control: AzureControl, provider: Provider) -> None:
        self.azure, self.provider = control, provider

    @contextlib.contextmanager
    def stack(self, name: str) -> Iterator[Stack]:
        found = engines.find()
        assert found is not None
        with opened(name, backend_of(None, os.environ), found, ProgressCallbacks(), os.environ) as stack:
            yield stack

    def infra_up(self, settings: InfraSettings = INFRA) -> Infrastructure:
        with self.stack(settings.stack) as stack:
            return Infrastructure.from_json(stack.up(lambda: infra_program(settings))["cloudgpu"])

    def fleet_up(self, settings: FleetSettings) -> FleetOutputs:
        with self.stack(settings.stack) as stack:
            stack.recover()
            return FleetOutputs.from_json(stack.up(lambda: fleet_program(settings))["cloudgpu"])

    def down(self, name: str) -> None:
        with self.stack(name) as stack:
            assert not stack.down(keep_protected=False).resources

    def machines(self) -> list[InstanceState]:
        """Return the machines that exist."""
        return [one for one in self.azure.instances() if one.status in ("creating", "running", "failed")]

    def names(self) -> set[str]:
        return {one.name for one in self.machines()}

    def capacity(self, group: str) -> int:
        found = self.provider.cloud.get(group, "2024-07-01")
        assert found is not None
        return int(found["sku"]["capacity"])

    def left(self) -> list[str]:
        return [one for one in self.azure.all_resources() if "/cloudgpu-" in one.lower() or "role" in one.lower()]


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure() as azure:
        yield azure


def desk_of(azure: Azure, engine: Engine, folder: Path, patch: pytest.MonkeyPatch) -> Desk:
    for name, value in azure.environ(folder / "keys").items():
        patch.setenv(name, value)
    patch.setenv("CLOUDGPU_HOME", str(folder / "home"))
    provider = azure_provider.provider()
    engine.attach(provider)
    return Desk(azure.control, provider)


@pytest.fixture
def desk(server: Azure, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    server.control.reset()
    return desk_of(server, engine, tmp_path, monkeypatch)


@pytest.fixture
def settings(desk: Desk) -> FleetSettings:
    return standing(desk)


def standing(desk: Desk) -> FleetSettings:
    """Return the settings of a fleet, with a subnet and an identity created as a stack would create them."""
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/standing"
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/cloudgpu"
    role = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/cloudgpu"
    inside = {"subnets": [{"name": "machines", "properties": {"addressPrefix": "10.0.0.0/18"}}]}
    cloud = desk.provider.cloud
    cloud.put(group, "2024-03-01", {"location": REGION})
    network_body = {"location": REGION, "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, **inside}}
    cloud.put(network, "2024-05-01", network_body)
    cloud.put(role, "2023-01-31", {"location": REGION})
    there = Infrastructure(
        "azure",
        REGION,
        INFRA.stack,
        OWNER,
        network,
        {"": f"{network}/subnets/machines"},
        machine_role=role,
        machine_role_id="client-id",
        job_dir="az://cloudgpu@account/jobs",
    )
    return FleetSettings(
        "cluster-big",
        OWNER,
        FLEET,
        there,
        user_data="#cloud-config\n",
        image=IMAGE,
        fleet_dir=f"{there.job_dir}/fleets/big",
        account=SUBSCRIPTION,
        expires=2_000_000_000.0,
    )


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until, "too late"
        time.sleep(0.05)


def changes(stack: Stack, program: Callable[[], None]) -> set[str]:
    return {change.op for change in stack.preview(program)}


# --- infra ------------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_infra_from_creation_to_teardown(desk: Desk) -> None:
    outputs = desk.infra_up()
    assert outputs.subnets[""] == f"{outputs.network}/subnets/machines"
    [account] = desk.azure.resources("Microsoft.Storage/storageAccounts")
    assert outputs.job_dir == f"az://cloudgpu@{account['name']}/jobs"
    kept = {key: account["properties"][key] for key in ("minimumTlsVersion", "supportsHttpsTrafficOnly")}
    assert kept == {"minimumTlsVersion": "TLS1_2", "supportsHttpsTrafficOnly": True}
    open_to = {key: value for key, value in account["properties"].items() if key.startswith("allow")}
    assert set(open_to) == {"allowBlobPublicAccess", "allowSharedKeyAccess", "allowCrossTenantReplication"}
    assert not any(open_to.values())
    [identity] = desk.azure.resources("Microsoft.ManagedIdentity/userAssignedIdentities")
    assert (outputs.machine_role, outputs.machine_role_id) == (identity["id"], identity["properties"]["clientId"])
    given = [one["properties"] for one in desk.azure.resources(ROLES)]
    machines = [one for one in given if one["principalId"] == identity["properties"]["principalId"]]
    roles = {one["roleDefinitionId"].rpartition("/")[2]: one for one in machines}
    [off] = [role for role in roles if role != WRITER]
    definitions = {one["name"]: one["properties"] for one in desk.azure.resources(DEFINITIONS)}
    assert definitions[off]["permissions"][0]["actions"] == list(SWITCH_OFF)
    leaving = definitions[leaving_role(INFRA.stack, SUBSCRIPTION)]
    assert leaving["permissions"][0]["actions"] == list(LEAVING)
    assert leaving["assignableScopes"] == [f"/subscriptions/{SUBSCRIPTION}"]
    assert "StringStartsWith 'jobs/'" in roles[WRITER]["condition"]
    for kind in (
        "Microsoft.Resources/resourceGroups",
        "Microsoft.Network/virtualNetworks",
        "Microsoft.Logic/workflows",
    ):
        for one in desk.azure.resources(kind):
            assert one["tags"] == {"cloudgpu-owner": OWNER, "cloudgpu-stack": INFRA.stack}, one["id"]

    with desk.stack(INFRA.stack) as stack:
        stack.recover()
        assert changes(stack, lambda: infra_program(INFRA)) == {"same"}
        left = stack.down(keep_protected=True)
    kept_names = {one.name.rpartition("-data-")[2] for one in left.resources if one.protected}
    assert kept_names == {"group", "account", "container", "lifecycle", "user-0"}
    assert desk.azure.resources("Microsoft.Network/virtualNetworks") == []
    assert len(desk.azure.resources("Microsoft.Storage/storageAccounts/blobServices/containers")) == 1

    again = desk.infra_up(replace(INFRA, protect=False))
    assert again.job_dir == outputs.job_dir, "the container that stayed is used again"
    desk.down(INFRA.stack)
    assert desk.left() == []


def test_a_container_that_is_there_is_used_and_stays(desk: Desk) -> None:
    storage = desk.azure.add_storage("somebodys")
    adopting = replace(INFRA, bucket="storage/somebodys/data", adopt=True)
    outputs = desk.infra_up(adopting)
    assert outputs.job_dir == "az://data@somebodys/jobs"
    assert len(desk.azure.resources("Microsoft.Storage/storageAccounts")) == 1
    scopes = {one["properties"]["scope"] for one in desk.azure.resources(ROLES)}
    assert f"{storage}/blobServices/default/containers/data" in scopes
    desk.down(INFRA.stack)
    assert [one["id"] for one in desk.azure.resources("Microsoft.Storage/storageAccounts")] == [storage]


def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_made_twice(desk: Desk) -> None:
    for action in ("networkSecurityGroups.write", "roleAssignments.write", "workflows.write"):
        desk.azure.fail(action, LOSE, times=1)
    desk.infra_up(replace(INFRA, protect=False))
    assert len(desk.azure.resources("Microsoft.Network/networkSecurityGroups")) == 1
    assert len(desk.azure.resources("Microsoft.Logic/workflows")) == 1
    assert len(desk.azure.resources(ROLES)) == 4
    desk.down(INFRA.stack)
    assert desk.left() == []


# --- fleets -----------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_a_fleet_from_nothing_to_nothing(desk: Desk, settings: FleetSettings) -> None:
    before = set(desk.left())
    outputs = desk.fleet_up(settings)
    assert (outputs.size, outputs.template_hash) == (2, FLEET.template_hash)
    assert outputs.group.endswith("/virtualMachineScaleSets/big")
    assert {one.zone for one in desk.machines()} == {"1", "2"}
    for one in desk.machines():
        assert one.status == "running" and one.open == []
        assert one.identities == [settings.infrastructure.machine_role]
        assert one.tags == {
            "cloudgpu-owner": OWNER,
            "cloudgpu-stack": settings.stack,
            "cloudgpu-fleet": "big",
        }
    first = desk.names()

    with desk.stack(settings.stack) as stack:
        stack.recover()
        assert changes(stack, lambda: fleet_program(settings)) == {"same"}
    settings = replace(settings, expires=2_000_003_600.0)
    desk.fleet_up(settings)
    assert desk.names() == first, "nobody is replaced by another time to expire"

    desk.fleet_up(replace(settings, fleet=FLEET.model_copy(update={"size": 4})))
    assert len(desk.machines()) == 4 and first < desk.names(), "nobody is replaced by more"
    desk.fleet_up(settings)
    assert len(desk.machines()) == 2

    # A machine is deleted by hand: the next `up` replaces it.
    gone = min(desk.names())
    desk.provider.cloud.delete(
        outputs.group.replace("virtualMachineScaleSets/big", f"virtualMachines/{gone}"), "2024-07-01"
    )
    assert len(desk.machines()) == 1
    desk.fleet_up(settings)
    assert len(desk.machines()) == 2 and gone not in desk.names()

    # A changed template: new machines are created before the old ones are deleted.
    old = desk.names()
    changed = replace(settings, fleet=FLEET.model_copy(update={"disk_gb": 200.0}))
    assert desk.fleet_up(changed).template_hash != outputs.template_hash
    assert len(desk.machines()) == 2 and not old & desk.names()
    assert {one["properties"]["diskSizeGB"] for one in desk.azure.resources("Microsoft.Compute/disks")} == {200}

    # Azure replaces a machine that does not respond.
    ill = min(desk.names())
    desk.azure.fail_health(ill)
    wait(lambda: len([one for one in desk.machines() if one.status == "running"]) == 2 and ill not in desk.names())

    desk.down(settings.stack)
    assert set(desk.left()) == before


@pytest.mark.on_engine
def test_a_spot_machine_that_was_taken_is_got_again_and_those_on_demand_stay(
    desk: Desk, settings: FleetSettings
) -> None:
    mixed = FLEET.model_copy(update={"market": "spot", "on_demand": 1, "size": 3, "peers": True, "zones": ("1",)})
    desk.fleet_up(replace(settings, fleet=mixed))
    assert sorted(one.market for one in desk.machines()) == ["on-demand", "spot", "spot"]
    taken = next(one.name for one in desk.machines() if one.market == "spot")
    desk.azure.evict(taken, 0.0)
    wait(lambda: len(desk.machines()) == 3 and taken not in desk.names())
    # Azure cannot change the market of a scale set, so another scale set takes its place.
    desk.fleet_up(replace(settings, fleet=mixed.model_copy(update={"market": "on-demand", "on_demand": 0})))
    assert [one.market for one in desk.machines()] == ["on-demand"] * 3
    desk.down(settings.stack)
    assert desk.machines() == []


LEAVE = """
import json, common, group_azure
record = json.load(open("boot.json"))
try:
    group_azure.leave(record)
    print("left")
except common.PermanentError as error:
    print("hopeless:", error)
"""


def leave(desk: Desk, machine: InstanceState, folder: Path) -> str:
    """Return what a machine prints that asks to leave its scale set, with only the bootstrap's files."""
    [identity] = desk.azure.resources("Microsoft.ManagedIdentity/userAssignedIdentities")
    record = BootRecord(
        *("az://c@a/x", "", 0, "", "", "agent/a", "a", REGION),
        cloud="azure",
        fleet="big",
        api_endpoint=os.environ["CLOUDGPU_AZURE_ENDPOINT"],
        identity=identity["properties"]["clientId"],
    )
    for name, data in boot_files(record).items():
        (folder / name).write_bytes(data)
    environ = {name: os.environ[name] for name in ("PATH", "SSL_CERT_FILE")}
    environ["CLOUDGPU_AZURE_METADATA"] = machine.metadata
    command = [sys.executable, "-c", LEAVE]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_machine_leaves_by_the_right_that_its_fleet_gave_it(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine").mkdir()
    with Azure(boot=True) as azure:
        desk = desk_of(azure, engine, tmp_path, monkeypatch)
        outputs = desk.fleet_up(standing(desk))
        first, second = sorted(desk.machines(), key=lambda one: one.name)
        assert leave(desk, first, tmp_path / "machine") == "left"
        wait(lambda: desk.names() == {second.name})
        assert desk.capacity(outputs.group) == 1, "it is not got again"
        [right] = [one for one in desk.azure.resources(ROLES) if one["properties"]["scope"] == group_of(outputs.group)]
        desk.provider.cloud.delete(right["id"], "2022-04-01")
        assert leave(desk, second, tmp_path / "machine").startswith("hopeless: this machine may not leave")
        assert desk.names() == {second.name}


def group_of(path: str) -> str:
    return path.partition("/providers/")[0]


@pytest.mark.on_engine
def test_no_capacity_is_an_error_and_keeps_running_machines(desk: Desk, settings: FleetSettings) -> None:
    one = FLEET.model_copy(update={"size": 1, "zones": ("1",)})
    desk.fleet_up(replace(settings, fleet=one))
    first = desk.names()
    desk.azure.set_capacity(T4, REGION, "1", "on-demand", 1)
    with pytest.raises(InfraError, match="ZonalAllocationFailed"):
        desk.fleet_up(replace(settings, fleet=one.model_copy(update={"size": 2})))
    assert desk.names() == first
    desk.azure.set_capacity(T4, REGION, "1", "on-demand", None)
    desk.fleet_up(replace(settings, fleet=one.model_copy(update={"size": 2})))
    assert len(desk.machines()) == 2 and first < desk.names()
    desk.down(settings.stack)
    assert desk.machines() == []


def test_a_failure_in_the_middle_leaves_what_the_next_up_goes_on_from(desk: Desk, settings: FleetSettings) -> None:
    desk.azure.fail("virtualMachineScaleSets.write", error("QuotaExceeded", 403, "no more of these"), times=1)
    with pytest.raises(InfraError, match="no more of these"):
        desk.fleet_up(settings)
    assert desk.machines() == []
    desk.fleet_up(settings)
    assert len(desk.machines()) == 2
    desk.azure.fail("networkSecurityGroups.delete", error("ScopeLocked", 409, "not now"), times=1)
    with desk.stack(settings.stack) as stack, pytest.raises(InfraError, match="not now"):
        stack.down(keep_protected=False)
    assert desk.machines() == [], "what bills goes first"
    desk.down(settings.stack)
