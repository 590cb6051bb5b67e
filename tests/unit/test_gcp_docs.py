"""docs/guides/gcp.md says what the program says: messages, quotas, labels, settings; and the tables of quotas and
prices."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import cloudgpu
from cloudgpu.jobspecs import catalog
from cloudgpu.provisioners.gcp import account, labels
from cloudgpu.provisioners.gcp.catalog import prices, quotas
from cloudgpu.provisioners.gcp.resources import network
from cloudgpu.provisioners.shared import errors, tags

ROOT = Path(cloudgpu.__file__).parent
PAGE = (ROOT / "docs" / "guides" / "gcp.md").read_text()
SOURCES = [*(ROOT / "provisioners").rglob("*.py"), *(ROOT / "control").rglob("*.py"), ROOT / "storage" / "gcs.py"]


def test_every_message_of_the_table_is_one_that_is_printed() -> None:
    table = PAGE.partition("## Troubleshooting")[2]
    messages = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(messages) > 30
    code = "\n".join(path.read_text() for path in SOURCES)
    rules = [rule for rule in errors.rules() if rule.cloud in ("gcp", "*")]
    known = {code for rule in rules for code in rule.codes}
    said = "\n".join([rule.pattern.pattern for rule in rules if rule.pattern] + [rule.advice for rule in rules])
    missing = [message for message in messages if message not in known and message not in code and message not in said]
    assert missing == []


def test_every_class_of_error_that_a_user_can_mend_is_in_the_table() -> None:
    table = PAGE.partition("## Troubleshooting")[2]
    for code in (
        "QUOTA_EXCEEDED",
        "SERVICE_DISABLED",
        "SERVICE_ACCOUNT_ACCESS_DENIED",
        "forbidden",
        "IP_SPACE_EXHAUSTED",
    ):
        assert any(rule.cloud == "gcp" and code in rule.codes and rule.advice for rule in errors.rules())
        assert f"`{code}`" in table


def test_quotas_are_those_that_are_checked() -> None:
    rows = re.findall(r"^ +\| [A-Z]\w+.* \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    printed = {name for row in rows for name in row}
    assert printed == {quota.name for quota in quotas.quotas("gcp") if quota.unit == "GPUs"}
    for name in (*quotas.ALL_REGIONS, "CPUS"):
        assert f"`{name}`" in PAGE or name == "CPUS_ALL_REGIONS"


def test_every_label_and_setting_is_named() -> None:
    for name in (
        *(tags.OWNER, tags.JOB, tags.ATTEMPT, tags.TOKEN, tags.EXPIRES),
        *(tags.ROLE, tags.INDEX, tags.RANK, tags.NODE),
    ):
        assert f"`{name}`" in PAGE or f"`{name.removeprefix('cloudgpu')}`" in PAGE
    for setting in (account.ENDPOINT, network.NETWORK, network.SUBNETWORK):
        assert f"`{setting}`" in PAGE
    assert f"`{labels.encode('worker-0.1')}`" in PAGE
    assert f"`{network.closed_name('<network>')}`" in PAGE


# --- the tables of quotas and prices ----------------------------------------------------------------------------------


def test_every_gpu_that_is_sold_has_a_quota_in_every_market_it_is_sold_in() -> None:
    """Except those for which the source states that the quota is unknown."""
    missing = {
        (target, machine.accelerator)
        for target in ("gcp", "vertex")
        for group in catalog.machine_types(target).values()
        for machine in group
        for market in machine.markets - {"reservation"}
        if machine.accelerator and quotas.quota_of(target, machine.provider_accelerator, market) is None
    }
    assert missing == {("vertex", "P4"), ("vertex", "B200"), ("vertex", "RTX-PRO-6000-BSE")}


def test_reserved_machines_and_machines_without_gpus_have_no_quota_here() -> None:
    assert quotas.quota_of("gcp", "nvidia-l4", "reservation") is None
    assert quotas.quota_of("gcp", "", "on-demand") is None
    assert {quota.market for quota in quotas.quotas("gcp")} == {"on-demand", "spot"}


@pytest.mark.parametrize("name", ["quotas.csv", "skus.csv"])
def test_rows_have_a_source_and_a_date(name: str) -> None:
    with (ROOT / "provisioners" / "gcp" / "catalog" / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        assert None not in row and row["source"] and row["confidence"] in ("high", "medium")
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])


def test_texts_of_the_price_list_mean_one_part_of_one_market() -> None:
    kinds = prices._kinds()
    assert {kind.part for kind in kinds} == {"core", "ram", "gpu", "ssd", "whole"}
    assert {kind.unit for kind in kinds} == {"h", "GiBy.h", "GiBy.mo"}
    known = set(catalog.machine_types("gcp")) | {
        machine.provider_accelerator for group in catalog.machine_types("gcp").values() for machine in group
    }
    for kind in kinds:
        assert any(name.startswith(kind.of) for name in known), kind.of
    for text, wanted in {
        "N1 Predefined Instance Core running in Americas": {("core", "n1-", "on-demand")},
        "Spot Preemptible A2 Instance Ram running in Netherlands": {("ram", "a2-", "spot")},
        "Nvidia Tesla A100 GPU running in Iowa": {("gpu", "nvidia-tesla-a100", "on-demand")},
        "Nvidia Tesla A100 80GB GPU attached to Spot Preemptible VMs running in Iowa": {
            ("gpu", "nvidia-a100-80gb", "spot")
        },
        "SSD backed Local Storage": {("ssd", "a2-", "on-demand"), ("ssd", "a3-", "on-demand")},
        "Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode": set(),
        "Nvidia L4 GPU attached to DWS Defined Duration VMs running in Frankfurt": set(),
        "Commitment v1: Nvidia L4 GPU running in Iowa for 1 Year": set(),
        "A2 Custom Instance Core running in Iowa": set(),
    }.items():
        assert {(kind.part, kind.of, kind.market) for kind in prices._kinds_of(text)} == wanted, text


@pytest.mark.parametrize(
    ("infos", "limit"),
    [
        ([], None),
        ([{"details": {"value": "4"}}], 4),
        ([{"details": {"value": "-1"}}], quotas.UNLIMITED),
        ([{"details": {}}], None),
        ([{"details": {"value": "4"}, "applicableLocations": ["europe-west4"]}], None),
        ([{"details": {"value": "4"}}, {"dimensions": {"region": "us-central1"}, "details": {"value": "8"}}], 8),
        (
            [
                {"dimensions": {"gpu_family": "NVIDIA_H100"}, "details": {"value": "2"}},
                {"dimensions": {"region": "us-central1"}, "details": {"value": "8"}},
            ],
            2,
        ),
        ([{"dimensions": {"gpu_family": "NVIDIA_B200"}, "details": {"value": "2"}}], None),
        ([{"dimensions": {"zone": "us-central1-a"}, "details": {"value": "2"}}], None),
    ],
)
def test_the_most_particular_limit_holds(infos: list[dict[str, object]], limit: float | None) -> None:
    assert quotas.granted(infos, "us-central1", "NVIDIA_H100") == limit
