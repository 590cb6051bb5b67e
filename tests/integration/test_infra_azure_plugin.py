"""Azure components as a Pulumi plugin: how programs in other languages use them, over gRPC."""

from __future__ import annotations

from pathlib import Path

import pulumi_azure_native  # the schema is checked against its types
import pytest
import yaml
from pulumi.runtime.proto import provider_pb2

from cloudgpu.tests.standins.pulumi import wire
from cloudgpu.tests.standins.pulumi.mocks import only, served
from cloudgpu.tests.standins.pulumi.plugin import check_schema, commands_of, folder_of, plugin

assert pulumi_azure_native
FOLDER, COMMANDS = folder_of("azure"), commands_of("azure")
SUBSCRIPTION = "00000000-0000-0000-0000-00000000000a"
REQUIRED = {
    "GpuCluster": ["image", "machineType", "region", "subscription", "userData"],
    "GpuFleet": ["image", "machineRole", "machineType", "region", "subnet", "subscription", "userData"],
    "GpuNetwork": ["region"],
    "JobBucket": ["region", "subscription"],
    "MachineRole": ["container", "region", "resourceGroup", "subscription"],
    "OrphanReaper": ["region", "resourceGroup", "subscription"],
}
OUTPUTS = {
    "GpuCluster": {"group", "resourceGroup", "identityClientId", "containerId", "jobDir", "templateHash"},
    "GpuFleet": {"group", "resourceGroup", "templateHash"},
    "GpuNetwork": {"resourceGroup", "networkId", "subnetId"},
    "JobBucket": {"account", "container", "containerId", "jobDir"},
    "MachineRole": {"identityId", "clientId", "principalId"},
    "OrphanReaper": {"workflowId"},
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_schema_is_that_of_the_components(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_schema("azure", command, REQUIRED, OUTPUTS)


def test_a_network_is_constructed_for_a_program_in_another_language() -> None:
    inputs = {"region": "eastus", "nat": True, "owner": "cloudgpu-vision", "tags": {"team": "vision"}}
    with served() as (engine, registered), plugin(COMMANDS["as a module"], engine) as stub:
        request = provider_pb2.ConstructRequest(
            project="cloudgpu",
            stack="test",
            monitorEndpoint=engine,
            type="cloudgpu-azure:index:GpuNetwork",
            name="net",
            inputs=wire.to_struct(inputs),
        )
        made = stub.Construct(request, timeout=180)
    assert made.urn == only(registered, "cloudgpu-azure:index:GpuNetwork").urn
    assert wire.plain(wire.from_struct(made.state))["subnetId"] == "net-subnet-id"
    gateway = only(registered, "azure-native:network:NatGateway")
    assert gateway.inputs["tags"] == {
        "cloudgpu-owner": "cloudgpu-vision",
        "cloudgpu-stack": "test",
        "team": "vision",
    }


def test_the_files_that_pulumi_package_add_needs_exist() -> None:
    runtime = yaml.safe_load((FOLDER / "PulumiPlugin.yaml").read_text())["runtime"]
    assert runtime["name"] == "python"
    assert (FOLDER / "requirements.txt").read_text().splitlines()[-1] == "../..[infra-azure]"
