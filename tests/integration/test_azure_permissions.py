"""Tests of the roles in docs/reference/azure-permissions.md: they are sufficient, and each action in them is necessary.

The roles are read from the page and enforced by the stand-in. Every action belongs to the step that needs it: without
the action, that step's error names it. UNTESTED lists what the stand-in does not enforce; the page lists it, too.
test_azure_grouped.py tests the roles for scale sets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.azure.catalog import quotas
from cloudgpu.provisioners.azure.catalog import refresh as catalog
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.lifecycle import gc
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.azure.resources import rights
from cloudgpu.tests.standins.azure import SUBMITTER, Azure, AzureControl
from cloudgpu.tests.standins.azure.permissions import EVERYTHING, LAUNCH, PAGE, SCALE_SETS
from cloudgpu.tests.standins.clocks import FastClock

TOKEN = "0123456789abcdef" * 2
REGION = "eastus"
OWNER = Owner("cloudgpu-tester")


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure() as azure:
        yield azure


@pytest.fixture
def azure(server: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AzureControl]:
    server.control.reset()
    for name, value in {**server.environ(tmp_path), "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home" / "catalog").mkdir(parents=True)
    server.control.add_storage("myaccount")
    quotas._say_once.cache_clear()
    yield server.control
    server.control.enforce(None)


# --- steps ------------------------------------------------------------------------------------------------------------


def node(index: int = 0, size: str = "Standard_NC4as_T4_v3", gpu: str = "T4", count: int = 1) -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, size, gpu, Fraction(count))


def fabric(index: int) -> NodeRequest:
    return node(index, "Standard_ND96isr_H100_v5", "H100-80GB", 8)


def request(**changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-k3v9x2ma",
        attempt=1,
        token=TOKEN,
        owner=OWNER,
        job_dir="az://jobs@myaccount/jobs/digits-k3v9x2ma",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market="spot",
        disk_gb=100.0,
        nodes=(node(0), node(1)),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


@contextlib.contextmanager
def complaints(found: list[str]) -> Iterator[None]:
    try:
        yield
    except ProvisionError as error:
        found.append(str(error))


def launched() -> Allocation:
    """Return an allocation as another process knows it."""
    return Allocation("azure", "digits-k3v9x2ma", 1, TOKEN, {"worker-0.1": "cloudgpu-worker-0-1"}, region=REGION)


def _launching(**changes: Any) -> Callable[[], list[str]]:
    def step() -> list[str]:
        found: list[str] = []
        with complaints(found):
            AzureProvisioner(FastClock()).launch(request(**changes))
        return found

    return step


def observe() -> list[str]:
    found: list[str] = []
    with complaints(found):
        AzureProvisioner(FastClock()).observe(launched())
        AzureProvisioner(FastClock()).find(OWNER)
    return found


def explain() -> list[str]:
    found: list[str] = []
    with complaints(found):
        AzureProvisioner(FastClock()).explain(launched(), "worker-0.1")
    return found


def remove() -> list[str]:
    found: list[str] = []
    with complaints(found):
        AzureProvisioner(FastClock()).remove(launched(), ["worker-0.1"])
    return found


def terminate() -> list[str]:
    found: list[str] = []
    with complaints(found):
        AzureProvisioner(FastClock()).terminate(launched())
    return found


def collect_all() -> list[str]:
    clients = Clients(FastClock())
    found: list[str] = []
    with complaints(found):
        looked = gc.find([], clients)
        found += looked.failed.values()
        for left in looked.leftovers:
            gc.remove(left, clients)
    return found


def refresh() -> list[str]:
    found: list[str] = []
    with complaints(found):
        outcomes = catalog.refresh([REGION], lambda _done, _of: None, Clients(FastClock()))
        found += [outcome.reason for outcome in outcomes if outcome.state == "kept"]
    return found


STEPS: dict[str, tuple[Callable[[], list[str]], str]] = {
    "launch": (
        _launching(),
        """Microsoft.Authorization/roleAssignments/write
        Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read Microsoft.Compute/skus/read
        Microsoft.Compute/virtualMachines/read Microsoft.Compute/virtualMachines/write
        Microsoft.ManagedIdentity/userAssignedIdentities/assign/action
        Microsoft.ManagedIdentity/userAssignedIdentities/write
        Microsoft.Network/applicationSecurityGroups/write
        Microsoft.Network/networkInterfaces/join/action Microsoft.Network/networkInterfaces/write
        Microsoft.Network/networkSecurityGroups/join/action Microsoft.Network/networkSecurityGroups/write
        Microsoft.Network/publicIPAddresses/join/action Microsoft.Network/publicIPAddresses/write
        Microsoft.Network/virtualNetworks/subnets/join/action Microsoft.Network/virtualNetworks/write
        Microsoft.Resources/subscriptions/resourceGroups/read Microsoft.Resources/subscriptions/resourceGroups/write
        Microsoft.Resources/subscriptions/resources/read Microsoft.Resources/tags/write""",
    ),
    "slow launch": (
        _launching(),
        """Microsoft.Network/applicationSecurityGroups/read Microsoft.Network/networkInterfaces/read
        Microsoft.Network/networkSecurityGroups/read Microsoft.Network/publicIPAddresses/read
        Microsoft.Network/virtualNetworks/read""",
    ),
    "InfiniBand": (
        _launching(market="on-demand", nodes=(fabric(0), fabric(1))),
        "Microsoft.Compute/availabilitySets/write",
    ),
    "InfiniBand on Spot": (
        _launching(nodes=(fabric(0), fabric(1))),
        "Microsoft.Compute/proximityPlacementGroups/write",
    ),
    "reservation": (
        _launching(market="reservation"),
        """Microsoft.Compute/capacityReservationGroups/capacityReservations/read
        Microsoft.Compute/capacityReservationGroups/deploy/action Microsoft.Compute/capacityReservationGroups/read""",
    ),
    "quota": (_launching(nodes=(node(0),)), "Microsoft.Compute/locations/usages/read"),
    "observe": (observe, ""),
    "explain": (explain, "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action"),
    "remove": (remove, "Microsoft.Compute/virtualMachines/delete"),
    "terminate": (
        terminate,
        "Microsoft.Authorization/roleAssignments/delete Microsoft.Resources/subscriptions/resourceGroups/delete",
    ),
    "gc": (
        collect_all,
        """Microsoft.Authorization/roleAssignments/read Microsoft.Compute/disks/read
        Microsoft.Resources/subscriptions/resourceGroups/resources/read""",
    ),
    "catalog": (refresh, "Microsoft.Resources/subscriptions/locations/read"),
}
UNTESTED = {
    # Azure requires them to delete the group or to link resources; the stand-in does not.
    *(action for action in LAUNCH if action.startswith("Microsoft.Network/") and action.endswith("/delete")),
    "Microsoft.Compute/disks/delete",
    "Microsoft.Compute/disks/write",
    "Microsoft.ManagedIdentity/userAssignedIdentities/delete",
    "Microsoft.Network/applicationSecurityGroups/joinIpConfiguration/action",
    "Microsoft.Network/applicationSecurityGroups/joinNetworkSecurityRule/action",
    "Microsoft.Storage/storageAccounts/read",
    # Needed only with an identity that was created beforehand.
    "Microsoft.ManagedIdentity/userAssignedIdentities/read",
}
TOLD_IN_LOG = {"quota"}
"""Steps that only log a warning if an action is denied."""
PREPARED = {"observe", "explain", "remove", "terminate", "gc"}


def permit(azure: AzureControl, without: str = "") -> None:
    azure.enforce({SUBMITTER: sorted(EVERYTHING - {without})})


def reserve() -> None:
    """Create a capacity reservation for two machines in the tester's resource group."""
    compute: Any = Clients(FastClock()).compute
    compute.capacity_reservation_groups.create_or_update("storage", "ours", {"location": REGION})
    body = {"location": REGION, "sku": {"name": node().machine_type, "capacity": 2}}
    compute.capacity_reservations.begin_create_or_update("storage", "ours", "t4", body, polling_interval=0.05).result()


