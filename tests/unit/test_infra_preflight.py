"""Checks before a stack is brought up or down."""

from __future__ import annotations

import csv
import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest
from pulumi.runtime.settings import get_root_resource

import cloudgpu
from cloudgpu.infra import programs
from cloudgpu.infra.engine.events import Change
from cloudgpu.infra.errors import InfraError
from cloudgpu.infra.preflight import check_down, check_up, price_of
from cloudgpu.infra.settings import FleetSettings, InfraSettings, read_output
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.pulumi.mocks import run_strict

GROUP, VPC, BUCKET = "aws:autoscaling/group:Group", "aws:ec2/vpc:Vpc", "aws:s3/bucket:Bucket"


def codes(report: object) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in report.findings]  # type: ignore[attr-defined]


def test_making_things_is_fine() -> None:
    report = check_up([Change("create", VPC, "vpc"), Change("same", BUCKET, "bucket")])
    assert (codes(report), report.changes_anything) == ([], True)
    assert report.to_json()["counts"] == {"create": 1}
    assert report.to_json()["unchanged"] == 1


def test_nothing_to_do_changes_nothing() -> None:
    assert not check_up([Change("same", VPC, "vpc")]).changes_anything


@pytest.mark.parametrize("op", ["delete", "replace"])
def test_up_never_deletes_what_holds_checkpoints(op: str) -> None:
    report = check_up([Change(op, BUCKET, "bucket", ("region",))])  # type: ignore[arg-type]
    assert codes(report) == [("protected", "refused")]
    assert codes(check_up([Change(op, VPC, "vpc", protected=True)])) == [("protected", "refused")]  # type: ignore[arg-type]


def test_resources_to_be_destroyed_are_reported() -> None:
    report = check_up([Change("replace", VPC, "vpc", ("cidrBlock",)), Change("delete", VPC, "old")])
    assert codes(report) == [("destroyed", "warning")] * 2
    assert any("cidrBlock" in finding.message for finding in report.findings)


def test_the_price_of_machines_is_held_to_the_cap() -> None:
    group = [Change("create", GROUP, "group"), Change("create", VPC, "vpc")]
    assert check_up(group, machines=Decimal("7.5")).to_json()["price_usd_h"] == "7.5"
    assert codes(check_up(group, machines=Decimal("7.5"), cap=Decimal("7.5"))) == []
    assert codes(check_up(group, machines=Decimal("7.51"), cap=Decimal("7.5"))) == [("price-cap", "refused")]


def test_an_unknown_price_cannot_be_held_to_a_cap() -> None:
    group = [Change("create", GROUP, "group")]
    assert check_up(group, machines=None).to_json()["price_usd_h"] is None
    assert codes(check_up(group, machines=None, cap=Decimal(5))) == [("price-cap", "refused")]


def test_a_kind_that_the_table_lacks_is_not_free() -> None:
    price = price_of([VPC, "aws:new/thing:Thing"], Decimal(0))
    assert price.usd_h is None
    assert price.notes == ("price unknown: Thing",)


def test_what_bills_by_the_hour_and_by_use() -> None:
    price = price_of([VPC, "aws:ec2/natGateway:NatGateway", "aws:ec2/eip:Eip", BUCKET, BUCKET], Decimal(0))
    assert price.usd_h == Decimal("0.050")
    assert [note.partition(":")[0] for note in price.notes] == ["by the hour", "by the hour", "by use"]


def test_down_is_refused_while_jobs_run_or_clusters_stand() -> None:
    changes = [Change("delete", VPC, "vpc")]
    assert codes(check_down(changes, running=["digits-1"], clusters=(), force=False)) == [("jobs-run", "refused")]
    assert codes(check_down(changes, running=["digits-1"], clusters=(), force=True)) == [("jobs-run", "warning")]
    assert codes(check_down(changes, running=(), clusters=["big"], force=True)) == [("clusters-there", "refused")]
    assert codes(check_down(changes, running=(), clusters=(), force=False)) == []


def test_down_leaves_what_holds_checkpoints_whether_it_is_protected_or_not() -> None:
    changes = [Change("delete", VPC, "vpc"), Change("delete", BUCKET, "bucket")]
    assert codes(check_down(changes, running=(), clusters=(), force=True)) == [("protected", "refused")]
    assert codes(check_down(changes, running=(), clusters=(), force=True, with_data=True)) == []


def test_machines_that_are_bought_on_demand_have_a_price_of_their_own() -> None:
    def fleet(size: int, on_demand: int) -> FleetSpec:
        place = {"cloud": "aws", "region": "us-east-1", "machine_type": "g6.xlarge", "accelerator": "L4", "gpus": "1"}
        return FleetSpec.model_validate(
            {"name": "big", **place, "market": "spot", "size": size, "on_demand": on_demand}
        )

    terms = programs.Terms("1", None, 1, "4")
    assert [terms.price_of(fleet(*one)) for one in ((3, 1), (3, 0), (1, 1), (0, 0))] == [6, 3, 4, 0]
    assert [terms.share_of(fleet(*one)) for one in ((3, 1), (3, 0), (1, 1), (0, 0))] == ["2", "1", "4", "1"]
    unknown = programs.Terms("1", None, 1)
    assert [unknown.price_of(fleet(*one)) for one in ((3, 1), (3, 0))] == [None, 3]
    assert unknown.share_of(fleet(3, 1)) is None
    assert programs.Terms(None, None, 1, "4").price_of(fleet(1, 1)) == 4


