"""Google Cloud components as a Pulumi plugin: how programs in other languages use them, over gRPC."""

from __future__ import annotations

from pathlib import Path

import pulumi_gcp  # the schema is checked against its types
import pytest
import yaml
from pulumi.runtime.proto import provider_pb2

from cloudgpu.tests.standins.pulumi import wire
from cloudgpu.tests.standins.pulumi.gcp import instance_properties
from cloudgpu.tests.standins.pulumi.mocks import only, served
from cloudgpu.tests.standins.pulumi.plugin import check_schema, commands_of, folder_of, plugin

assert pulumi_gcp
FOLDER, COMMANDS = folder_of("gcp"), commands_of("gcp")
REQUIRED = {
    "GpuCluster": ["image", "machineType", "project", "region", "size", "userData"],
    "GpuFleet": ["image", "machineType", "network", "region", "serviceAccount", "subnetwork", "userData"],
    "GpuNetwork": ["region"],
    "JobBucket": ["region"],
    "MachineRole": ["accountId", "bucket", "project"],
    "OrphanReaper": ["accountId", "project", "region"],
}
OUTPUTS = {
    "GpuCluster": {"group", "jobDir", "serviceAccount"},
    "GpuFleet": {"template", "group", "baseGroup"},
    "GpuNetwork": {"network", "networkLink", "subnetwork"},
    "JobBucket": {"bucket", "jobDir"},
    "MachineRole": {"email"},
    "OrphanReaper": {"workflow"},
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_schema_is_that_of_the_components(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_schema("gcp", command, REQUIRED, OUTPUTS)


def test_a_cluster_is_constructed_for_a_program_in_another_language() -> None:
    """Programs in other languages send numbers as floats."""
    inputs = {
        "project": "p-1",
        "region": "us-central1",
        "machineType": "g2-standard-8",
        "accelerator": "L4",
        "gpus": "1",
        "size": 2.0,
        "lifetimeSeconds": 3_600.0,
        "bucket": "my-bucket",
        "image": "projects/d/global/images/i-1",
        "userData": "#!/bin/sh\n",
        "labels": {"team": "vision"},
        "expires": 2_000_000_000.0,
    }
    with served() as (engine, registered), plugin(COMMANDS["as a module"], engine) as stub:
        request = provider_pb2.ConstructRequest(
            project="cloudgpu",
            stack="test",
            monitorEndpoint=engine,
            type="cloudgpu-gcp:index:GpuCluster",
            name="big",
            inputs=wire.to_struct(inputs),
        )
        made = stub.Construct(request, timeout=180)
    assert made.urn == only(registered, "cloudgpu-gcp:index:GpuCluster").urn
    assert wire.plain(wire.from_struct(made.state))["jobDir"] == "gs://my-bucket/jobs"
    group = only(registered, "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager")
    assert group.inputs["targetSize"] == 2
    properties = instance_properties(only(registered, "gcp:compute/instanceTemplate:InstanceTemplate").inputs)
    assert properties["scheduling"]["maxRunDuration"] == {"seconds": 4_200}
    assert properties["labels"]["team"] == "vision" and properties["labels"]["cloudgpu-stack"] == "test"
    assert "cloudgpu-expires" not in properties["labels"], "another time would replace the machines"
    assert group.inputs["namedPorts"] == [{"name": "cloudgpu-expires-2000000000", "port": 1}]


def test_the_plugin_files_name_the_runtime_and_the_package() -> None:
    plugin_file = yaml.safe_load((FOLDER / "PulumiPlugin.yaml").read_text())
    assert plugin_file["runtime"]["name"] == "python"
    requirement = (FOLDER / "requirements.txt").read_text().splitlines()[-1]
    assert (FOLDER / requirement.partition("[")[0] / "pyproject.toml").is_file()
