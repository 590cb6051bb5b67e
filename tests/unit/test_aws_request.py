"""Conversion of a launch request to RunInstances parameters; selection of the image and the network cards."""

from __future__ import annotations

import dataclasses
import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import botocore
import pytest
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from cloudgpu.jobspecs import catalog
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError, node_token
from cloudgpu.provisioners.aws.machine.images import Image, architecture_of, parameter_for
from cloudgpu.provisioners.aws.machine.request import Place, check_request, run_instances, wants_efa
from cloudgpu.provisioners.aws.machine.reservations import Reservation
from cloudgpu.provisioners.aws.resources.identity import machine_policy
from cloudgpu.provisioners.aws.resources.network import Subnet, efa_cards

IMAGE = Image("ami-0123456789abcdef0", "/dev/sda1", 45)
PUBLIC = Subnet("subnet-a", "vpc-a", "use1-az1", "us-east-1a", public=True, free=4_000)
PRIVATE = PUBLIC._replace(public=False)
EC2: Any = json.loads(
    gzip.decompress((Path(botocore.__file__).parent / "data/ec2/2016-11-15/service-2.json.gz").read_bytes())
)


def node(machine_type: str, index: int = 0) -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, "T4", Fraction(1))


def request(*machine_types: str, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=3,
        token="0123456789abcdef0123456789abcdef",
        owner=Owner("cloudgpu-tester"),
        job_dir="s3://bucket/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-east-1",
        zone="use1-az1",
        market="on-demand",
        disk_gb=100.5,
        nodes=tuple(node(machine_type, index) for index, machine_type in enumerate(machine_types)),
        lifetime_s=3_600,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def parameters(asked: LaunchRequest, subnet: Subnet = PUBLIC, **place: Any) -> dict[str, Any]:
    there = Place(**({"subnet": subnet, "group": "sg-1", "profile_arn": "arn:p", "reservations": {}} | place))
    found = run_instances(asked, asked.nodes[0], there, IMAGE, "t" * 32)
    shape = ServiceModel(EC2).operation_model("RunInstances").input_shape
    assert shape is not None
    report = ParamValidator().validate(found, shape)
    assert not report.has_errors(), report.generate_report()
    return found


def test_one_machine() -> None:
    found = parameters(request("g4dn.xlarge"))
    assert (found["MinCount"], found["MaxCount"], found["ClientToken"]) == (1, 1, "t" * 32)
    assert found["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }
    assert found["InstanceInitiatedShutdownBehavior"] == "terminate"
    [disk] = found["BlockDeviceMappings"]
    assert disk["Ebs"] == {"VolumeType": "gp3", "VolumeSize": 101, "Encrypted": True, "DeleteOnTermination": True}
    assert "InstanceMarketOptions" not in found and "Placement" not in found
    [interface] = found["NetworkInterfaces"]
    assert (
        "InterfaceType" not in interface and interface["AssociatePublicIpAddress"] and interface["Groups"] == ["sg-1"]
    )
    assert found["UserData"].startswith("#cloud-config\n") and len(found["UserData"]) <= 16_384


def test_the_disk_is_no_smaller_than_the_images() -> None:
    [disk] = parameters(request("g4dn.xlarge", disk_gb=10))["BlockDeviceMappings"]
    assert disk["Ebs"]["VolumeSize"] == 45


def test_without_an_end_there_is_no_tag_of_one() -> None:
    found = parameters(request("g4dn.xlarge"))
    assert all(tag["Key"] != "cloudgpu-expires" for one in found["TagSpecifications"] for tag in one["Tags"])
    kinds = [one["ResourceType"] for one in parameters(request("g4dn.xlarge", market="spot"))["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface", "spot-instances-request"]


def test_spot_has_no_maximum_price_and_ends_when_taken() -> None:
    options = parameters(request("g4dn.xlarge", market="spot"))["InstanceMarketOptions"]
    assert options == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }


def test_a_capacity_block_has_a_market_of_its_own_and_the_machine_knows_its_end() -> None:
    block = {"p5.48xlarge": Reservation("cr-1", is_block=True, end=1_800_000_000.0)}
    found = parameters(request("p5.48xlarge", market="reservation"), reservations=block)
    assert found["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = found["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-1"}
    assert "1800000000.0" in found["UserData"]


def test_an_ordinary_reservation_is_on_demand() -> None:
    ordinary = {"p5.48xlarge": Reservation("cr-1", is_block=False, end=None)}
    found = parameters(request("p5.48xlarge", market="reservation"), reservations=ordinary)
    assert "InstanceMarketOptions" not in found and "CapacityReservationSpecification" in found


@pytest.mark.parametrize(
    ("machine_type", "cards"),
    [("p4d.24xlarge", range(4)), ("p5.48xlarge", range(32)), ("p6-b300.48xlarge", range(1, 17))],
)
def test_in_a_private_subnet_every_card_has_its_adapter(machine_type: str, cards: range) -> None:
    found = parameters(request(machine_type, machine_type), PRIVATE, placement_group="pg")
    first, *others = found["NetworkInterfaces"]
    assert (first["NetworkCardIndex"], first["DeviceIndex"], first["InterfaceType"]) == (0, 0, "interface")
    assert [one["NetworkCardIndex"] for one in others] == list(cards)
    assert {one["InterfaceType"] for one in others} == {"efa-only"}
    assert not any("AssociatePublicIpAddress" in one for one in others)
    places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in found["NetworkInterfaces"]]
    assert len(set(places)) == len(places)
    assert found["Placement"] == {"GroupName": "pg"}


def test_in_a_public_subnet_there_is_one_adapter_for_there_is_no_address_with_more() -> None:
    [only] = parameters(request("p4d.24xlarge", "p4d.24xlarge"))["NetworkInterfaces"]
    assert only["InterfaceType"] == "efa" and only["AssociatePublicIpAddress"]


def test_a_machine_alone_needs_no_adapter_nor_one_among_others_without() -> None:
    assert not wants_efa(request("p4d.24xlarge").nodes)
    assert not wants_efa(request("p4d.24xlarge", "g4dn.xlarge").nodes)
    assert "InterfaceType" not in parameters(request("p4d.24xlarge"))["NetworkInterfaces"][0]


def test_every_type_that_can_be_planned_has_an_image_or_a_reason() -> None:
    for name, [machine, *_] in catalog.machine_types("aws").items():
        if machine.status == "retired":
            continue
        try:
            assert parameter_for(name).startswith("/aws/service/")
        except ProvisionError as error:
            assert error.error_class == "invalid" and f"{name} cannot be launched: " in str(error)
        assert (efa_cards(name).stop or 1) > 0


@pytest.mark.parametrize(
    ("machine_type", "part"),
    [
        ("g4dn.xlarge", "deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04"),
        ("g5g.xlarge", "deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-24.04"),
        ("trn1.2xlarge", "neuron"),
        ("m7i.large", "ubuntu/server/24.04/stable/current/amd64"),
        ("m7g.large", "ubuntu/server/24.04/stable/current/arm64"),
        ("c8gd.large", "ubuntu/server/24.04/stable/current/arm64"),
    ],
)
def test_images(machine_type: str, part: str) -> None:
    assert part in parameter_for(machine_type)


@pytest.mark.parametrize(
    ("machine_type", "architecture"),
    [
        ("t4g.nano", "arm64"),
        ("a1.medium", "arm64"),
        ("m7a.large", "x86_64"),
        ("c6gn.large", "arm64"),
        ("g6.xlarge", "x86_64"),
    ],
)
def test_architecture_by_name(machine_type: str, architecture: str) -> None:
    assert architecture_of(machine_type) == architecture


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"market": "flex-start"}, "no market flex-start"),
        ({"agent": None}, "no agent file"),
        ({"agent": AgentFile("k", "s", "arm64")}, "g4dn.xlarge is x86_64"),
    ],
)
def test_what_cannot_be_launched_is_said_before_anything_is_done(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProvisionError, match=says) as caught:
        check_request(request("g4dn.xlarge", **changes))
    assert caught.value.error_class == "invalid"


@pytest.mark.parametrize("url", ["gs://bucket/x", "file:///tmp/x", "s3://", "s3://bucket/a*/b"])
def test_a_place_that_a_role_cannot_be_limited_to(url: str) -> None:
    with pytest.raises(ProvisionError) as caught:
        machine_policy(request("g4dn.xlarge", job_dir=url), "aws")
    assert caught.value.error_class == "invalid" and url in str(caught.value)


def test_client_tokens_are_what_ec2_takes_and_differ_by_node_group_and_zone() -> None:
    tokens = {
        node_token("t", node, group, zone) for node in ("w-0.1", "w-0.2") for group in ("sg-1", "sg-2") for zone in "ab"
    }
    assert len(tokens) == 8
    assert all(len(token) <= 64 and token.isascii() for token in tokens)
