"""Conversion of a cloud's API fields to Pulumi's arguments, tested with the SDK's real classes."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws
import pytest
from pulumi._types import input_type_to_dict

from cloudgpu.infra.pulumi_arguments import WireError, keywords

LAUNCH = aws.ec2.LaunchTemplateArgs
GROUPS = {"NetworkInterfaces.Groups": "security_groups"}


def plain(value: Any) -> Any:
    """Convert Pulumi's objects to their wire format."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if hasattr(type(value), "_pulumi_input_type"):
        return {key: plain(one) for key, one in input_type_to_dict(value).items()}
    return value


def test_names_and_spellings_are_the_class_s() -> None:
    wire = {
        "ImageId": "ami-1",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "NetworkInterfaces": [
            {"DeviceIndex": 0, "NetworkCardIndex": 1, "DeleteOnTermination": True, "Groups": ["sg-1"]}
        ],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
    }
    found = keywords(LAUNCH, wire, GROUPS)
    assert set(found) == {"image_id", "metadata_options", "network_interfaces", "tag_specifications"}
    assert isinstance(found["metadata_options"], aws.ec2.LaunchTemplateMetadataOptionsArgs)
    assert {name: plain(one) for name, one in found.items()} == {
        "image_id": "ami-1",
        "metadata_options": {"httpTokens": "required", "httpPutResponseHopLimit": 1},
        "network_interfaces": [
            {"deviceIndex": 0, "networkCardIndex": 1, "deleteOnTermination": "true", "securityGroups": ["sg-1"]}
        ],
        "tag_specifications": [{"resourceType": "instance", "tags": {"a": "b"}}],
    }


def test_texts_that_are_numbers_become_numbers() -> None:
    """Google's JSON has 64-bit numbers as strings."""
    assert keywords(aws.ec2.LaunchTemplateNetworkInterfaceArgs, {"deviceIndex": "7"}) == {"device_index": 7}


def test_a_field_may_belong_to_its_parent() -> None:
    wire = {"properties": {"imageId": "ami-1", "placement": {"groupName": "near"}}}
    found = keywords(LAUNCH, wire, {"properties": "", "properties.placement.groupName": "group_name"})
    assert {name: plain(one) for name, one in found.items()} == {
        "image_id": "ami-1",
        "placement": {"groupName": "near"},
    }


def test_outputs_pass_as_they_are() -> None:
    image = pulumi.Output.from_input("ami-1")
    assert keywords(LAUNCH, {"ImageId": image})["image_id"] is image


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ({"Imageid": "ami-1"}, r"^Imageid: LaunchTemplateArgs has no such field; it has .*image_id"),
        ({"MetadataOptions": {"HttpToken": "required"}}, r"^MetadataOptions\.HttpToken: .* no such field"),
        ({"NetworkInterfaces": [{"Groups": ["sg-1"]}]}, r"^NetworkInterfaces\.Groups: .* no such field"),
        ({"MetadataOptions": [{"HttpTokens": "required"}]}, r"^MetadataOptions: LaunchTemplateMetadataOptionsArgs is "),
        ({"NetworkInterfaces": {"DeviceIndex": 0}}, r"^NetworkInterfaces: .* is wanted, and this is an object"),
        ({"NetworkInterfaces": [{"DeviceIndex": "one"}]}, r"^NetworkInterfaces\.DeviceIndex: int .* str 'one'"),
        ({"NetworkInterfaces": [{"DeviceIndex": True}]}, r"^NetworkInterfaces\.DeviceIndex: int .* bool True"),
        ({"ImageId": 1.5}, r"^ImageId: str is wanted, and this is float 1\.5"),
        ({"ImageId": None}, r"^ImageId: str is wanted, and this is NoneType None"),
        ({"ImageId": "ami-1", "imageId": "ami-2"}, r"^imageId: image_id is there twice"),
    ],
)
def test_what_a_class_does_not_take_is_named(wire: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message):
        keywords(LAUNCH, wire)


def test_what_a_nested_type_requires_and_lacks_is_named() -> None:
    args = aws.autoscaling.GroupArgs
    with pytest.raises(WireError, match=r"^InstanceRefresh: .*strategy"):
        keywords(args, {"InstanceRefresh": {"Triggers": ["tag"]}})


def test_only_classes_of_arguments_are_taken() -> None:
    with pytest.raises(TypeError, match="no class of Pulumi arguments"):
        keywords(aws.ec2.LaunchTemplate, {"ImageId": "ami-1"})