def run(azure: AzureControl, step: str, without: str = "") -> list[str]:
    if step == "reservation":
        reserve()
    if step in PREPARED:
        assert STEPS["launch"][0]() == []
    azure.set_times(operation=0.3 if step == "slow launch" else 0.02)
    permit(azure, without)
    return STEPS[step][0]()


def left(azure: AzureControl) -> list[str]:
    """Return the ids of all resources of launches, and of all role assignments."""
    return [one for one in azure.all_resources() if "cloudgpu" in one or "roleAssignments" in one]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_action_of_the_page_belongs_to_a_step() -> None:
    everything = [action for _, listed in STEPS.values() for action in listed.split()]
    assert len(everything) == len(set(everything))
    assert {*everything} | UNTESTED | SCALE_SETS == EVERYTHING
    assert not {*everything} & (UNTESTED | SCALE_SETS)


def test_roles_that_may_be_given_are_those_that_are(azure: AzureControl) -> None:
    [condition] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    given = {rights.READER, rights.WRITER, rights.SWITCH_OFF}
    for listed in re.findall(r"GuidEquals \{([^}]*)\}", condition):
        assert {one.strip() for one in listed.split(",")} == given
    assert STEPS["launch"][0]() == []
    found = azure.resources("Microsoft.Authorization/roleAssignments")
    assert found
    assert {one["properties"]["roleDefinitionId"].rpartition("/")[2] for one in found} <= given
    assert {one["properties"]["principalType"] for one in found} == {"ServicePrincipal"}


