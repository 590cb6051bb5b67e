"""Launches where an infra stack is known: its subnet and its machines' identity are used; no role is given."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.azure import SUBSCRIPTION, Azure, AzureControl
from cloudgpu.tests.standins.azure.stacks import create_stack, put_network
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.pulumi.azure import Cloud

REGION, ACCOUNT = "eastus", "jobsoftests"
JOBS = f"az://jobs@{ACCOUNT}/jobs"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/standing-{REGION}"
NETWORK = f"{GROUP}/providers/Microsoft.Network/virtualNetworks/cloudgpu"
ROLE = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/cloudgpu"
GATEWAY = f"{GROUP}/providers/Microsoft.Network/natGateways/cloudgpu"


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure() as azure:
        yield azure


@pytest.fixture
def azure(server: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AzureControl:
    server.control.reset()
    server.control.add_storage(ACCOUNT)
    for name, value in {**server.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return server.control


@pytest.fixture
def stack(azure: AzureControl) -> Infrastructure:
    return create_stack(azure, REGION, JOBS)


def launched(**changes: Any) -> tuple[AzureProvisioner, Any]:
    request = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef" * 2,
        owner=Owner("cloudgpu-tester"),
        job_dir=f"{JOBS}/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market="on-demand",
        disk_gb=100.0,
        nodes=(NodeRequest("worker-0.1", "worker", 0, 0, "Standard_NC4as_T4_v3", "T4", Fraction(1)),),
        lifetime_s=3_600,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    provisioner = AzureProvisioner(FastClock())
    return provisioner, provisioner.launch(dataclasses.replace(request, **changes))


def ids_of(azure: AzureControl, kind: str) -> set[str]:
    return {str(one["id"]) for one in azure.resources(kind)}


def test_the_stack_s_subnet_and_identity_are_used_and_stay(azure: AzureControl, stack: Infrastructure) -> None:
    before = set(azure.all_resources())
    provisioner, allocation = launched()
    [machine] = [one for one in azure.instances() if one.status == "running"]
    assert machine.identities == [ROLE] and machine.external and machine.open == []
    assert ids_of(azure, "Microsoft.Network/virtualNetworks") == {NETWORK}
    assert ids_of(azure, "Microsoft.ManagedIdentity/userAssignedIdentities") == {ROLE}
    assert not azure.calls("roleAssignments.*"), "nobody is given a role, and none is looked for"
    provisioner.terminate(allocation)
    assert set(azure.all_resources()) == before


def test_machines_go_out_by_the_gateway_where_there_is_one(azure: AzureControl, stack: Infrastructure) -> None:
    cloud = Cloud()
    cloud.put(GATEWAY, "2024-05-01", {"location": REGION, "sku": {"name": "Standard"}, "properties": {}})
    put_network(cloud, NETWORK, REGION, natGateway={"id": GATEWAY})
    launched()
    [machine] = [one for one in azure.instances() if one.status == "running"]
    assert not machine.external
    assert ids_of(azure, "Microsoft.Network/publicIPAddresses") == set()


@pytest.mark.parametrize(
    "elsewhere",
    [{"job_dir": f"az://jobs@{ACCOUNT}/other/digits-abc"}, {"reads": (f"az://data@{ACCOUNT}/images",)}],
    ids=["job dir", "inputs"],
)
def test_what_the_stack_s_identity_does_not_reach_has_one_of_its_own(
    azure: AzureControl, stack: Infrastructure, elsewhere: dict[str, Any]
) -> None:
    before = ids_of(azure, "Microsoft.Authorization/roleAssignments")
    provisioner, allocation = launched(**elsewhere)
    [machine] = [one for one in azure.instances() if one.status == "running"]
    assert machine.identities != [ROLE] and len(machine.identities) == 1
    assert ids_of(azure, "Microsoft.Network/virtualNetworks") == {NETWORK}, "the subnet is used all the same"
    assert ids_of(azure, "Microsoft.Authorization/roleAssignments") > before
    provisioner.terminate(allocation)
    assert ids_of(azure, "Microsoft.Authorization/roleAssignments") == before


def test_a_machine_that_is_added_is_who_the_others_are(azure: AzureControl, stack: Infrastructure) -> None:
    launched()
    infra_outputs.forget("azure", REGION)
    second = NodeRequest("worker-0.2", "worker", 0, 0, "Standard_NC4as_T4_v3", "T4", Fraction(1))
    provisioner, allocation = launched(nodes=(second,))
    assert {tuple(one.identities) for one in azure.instances()} == {(ROLE,)}
    provisioner.terminate(allocation)
    assert not azure.calls("roleAssignments.write")


def test_a_stack_that_is_gone_is_told_with_what_to_do(azure: AzureControl) -> None:
    gone = Infrastructure("azure", REGION, "infra-azure", "o", NETWORK, {"": f"{NETWORK}/subnets/machines"})
    infra_outputs.save(gone)
    with pytest.raises(ProvisionError, match=r"stack infra-azure: there is no subnet .*cloudgpu infra up") as refused:
        launched()
    assert (refused.value.error_class, refused.value.code) == ("invalid", "NoSubnet")
    deadline = time.monotonic() + 180.0  # the group is being deleted, and nobody waits for it
    while any("/cloudgpu-" in one for one in azure.all_resources()):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.05)
    infra_outputs.path_of("azure", REGION).write_text("{")
    with pytest.raises(ProvisionError, match="infra status"):
        launched()
