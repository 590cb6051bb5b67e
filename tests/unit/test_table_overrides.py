"""Refreshed tables: they override the shipped ones, and are never used if damaged, foreign or old."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from cloudgpu.jobspecs.catalog import CLOUDS, host_cloud, table_overrides
from cloudgpu.jobspecs.catalog import csv_tables as catalog_read
from cloudgpu.jobspecs.home import home
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.provisioners.shared.refresh import (
    ImplausibleTableError,
    Update,
    check,
    publish,
    refreshable,
    reset,
    table_lock,
)

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
NOW = datetime.datetime(2026, 11, 21, 23, 50, tzinfo=datetime.UTC)
PRICES = ("sku", "region", "on_demand_usd_h", "spot_usd_h", "source", "date")
PLACES = ("offering", "region", "zones")
SPOT = ("sku", "region", "spot_usd_h", "source", "date")
CHEAP = ("g6.xlarge", "us-east-1", "0.123", "refresh", "2026-11-21")
JOB = """\
name: digits
resources: {accelerator: L4, cloud: aws, region: us-east-1, market: spot}
code: null
run: "true"
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    table_overrides.folder().mkdir(parents=True)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)


def spot(*rows: tuple[str, ...], found: int | None = None, shipped: int = 0) -> Update:
    return Update("spot_aws", SPOT, rows, ("us-east-1",), len(rows) if found is None else found, shipped)


def cloudgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CLOUDGPU, *arguments], capture_output=True, text=True, check=False, timeout=180)


def test_a_refreshed_spot_price_is_planned_with_and_its_day_is_shown() -> None:
    before = json.loads(cloudgpu("plan", "job.yaml", "--json").stdout)["offers"][0]
    assert before["price_at_most"]
    assert publish(spot(CHEAP), NOW).state == "refreshed"
    done = cloudgpu("plan", "job.yaml", "--json")
    after = json.loads(done.stdout)["offers"][0]
    assert after["price_usd_h"].startswith("0.13")  # including a disk
    assert not after["price_at_most"]
    assert after["price_date"] == "2026-11-21"
    assert "tables refreshed 2026-11-21T23:50:00Z: spot_aws" in done.stderr
    assert "2026-11-21" in cloudgpu("plan", "job.yaml").stdout


def test_a_refreshed_table_is_read_instead_of_the_shipped_one_until_reset() -> None:
    def prices() -> str:
        return cloudgpu("catalog", "show", "prices_aws", "--json").stdout

    def planned() -> str:
        return cloudgpu("plan", "job.yaml", "--market", "on-demand", "--json").stdout

    row = ("g6.xlarge", "us-east-1", "7.77", "", "refresh", "2026-11-21")
    publish(Update("prices_aws", PRICES, [row], ("us-east-1",), 1), NOW)
    assert (json.loads(prices())[0]["on_demand_usd_h"], "7.78" in planned()) == ("7.77", True)
    assert reset() == ["prices_aws"]
    assert ("7.77" in prices(), "7.78" in planned()) == (False, False)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda text: text.replace("0.123", "0.023"), "damaged"),
        (lambda text: text[:-20], "damaged"),
        (lambda text: text.replace("cloudgpu-table 1", "cloudgpu-table 9"), "another version"),
        (lambda _text: "", "another version"),
        (lambda text: "sku" + text, "another version"),
    ],
)
def test_a_table_that_cannot_be_trusted_is_an_error_that_says_what_to_do(damage: object, word: str) -> None:
    publish(spot(CHEAP), NOW)
    path = table_overrides.path_of("spot_aws")
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    done = cloudgpu("plan", "job.yaml")
    assert done.returncode == 6
    assert str(path) in done.stderr and word in done.stderr and "cloudgpu catalog reset" in done.stderr
    assert "Traceback" not in done.stderr
    assert word in cloudgpu("catalog", "show").stderr
    assert "spot_aws" in cloudgpu("catalog", "reset").stderr
    assert cloudgpu("plan", "job.yaml").returncode == 0


def test_a_table_older_than_the_shipped_ones_is_not_used_and_show_says_so() -> None:
    publish(spot(CHEAP), NOW.replace(year=2026, month=11, day=1))
    assert json.loads(cloudgpu("plan", "job.yaml", "--json").stdout)["offers"][0]["price_at_most"]
    assert "older than cloudgpu's own" in cloudgpu("catalog", "show").stderr


def test_the_shipped_day_is_the_one_that_the_sources_name() -> None:
    page = (Path(catalog_read.__file__).parents[1] / "tables" / "SOURCES.md").read_text()
    assert f"Compiled on {table_overrides.SHIPPED}" in page