def test_what_a_newer_version_wrote_is_read_without_what_is_new() -> None:
    infra = InfraSettings("aws", "us-east-1", "infra", "cloudgpu-me", ACCOUNT)
    terms = programs.Terms("1", "5", 0)
    stands = Infrastructure("aws", "us-east-1", "infra", "cloudgpu-me", "network")
    fleet = FleetSpec(name="big", cloud="aws", region="us-east-1", machine_type="g6.xlarge", accelerator="L4", gpus="1")
    cluster = FleetSettings("c", "cloudgpu-me", fleet, stands, "#cloud-config\n", "ami-1", "x://bucket/jobs/f", ACCOUNT)
    newer = {**cluster.to_json(), "fleet": {**cluster.to_json()["fleet"], "new": 1}, "new": {}}
    assert FleetSettings.from_json(newer) == cluster
    assert InfraSettings.from_json({**infra.to_json(), "new": None}) == infra
    assert programs.Terms.from_json({**dataclasses.asdict(terms), "new": 1}) == terms
    bad: tuple[object, ...] = ({}, "text", None, {**newer, "fleet": {"name": "big"}})
    for outputs in ({}, *({"settings": one} for one in bad)):
        with pytest.raises(InfraError, match="the stack's output 'settings' cannot be read"):
            read_output(outputs, "settings", FleetSettings.from_json)


def test_settings_of_a_failing_program_are_kept() -> None:
    """Otherwise the next command would not know the stack's account and bucket."""
    settings = InfraSettings("azure", "eastus", "infra", "cloudgpu-me", ACCOUNT, bucket="no container", adopt=True)
    kept: dict[str, object] = {}

    def program() -> None:
        try:
            programs.infra_program(settings)()
        finally:
            kept.update(get_root_resource().outputs)  # type: ignore[union-attr]

    with pytest.raises(ValueError, match="GROUP/ACCOUNT/CONTAINER"):
        run_strict(program, outputs=OUTPUTS)
    assert kept == {"settings": settings.to_json()}


ACCOUNT = "00000000-0000-0000-0000-000000000002"
PLACES = {
    "aws": ("us-east-1", "g6.xlarge", "ami-1", {"use1-az1": "subnet-1"}, "arn:aws:iam::1:instance-profile/machines"),
    "gcp": ("us-central1", "g2-standard-4", "projects/p/global/images/i", {"": "subnet"}, "machine@p.iam"),
    "azure": (
        *("eastus", "Standard_NC4as_T4_v3", "publisher:offer:sku:1", {"": "/subnet"}),
        f"/subscriptions/{ACCOUNT}/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/machines",
    ),
}
OUTPUTS: dict[str, dict[str, object]] = {
    "azure-native:resources:ResourceGroup": {"name": "group"},
    "azure-native:managedidentity:UserAssignedIdentity": {"principalId": ACCOUNT, "clientId": ACCOUNT},
    "azure-native:logic:Workflow": {
        "identity": {"principalId": ACCOUNT, "tenantId": ACCOUNT, "type": "SystemAssigned"}
    },
    "azure-native:storage:StorageAccount": {"name": "account"},
    "azure-native:storage:BlobContainer": {"name": "container"},
}
INVOKES = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": {"id": "z", "names": ["a"], "zoneIds": ["use1-az1"]},
    "aws:index/getPartition:getPartition": {"id": "aws", "partition": "aws", "dnsSuffix": "amazonaws.com"},
    "aws:ec2/getAmi:getAmi": {"id": "ami-1", "rootDeviceName": "/dev/sda1", "blockDeviceMappings": []},
    "azure-native:authorization:getClientConfig": {"objectId": ACCOUNT, "subscriptionId": ACCOUNT},
    "azure-native:managedidentity:getUserAssignedIdentity": {"principalId": ACCOUNT, "clientId": ACCOUNT},
}


@pytest.mark.parametrize("cloud", list(PLACES))
def test_every_resource_of_cloudgpu_stacks_has_a_known_price(cloud: str) -> None:
    region, machine_type, image, subnets, role = PLACES[cloud]
    stands = Infrastructure(cloud, region, "infra", "cloudgpu-me", "network", subnets, role, ACCOUNT, "x://bucket/jobs")
    fleet = FleetSpec.model_validate(
        {"name": "big", "cloud": cloud, "region": region, "zones": [zone for zone in subnets if zone]}
        | {"machine_type": machine_type, "accelerator": "T4" if cloud == "azure" else "L4", "gpus": "1", "size": 2}
    )
    infra = InfraSettings.from_json(
        {"cloud": cloud, "region": region, "stack": "i", "owner": "cloudgpu-me", "account": ACCOUNT}
    )
    cluster = FleetSettings("c", "cloudgpu-me", fleet, stands, "#cloud-config\n", image, "x://bucket/jobs/f", ACCOUNT)
    invokes = {token: lambda _arguments, answer=answer: answer for token, answer in INVOKES.items()}
    for program in (programs.infra_program(infra), programs.fleet_program(cluster, programs.Terms(None, None, 0))):
        kinds = [one.type for one in run_strict(program, invokes=invokes, outputs=OUTPUTS) if one.custom]
        price = price_of([kind for kind in kinds if not kind.startswith("pulumi:")], Decimal(1))
        assert price.usd_h is not None, price.notes


def test_the_table_of_what_bills_can_be_read() -> None:
    with (Path(cloudgpu.__file__).parent / "infra/billing.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["bills"] for row in rows} <= {"no", "use", "hour", "machines", "unknown"}
    for row in rows:
        assert (row["bills"] == "hour") == bool(row["usd_h"]), row
        assert row["bills"] != "hour" or "https://" in row["note"], row
