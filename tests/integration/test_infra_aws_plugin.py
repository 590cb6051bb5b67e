"""AWS components as a Pulumi plugin: how programs in TypeScript or Go use them, over gRPC."""

from __future__ import annotations

from pathlib import Path

import grpc
import pulumi_aws  # the schema is checked against its types
import pytest
import yaml
from pulumi.runtime.proto import provider_pb2

from cloudgpu.tests.standins.pulumi import wire
from cloudgpu.tests.standins.pulumi.mocks import only, served
from cloudgpu.tests.standins.pulumi.plugin import check_schema, commands_of, folder_of, plugin

assert pulumi_aws
FOLDER, COMMANDS = folder_of("aws"), commands_of("aws")
REQUIRED = {
    "GpuCluster": ["machineType", "size"],
    "GpuFleet": ["machineType", "networkId", "profileArn", "size", "subnets"],
    "GpuNetwork": [],
    "JobBucket": [],
    "MachineRole": ["jobDir"],
    "OrphanReaper": [],
}
OUTPUTS = {
    "GpuCluster": {"group", "jobDir", "networkId", "subnets", "profileArn"},
    "GpuFleet": {"group", "templateId", "templateVersion", "securityGroupId"},
    "GpuNetwork": {"networkId", "subnets"},
    "JobBucket": {"bucket", "jobDir"},
    "MachineRole": {"profileArn", "roleName"},
    "OrphanReaper": {"functionName"},
}
INVOKES = {
    "aws:ec2/getAmi:getAmi": lambda arguments: {
        "id": arguments["filters"][0]["values"][0],
        "rootDeviceName": "/dev/sda1",
        "blockDeviceMappings": [],
    },
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_schema_is_that_of_the_components(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_schema("aws", command, REQUIRED, OUTPUTS)


def test_a_fleet_is_constructed_for_a_program_in_another_language() -> None:
    """Programs in other languages send numbers as floats, and read outputs of the component once they are known."""
    inputs = {
        "machineType": "g6.xlarge",
        "size": 2.0,
        "onDemand": 1.0,
        "market": "spot",
        "networkId": "vpc-1",
        "subnets": {"use1-az1": "subnet-1"},
        "profileArn": "arn:aws:iam::1:instance-profile/machines",
        "image": "ami-1",
    }
    with served(invokes=INVOKES) as (engine, registered), plugin(COMMANDS["as a module"], engine) as stub:
        request = provider_pb2.ConstructRequest(
            project="cloudgpu",
            stack="test",
            monitorEndpoint=engine,
            type="cloudgpu-aws:index:GpuFleet",
            name="big",
            inputs=wire.to_struct(inputs),
        )
        made = stub.Construct(request, timeout=180)
    component = only(registered, "cloudgpu-aws:index:GpuFleet")
    assert made.urn == component.urn
    state = wire.plain(wire.from_struct(made.state))
    assert state["group"] == "big-group-name" and state["templateVersion"] == "1"
    group = only(registered, "aws:autoscaling/group:Group").inputs
    assert (group["desiredCapacity"], group["maxSize"]) == (2, 2)
    assert group["mixedInstancesPolicy"]["instancesDistribution"]["onDemandBaseCapacity"] == 1
    assert only(registered, "aws:ec2/launchTemplate:LaunchTemplate").inputs["imageId"] == "ami-1"


def test_invalid_inputs_are_reported() -> None:
    inputs = {
        "machineType": "p5.48xlarge",
        "size": 2.0,
        "peers": True,
        "networkId": "v",
        "subnets": {},
        "profileArn": "a",
    }
    with served(invokes=INVOKES) as (engine, _), plugin(COMMANDS["as a module"], engine) as stub:
        request = provider_pb2.ConstructRequest(
            project="cloudgpu",
            stack="test",
            monitorEndpoint=engine,
            type="cloudgpu-aws:index:GpuFleet",
            name="big",
            inputs=wire.to_struct(inputs),
        )
        with pytest.raises(grpc.RpcError, match="name one zone"):
            stub.Construct(request, timeout=180)


def test_the_plugin_s_files_are_as_pulumi_wants_them() -> None:
    plugin_file = yaml.safe_load((FOLDER / "PulumiPlugin.yaml").read_text())
    assert plugin_file["runtime"]["name"] == "python"
    requirements = [line for line in (FOLDER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert requirements == ["../..[infra-aws]"]
    assert (FOLDER / "../.." / "pyproject.toml").resolve().is_file()
