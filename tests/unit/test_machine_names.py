"""Hints for machine types that no table has."""

from __future__ import annotations

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.rules.machine_names import machine_type_hint


@pytest.mark.parametrize(
    ("name", "cloud"),
    [
        *(("p5x.48xlarge", "aws"), ("trn3.48xlarge", "aws"), ("g7e.metal-48xl", "aws")),
        *(("a4-highgpu-8g-lowmem", "gcp"), ("g9-standard-4", "gcp"), ("Standard_NC999xx_X900_v9", "azure")),
    ],
)
def test_what_may_be_newer_than_the_tables_can_be_asked_of_its_provider(name: str, cloud: str) -> None:
    command = f"f it is newer than the tables, `cloudgpu catalog refresh --cloud {cloud}` asks the provider"
    assert command in machine_type_hint(name, [cloud])
    assert command in machine_type_hint(name, catalog.CLOUDS), "of several clouds the one with such names"


@pytest.mark.parametrize("name", ["m5.large", "e2-standard-4", "Standard_D4s_v3", "cheapest", "*" * 1000])
def test_a_refresh_is_not_advised_for_what_it_does_not_ask_about(name: str) -> None:
    hint = machine_type_hint(name, catalog.CLOUDS)
    assert "catalog refresh" not in hint
    assert hint.endswith("he tables list machine types with accelerators, and Compute Engine's N1, only")


def test_vertex_has_no_list_to_ask_for() -> None:
    assert "catalog refresh" not in machine_type_hint("a9-highgpu-8g", ["vertex"])


@pytest.mark.parametrize(
    "name", ["NC24ads_A100_v4", "standard_nc24ads_a100_v4", "Standard NC24ads A100 v4", "NC24ADS_A100_V4"]
)
def test_a_size_of_azure_is_recognized_however_it_is_spelt(name: str) -> None:
    assert machine_type_hint(name, ["azure"]) == "did you mean Standard_NC24ads_A100_v4?"


@pytest.mark.parametrize("name", ["n1-custom-8-30720", "custom-8-30720", "g2-custom-8-32768", "N2-custom-4-65536-ext"])
def test_custom_machine_types_are_said_not_to_be_supported(name: str) -> None:
    assert machine_type_hint(name, ["gcp", "aws"]).startswith("custom machine types are not supported")
    assert "custom" not in machine_type_hint(name, ["aws"])