def test_secrets_add_one_role_on_each_and_nothing_else(azure: AzureControl) -> None:
    assert f"({rights.SECRETS})" in PAGE and f"`{rights.NAMES[rights.SECRETS]}`" in PAGE
    azure.add_secret("my-vault", "wandb", "value")
    references = ("azure-keyvault://My-Vault/wandb#user", "azure-keyvault://my-vault/wandb/" + "0" * 32)
    assert _launching(secrets=references[:1])() == []
    [given] = [one for one in scopes(azure) if rights.SECRETS in one[0]]
    assert given[1].endswith("/providers/Microsoft.KeyVault/vaults/My-Vault/secrets/wandb")
    assert len(scopes(azure)) == 3
    assert terminate() == []
    assert left(azure) == []
    [complaint] = _launching(secrets=("azure-keyvault://elsewhere/wandb",))()
    assert "no key vault elsewhere that you may see" in complaint and "azure-permissions.md" in complaint
    [complaint] = _launching(secrets=tuple(f"azure-keyvault://my-vault/s{number}" for number in range(21)))()
    assert "21 secrets of key vaults, a launch can grant 20" in complaint
    assert left(azure) == []


def scopes(azure: AzureControl) -> list[tuple[str, str]]:
    """Return role and scope of each role assignment."""
    found = (one["properties"] for one in azure.resources("Microsoft.Authorization/roleAssignments"))
    return [(one["roleDefinitionId"], one["scope"]) for one in found]


@pytest.mark.parametrize("step", STEPS)
def test_with_the_roles_everything_works(azure: AzureControl, step: str, caplog: pytest.LogCaptureFixture) -> None:
    assert run(azure, step) == []
    assert step not in TOLD_IN_LOG or warnings(caplog) == []
    if step in ("terminate", "gc"):
        assert left(azure) == []


@pytest.mark.parametrize(
    ("step", "action"), [(step, one) for step, (_, listed) in STEPS.items() for one in listed.split()]
)
def test_without_an_action_its_step_names_it(
    azure: AzureControl, step: str, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(azure, step, action)
    found += warnings(caplog) if step in TOLD_IN_LOG else []
    assert found, f"{step} works without {action}: it is too much"
    matching = [one for one in found if action in one]
    assert matching, found
    assert "docs/reference/azure-permissions.md" in matching[0]
    permit(azure)
    assert terminate() == []
    assert left(azure) == []


def test_an_identity_that_was_made_beforehand_needs_no_right_to_give_roles(
    azure: AzureControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(FastClock())
    body: Any = {"location": REGION}
    clients.resources.resource_groups.create_or_update("shared", body)
    made = clients.identities.user_assigned_identities.create_or_update("shared", "machines", body)
    monkeypatch.setenv("CLOUDGPU_AZURE_IDENTITY", str(made.id))
    azure.enforce({SUBMITTER: sorted(LAUNCH)})
    assert STEPS["launch"][0]() == []
    assert terminate() == []
    assert [one for one in left(azure) if "/cloudgpu-" in one or "roleAssignments" in one] == []
    azure.enforce({SUBMITTER: sorted(LAUNCH - {"Microsoft.ManagedIdentity/userAssignedIdentities/read"})})
    [error] = STEPS["launch"][0]()
    assert "Microsoft.ManagedIdentity/userAssignedIdentities/read" in error