@pytest.mark.parametrize(
    ("update", "word"),
    [
        (spot(), "names nothing"),
        (spot(CHEAP, found=0), "names nothing"),
        (spot(CHEAP, shipped=3), "1 facts, where the shipped table has 3"),
        (spot((*CHEAP[:2], "0", *CHEAP[3:])), "a price of 0"),
        (spot((*CHEAP[:2], "0.00001", *CHEAP[3:])), "a price of"),
        (spot((*CHEAP[:2], "-1", *CHEAP[3:])), "a price of"),
        (spot((*CHEAP[:2], "NaN", *CHEAP[3:])), "a price of"),
        (spot((*CHEAP[:2], "cheap", *CHEAP[3:])), "a price of"),
        (spot((*CHEAP[:4], "2006-01-02")), "a date of 2006-01-02"),
        (spot((*CHEAP[:4], "yesterday")), "yesterday"),
        (spot(("g6,xlarge", *CHEAP[1:])), "comma"),
    ],
)
def test_what_looks_wrong_is_refused_and_what_was_used_before_stays(update: Update, word: str) -> None:
    publish(spot(CHEAP), NOW)
    before = table_overrides.path_of("spot_aws").read_bytes()
    outcome = publish(update, NOW)
    assert (outcome.state, word in outcome.reason) == ("kept", True), outcome
    assert table_overrides.path_of("spot_aws").read_bytes() == before


def test_a_table_with_half_of_the_shipped_facts_is_taken() -> None:
    check(spot(CHEAP, shipped=2))
    with pytest.raises(ImplausibleTableError):
        check(spot(CHEAP, shipped=3))


def test_one_change_of_the_tables_at_a_time() -> None:
    with table_lock(), pytest.raises(ProvisionError, match="another `cloudgpu catalog`"):
        reset()
    assert reset() == []


def test_the_state_directory_is_that_of_platformdirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDGPU_HOME")
    for value in (None, "", "  ", "/data/of mine", "relative/path"):
        if value is None:
            monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_DATA_HOME", value)
        assert home() == Path(platformdirs.user_data_dir("cloudgpu", appauthor=False)), value


def test_the_command_offers_the_clouds_that_can_be_refreshed() -> None:
    assert {host_cloud(cloud) for cloud in CLOUDS} == set(refreshable())


def test_show_dates_the_rows_and_not_the_compilation() -> None:
    listed = {entry["table"]: entry for entry in json.loads(cloudgpu("catalog", "show", "--json").stdout)}
    for name, oldest, newest in (
        *(("prices_aws", "2026-01-21", "2026-07-20"), ("prices_gcp", "2026-05-01", "2026-07-30")),
        *(("prices_azure", "2026-06-18", "2026-06-18"), ("places_azure", "2026-02-12", "2026-02-12")),
        *(("disk_prices", "2021-07-14", "2026-09-21"), ("machine_types_aws", "2026-10-02", "2026-10-27")),
    ):
        assert (listed[name]["origin"], listed[name]["oldest"], listed[name]["newest"]) == ("shipped", oldest, newest)
    assert "table_dates" not in listed
    text = cloudgpu("catalog", "show").stdout
    assert "2026-01-21 (" in next(line for line in text.splitlines() if line.startswith("prices_aws"))
    assert table_overrides.SHIPPED not in text, "the day of the compilation is the day of no figure"


def test_show_dates_a_refreshed_table_by_its_oldest_row_too() -> None:
    publish(spot(CHEAP, ("g6.xlarge", "eu-west-1", "0.2", "refresh", "2025-02-03")), NOW)
    places = [("g6.xlarge", "us-east-1", ""), ("g6.xlarge", "eu-west-1", "")]
    publish(Update("places_aws", PLACES, places, ("us-east-1",), 2), NOW)
    listed = {entry["table"]: entry for entry in json.loads(cloudgpu("catalog", "show", "--json").stdout)}
    assert [listed["spot_aws"][key] for key in ("oldest", "newest")] == ["2025-02-03", "2026-11-21"]
    assert [listed["places_aws"][key] for key in ("oldest", "newest")] == ["2026-10-27", "2026-11-21"]
    line = next(line for line in cloudgpu("catalog", "show").stdout.splitlines() if line.startswith("spot_aws"))
    assert line.split()[1:4] == ["refreshed", "2026-11-21", "2025-02-03"]


def test_refreshing_vertex_asks_about_compute_engine() -> None:
    said = cloudgpu("catalog", "refresh", "--cloud", "vertex").stderr
    assert "the machines of vertex are those of gcp: both are refreshed" in said
    assert "Traceback" not in said


def test_validate_reads_no_more_modules_for_refreshed_tables() -> None:
    code = "import sys\nfrom cloudgpu.cli import main\nmain(['validate', 'job.yaml'])\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert not {"platformdirs", "cloudgpu.provisioners", "boto3"} & set(loaded.stdout.split())
