"""`cloudgpu gpus`: its tables for people and its output for scripts."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from cloudgpu.cli.gpus.data import Scope, Summary
from cloudgpu.cli.gpus.view import accelerator_text, summaries_text
from cloudgpu.cli.main import main
from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.jobspecs.units import CountRange

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


def test_the_list_shows_who_sells_what_and_for_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys)
    assert row(text, "L4")[:4] == ["L4", "24", "GB", "Ada"]
    assert row(text, "L4")[5:] == ["aws", "gcp", "vertex", "0.705", "gcp", "us-east4", "2026-07-30"]
    assert row(text, "GB200")[-1] == "unknown"
    assert not any(line.startswith(("K80", "P100")) for line in text.splitlines()), "nobody sells them"
    assert "T4: gcp and vertex end it on 2027-08-01." in text


def test_one_accelerator_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "nvidia-tesla-t4")
    assert text == run(capsys, "t4")
    assert row(text, "g4dn.xlarge")[:7] == ["g4dn.xlarge", "1", "4", "16", "GB", "0.526", "us-east-1"]
    assert "gcp: on-demand, spot, reservation; support ends 2027-08-01" in text
    assert row(text, "n1-highcpu-96")[1] == "4"


def test_a_cloud_and_a_region_narrow_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "H100", "--cloud", "gcp", "--region", "us-central1")
    assert "aws" not in text
    assert "us-central1-a, -b, -c" in text
    assert row(text, "a3-highgpu-1g")[5:7] == ["-", "6.326"], "not sold on demand, though it has a list price"
    assert "L40S" not in run(capsys, "--region", "us-central1")
    assert run(capsys, "L40S", "--region", "us-central1").endswith("No machine with L40S can be had in us-central1.\n")


@pytest.mark.parametrize("cloud", ["gcp", "azure", "aws"])
def test_a_price_stands_beside_the_region_it_is_of(cloud: str) -> None:
    """The cheapest region for spot is rarely the cheapest region on demand."""
    here, apart = scope(cloud), 0
    for name, accelerator in catalog.accelerators().items():
        found = here.offers(name)
        text = accelerator_text(accelerator, found, here)
        for offer in found:
            if offer.retired:
                continue
            line = next(line for line in text.splitlines() if line.split()[:1] == [offer.machine.name])
            for cheapest in offer.prices.values():
                amount = cheapest.price.amount.quantize(Decimal("0.001"), "ROUND_HALF_UP")
                price, place = f"{amount} {cheapest.region}", line.partition(f" {amount} ")[2].split()[0].rstrip("…")
                assert cheapest.region.startswith(place), (price, line)
            apart += len({cheapest.region for cheapest in offer.prices.values()}) > 1
    assert (apart > 0) == (cloud == "gcp"), "no shipped table has Spot prices of AWS and Azure"


def test_the_reports_case_of_a_spot_price_of_another_region(capsys: pytest.CaptureFixture[str]) -> None:
    cells = row(run(capsys, "H100", "--cloud", "gcp"), "a3-highgpu-8g")
    assert cells[5:9] == ["88.490", "us-central1", "23.432", "europe-west9"]


def test_a_count_narrows_the_machine_types(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "A100:8")
    assert row(text, "p4d.24xlarge")[1] == row(text, "Standard_ND96asr_v4")[1] == "8"
    assert "a2-highgpu-1g" not in text
    assert row(run(capsys, "T4:2..4", "--cloud", "gcp"), "n1-standard-8")[1:3] == ["2,", "4"]
    assert "No machine with 3 A100-40GB can be had today.\n\nMachines have 1, 2, 4, 8 or 16." in run(capsys, "A100:3")


def test_a_count_is_what_is_priced() -> None:
    one, four = (
        Scope(("gcp",), "us-central1", TODAY, gpus=CountRange.parse(count)).offers("T4") for count in ("1", "4")
    )
    prices = [
        next(o.prices["on-demand"].price.amount for o in found if o.machine.name == "n1-standard-16")
        for found in (one, four)
    ]
    assert prices[1] - prices[0] == 3 * Decimal("0.35")


def test_gpus_by_their_memory(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {line.split()[0] for line in run(capsys, "24GB..").splitlines() if " GB " in line}
    assert {"L4", "A10G", "H100-80GB"} <= listed
    assert listed.isdisjoint({"T4", "V100-16GB", "Trainium"})
    assert {entry["name"] for entry in json.loads(run(capsys, "90GB..100GB", "--json"))} == {
        "H100-NVL-94GB",
        "RTX-PRO-6000-BSE",
    }
    assert [e["name"] for e in json.loads(run(capsys, "12GB:1/2", "--json"))] == ["A10", "L4", "V710"]
    assert "No accelerator with 900GB.. each is sold today." in run(capsys, "900GB..")
    assert "expected a number of GPUs" in refused(capsys, "24GB..:x")
    assert "cloudgpu gpus A100:8, or 24GB.." in refused(capsys, "24G..")


def test_every_cloud_of_an_accelerator_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert row(run(capsys), "T4")[4:8] == ["aws", "gcp", "vertex", "azure"]


@pytest.mark.parametrize("summary", scope().summaries(), ids=lambda summary: summary.accelerator.name)
def test_the_cheapest_machine_is_one_that_a_plan_would_choose(summary: Summary) -> None:
    cheapest = summary.cheapest
    if cheapest is None:
        return
    [offer] = [
        offer
        for offer in scope(cheapest.cloud).offers(summary.accelerator.name)
        if offer.machine.name == cheapest.machine_type
    ]
    where = {"cloud": cheapest.cloud, "region": cheapest.region, "market": "on-demand"}
    resources = {**where, "accelerator": f"{summary.accelerator.name}:{offer.counts[0]}"}
    spec = JobSpec.model_validate({"name": "j", "run": "true", "resources": resources})
    best = plan(spec, machine=None, today=datetime.date.fromisoformat(TODAY)).offers[0]
    assert best.roles[0].machine_type == cheapest.machine_type


def test_what_a_refresh_would_tell_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "A10").split())
    assert "spot prices unknown; `cloudgpu catalog refresh --cloud azure` asks the provider" in text
    assert "Standard_NC32ads_A10_v4: no region is known; `cloudgpu catalog refresh --cloud azure`" in text
    assert "catalog refresh" not in run(capsys, "L4", "--cloud", "vertex")


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
    azure = "Standard_NC24ads_A100_v4 is a machine type: see cloudgpu gpus A100-80GB"
    assert azure in refused(capsys, "NC24ads_A100_v4")
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
