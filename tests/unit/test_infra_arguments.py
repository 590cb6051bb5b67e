"""Arguments of components: an invalid one gives an error of one sentence at preview, on every cloud."""

from __future__ import annotations

import importlib
from typing import Any

import pulumi
import pytest

from cloudgpu.infra.arguments import ArgumentError
from cloudgpu.tests.standins.pulumi.mocks import only, run_strict
from cloudgpu.tests.unit.test_infra_docs import AWS_INVOKES

AZURE_INVOKES: dict[str, Any] = {
    "azure-native:managedidentity:getUserAssignedIdentity": lambda _: {"principalId": "p", "id": "i"}
}
_GOOGLE = {
    "region": "us-central1",
    "machine_type": "g2-standard-4",
    "accelerator": "L4",
    "size": 1,
    "image": "projects/p/global/images/i",
    "user_data": "#!/bin/sh\n",
    "network": "n",
    "subnetwork": "s",
    "service_account": "a@b",
}
FLEETS: dict[str, dict[str, Any]] = {
    "aws": {
        "machine_type": "g6.xlarge",
        "size": 1,
        "network_id": "vpc-1",
        "subnets": {"use1-az1": "subnet-1"},
        "profile_arn": "arn:aws:iam::1:instance-profile/p",
    },
    "gcp": _GOOGLE,
    "azure": {
        "region": "eastus",
        "machine_type": "Standard_NC24ads_A100_v4",
        "accelerator": "A100-80GB",
        "gpus": "1",
        "image": "microsoft-dsvm:ubuntu-hpc:2404:24.04.2025050701",
        "user_data": "#cloud-config\n",
        "subscription": "s",
        "subnet": "/subnets/s",
        "machine_role": "/subscriptions/s/resourceGroups/g/providers/m/userAssignedIdentities/i",
    },
}


def fleet(cloud: str, name: str = "lab", **changes: Any) -> list[Any]:
    component = importlib.import_module(f"cloudgpu.infra.{cloud}").GpuFleet
    args = {key: value for key, value in {**FLEETS[cloud], **changes}.items() if value is not ...}
    return run_strict(lambda: component(name, args), invokes={**AWS_INVOKES, **AZURE_INVOKES})


@pytest.mark.parametrize("cloud", FLEETS)
def test_the_fleets_of_this_file_are_good(cloud: str) -> None:
    assert fleet(cloud)


@pytest.mark.parametrize("cloud", FLEETS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markt": "spot"}, r"unknown argument 'markt'; did you mean market\?"),
        ({"expire": 1}, r"unknown argument 'expire'; did you mean expires\?"),
        ({"protct": False}, "unknown argument 'protct'"),
        ({"machine_type": ...}, "machine_type missing"),
        ({"machine_type": None}, "machine_type: expected a text, .* not None"),
        ({"market": "spott"}, r"market: 'spott': input should be 'on-demand', .*; did you mean spot\?"),
        ({"market": True}, "market: expected a text, known before the program runs, not True"),
        ({"zones": "use1-az1"}, "zones: expected a list"),
        ({"peers": "yes"}, "peers: expected true or false"),
        ({"size": "two"}, "size: expected a whole number"),
        ({"size": 1.5}, "size: expected a whole number"),
        ({"expires": "never"}, "expires: expected a number"),
        ({"owner": "ml-team"}, "owner: 'ml-team' must begin with cloudgpu-.* write cloudgpu-ml-team"),
        ({"fleet_name": "My Lab!"}, "fleet_name: 'My Lab!' must be lower-case letters"),
        ({"disk_gb": -1}, "disk_gb: -1: input should be greater than 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(cloud: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        fleet(cloud, **changes)
    text = str(caught.value)
    assert text.startswith("GpuFleet 'lab': ") and "\n" not in text and "pydantic" not in text


@pytest.mark.parametrize(
    ("cloud", "machine_type"), [("aws", "g6.xxlarge"), ("gcp", "g2-standard-5"), ("azure", "Standard_NC24ads_A100_v5")]
)
def test_a_machine_type_that_its_family_lacks_is_refused_with_a_suggestion(cloud: str, machine_type: str) -> None:
    with pytest.raises(ArgumentError, match=f"machine_type: {cloud} has no {machine_type}; did you mean"):
        fleet(cloud, machine_type=machine_type)


@pytest.mark.parametrize(("cloud", "size"), [("aws", 16_385), ("gcp", 262_145), ("azure", 65_536)])
def test_user_data_that_no_machine_can_have_is_refused(cloud: str, size: int) -> None:
    with pytest.raises(Exception, match=f"user_data: {size:,} bytes, of which a machine can have"):
        fleet(cloud, user_data="x" * size)


@pytest.mark.parametrize("cloud", FLEETS)
@pytest.mark.parametrize("key", ["cloudgpu-expires", "cloudgpu-owner", "Cloudgpu-Stack"])
def test_a_user_s_tags_cannot_replace_cloudgpu_s_own(cloud: str, key: str) -> None:
    tags = "labels" if cloud == "gcp" else "tags"
    given: dict[str, Any] = {tags: {key: "never"}, "expires": 1000}
    with pytest.raises(ArgumentError, match=f"{tags}: {key} is cloudgpu's own; set owner and expires"):
        fleet(cloud, **given)


@pytest.mark.parametrize("name", ["My Lab!", "1st", "", "a" * 64])
def test_a_component_s_name_is_a_part_of_names_in_the_cloud(name: str) -> None:
    with pytest.raises(ArgumentError, match="the name must be letters, digits"):
        fleet("aws", name)


def test_an_output_is_taken_where_an_input_is_and_nowhere_else() -> None:
    with pytest.raises(ArgumentError, match="market: expected a text, known before the program runs, not an output"):
        run_strict(lambda: _made(market=pulumi.Output.from_input("spot")), invokes=AWS_INVOKES)
    assert run_strict(lambda: _made(size=pulumi.Output.from_input(2)), invokes=AWS_INVOKES)


def _made(**changes: Any) -> None:
    from cloudgpu.infra.aws import GpuFleet

    GpuFleet("lab", {**FLEETS["aws"], **changes})  # type: ignore[typeddict-item]


def test_settings_that_are_absent_are_as_omitted() -> None:
    """`config.get("image")` returns None for a missing setting."""
    assert fleet("aws", image=None, user_data=None, market=None, tags=None)


def test_other_languages_give_whole_numbers_as_floats() -> None:
    group = only(fleet("aws", size=2.0), "aws:autoscaling/group:Group")
    assert group.inputs["desiredCapacity"] == 2


@pytest.mark.parametrize("component", ["GpuNetwork", "JobBucket", "OrphanReaper", "MachineRole", "GpuCluster"])
@pytest.mark.parametrize("cloud", FLEETS)
def test_every_component_refuses_what_it_does_not_know(cloud: str, component: str) -> None:
    kind = getattr(importlib.import_module(f"cloudgpu.infra.{cloud}"), component)
    with pytest.raises(ArgumentError, match=f"{component} 'lab': unknown argument 'protct'"):
        run_strict(lambda: kind("lab", {"protct": False}), invokes={**AWS_INVOKES, **AZURE_INVOKES})
