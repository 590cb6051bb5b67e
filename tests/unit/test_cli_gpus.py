"""`cloudgpu gpus`: the tables as a person and as a script see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudgpu.cli import gpus
from cloudgpu.cli.gpus_data import Scope
from cloudgpu.cli.gpus_view import accelerator_text, summaries_text
from cloudgpu.cli.main import main
from cloudgpu.jobspecs import catalog

TODAY = "2026-11-20"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["gpus", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["gpus", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def scope(*clouds: str, region: str | None = None, today: str = TODAY) -> Scope:
    return Scope(clouds or catalog.CLOUDS, region, today)


def row(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_the_clouds_are_those_of_the_tables() -> None:
    assert gpus._CLOUDS == catalog.CLOUDS


def test_the_list_shows_who_sells_what_and_for_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys)
    assert row(text, "L4") == [
        "L4",
        "24",
        "GB",
        "Ada",
        "Lovelace",
        "aws",
        "gcp",
        "vertex",
        "0.705",
        "gcp",
        "us-east4",
        "2026-07-30",
    ]
    assert row(text, "GB200")[-1] == "unknown"
    assert not any(line.startswith(("K80", "P100")) for line in text.splitlines()), "nobody sells them"
    assert "T4: gcp and vertex end it on 2027-08-01." in text


def test_one_accelerator_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "nvidia-tesla-t4")
    assert text == run(capsys, "t4")
    assert row(text, "g4dn.xlarge")[:6] == ["g4dn.xlarge", "1", "4", "16", "GB", "0.526"]
    assert "gcp: on-demand, spot, reservation; support ends 2027-08-01" in text
    assert row(text, "n1-highcpu-96")[1] == "4"


def test_a_cloud_and_a_region_narrow_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "H100", "--cloud", "gcp", "--region", "us-central1")
    assert "aws" not in text
    assert "us-central1-a, -b, -c" in text
    assert row(text, "a3-highgpu-1g")[5:7] == ["-", "6.326"], "not sold on demand, though it has a list price"
    assert "L40S" not in run(capsys, "--region", "us-central1")
    assert run(capsys, "L40S", "--region", "us-central1").endswith("No machine with L40S can be had in us-central1.\n")


def test_what_is_gone_is_said_with_its_day(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "V100", "--cloud", "aws")
    assert "No machine with V100-16GB can be had today on aws." in text
    assert "aws since 2026-05-02: p3.2xlarge, p3.8xlarge, p3.16xlarge" in text


def test_an_announced_end_comes_true_on_its_day() -> None:
    t4 = catalog.accelerators()["T4"]
    after = scope("gcp", today="2027-08-01")
    assert "No machine with T4 can be had" in accelerator_text(t4, after.offers("T4"), after)
    assert "T4" not in {summary.accelerator.name for summary in after.summaries()}


def test_a_misspelt_name_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean T4" in refused(capsys, "T5")
    assert "p4d.24xlarge is a machine type: see cloudgpu gpus A100-40GB" in refused(capsys, "p4d.24xlarge")
    assert "cloudgpu gpus lists them all" in refused(capsys, "quantum-annealer-9000")
    assert "did you mean us-central1" in refused(capsys, "--region", "us-centrall1")
    assert "azure has no region 'us-central1'" in refused(capsys, "--cloud", "azure", "--region", "us-central1")
    assert "local" in refused(capsys, "--cloud", "local")


@pytest.mark.parametrize("name", [*catalog.accelerators()])
@pytest.mark.parametrize("region", [None, "us-central1", "us-east-1", "eastus"])
def test_every_page_fits_100_columns(name: str, region: str | None) -> None:
    here = scope(region=region)
    text = accelerator_text(catalog.accelerators()[name], here.offers(name), here)
    assert max(map(len, text.splitlines())) <= 100
    for offer in here.offers(name):
        assert offer.machine.name in text, "names of machine types are never cut"


@pytest.mark.parametrize("cloud", catalog.CLOUDS)
def test_every_list_fits_100_columns(cloud: str) -> None:
    here = scope(cloud)
    lines = summaries_text(here.summaries(), here).splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 100


def test_json_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = {entry["name"]: entry for entry in json.loads(run(capsys, "--json"))}
    assert found["L4"]["cheapest_on_demand"] == {
        "usd_gpu_h": "0.704518",
        "cloud": "gcp",
        "region": "us-east4",
        "machine_type": "g2-standard-4",
        "date": "2026-07-30",
    }
    assert found["T4"]["clouds"]["gcp"] == {"ends": "2027-08-01"}
    assert found["GB200"]["cheapest_on_demand"] is None, "unknown, not 0"


def test_json_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "A10", "--json"))
    assert (found["name"], found["memory_gb"], found["kind"]) == ("A10", 24, "gpu")
    sizes: dict[str, dict[str, Any]] = {entry["machine_type"]: entry for entry in found["machine_types"]}
    assert sizes["Standard_NV6ads_A10_v5"]["counts"] == ["1/6"]
    assert sizes["Standard_NV36ads_A10_v5"]["markets"] == ["on-demand", "spot", "reservation"]
    assert sizes["Standard_NV36ads_A10_v5"]["cheapest"]["on-demand"]["source"] == "karp-az"
    assert "spot" not in sizes["Standard_NV36ads_A10_v5"]["cheapest"]
    assert sizes["Standard_NC8ads_A10_v4"]["places"] == {}


@pytest.mark.parametrize("words", [[], ["H100", "--region", "us-east1"]])
def test_a_narrow_terminal_loses_spare_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, run(capsys, *words).splitlines())) <= 50
