"""Tests of `cloudgpu catalog refresh --cloud aws`, quota checks before a launch and prices at launch, with faults."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.jobspecs.catalog import csv_tables as catalog_read
from cloudgpu.jobspecs.catalog import table_overrides
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners.aws.catalog import quotas
from cloudgpu.provisioners.aws.catalog import refresh as asked
from cloudgpu.provisioners.aws.catalog.prices import OddPriceError, on_demand_prices, spot_prices
from cloudgpu.provisioners.aws.clients import Clients
from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.sessions import session
from cloudgpu.tests.standins.clocks import today
from cloudgpu.tests.standins.faults import HTML, RESET, error

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGIONS = ("us-east-1", "eu-west-1")
TABLES = ("machine_types_aws", "places_aws", "prices_aws", "spot_aws", "quotas_aws")
ACTIONS = {
    "machine_types_aws": "DescribeInstanceTypes",
    "places_aws": "DescribeInstanceTypeOfferings",
    "prices_aws": "GetProducts",
    "spot_aws": "DescribeSpotPriceHistory",
    "quotas_aws": "GetServiceQuota",
}
JOB = """\
name: digits
resources: {accelerator: L4, cloud: aws, region: us-east-1, market: [spot, on-demand]}
code: null
run: "true"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with Aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aws:
    server.control.reset()
    for name, value in {**server.environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return server


def cloudgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([CLOUDGPU, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr
    return done


def refresh(*regions: str) -> tuple[int, dict[str, str], str]:
    """Run `catalog refresh`; return its exit code, the state of each table, and stderr."""
    where = [word for region in regions or REGIONS for word in ("--region", region)]
    done = cloudgpu("catalog", "refresh", "--json", *where)
    outcomes = json.loads(done.stdout) if done.stdout else []
    return done.returncode, {one["table"]: one["state"] for one in outcomes}, done.stderr


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a refreshed table."""
    found = table_overrides.load(table_overrides.path_of(table))
    assert found is not None
    columns = found.text.partition("\n")[0].split(",")
    return [dict(zip(columns, row, strict=True)) for row in catalog_read.parse(found.text, *columns)]


def shipped(table: str) -> list[dict[str, str]]:
    text = catalog_read.shipped_text(table)
    columns = text.partition("\n")[0].split(",")
    return [dict(zip(columns, row, strict=True)) for row in catalog_read.parse(text, *columns)]


# --- refresh ----------------------------------------------------------------------------------------------------------


def test_all_tables_are_refreshed_and_planned_with(aws: Aws) -> None:
    for zone, amount in zip("abcdef", ("0.031", "0.042", "0.021", "0.03", "0.03", "0.03"), strict=True):
        aws.control.set_price("g6.xlarge", f"us-east-1{zone}", amount)
    aws.control.set_price("g6.xlarge", "us-east-1", "0.09")
    begun = today()
    code, states, said = refresh()
    assert (code, states) == (0, dict.fromkeys(TABLES, "refreshed")), said
    done = cloudgpu("plan", "job.yaml", "--json")
    offers = {offer["market"]: offer for offer in reversed(json.loads(done.stdout)["offers"])}
    spot, on_demand = offers["spot"]["roles"][0], offers["on-demand"]["roles"][0]
    assert (spot["price_usd_h"], on_demand["price_usd_h"]) == ("0.042", "0.09")  # Spot: the dearest zone's
    day = offers["spot"]["price_date"]
    assert begun <= day <= today()
    assert f"note: tables refreshed {day}" in done.stderr
    listed = cloudgpu("catalog", "show").stdout
    assert all(f"{table}" in listed for table in TABLES)
    assert listed.count("refreshed") == len(TABLES)


def test_what_ec2_says_is_what_the_shipped_tables_say(aws: Aws) -> None:
    """Both come from EC2's API (the stand-in replays its answers of 2026-10), so both parsers must agree."""
    refresh()
    volatile = {"source", "date"}
    steady = [{k: v for k, v in row.items() if k not in volatile} for row in shipped("machine_types_aws")]
    asked = [{k: v for k, v in row.items() if k not in volatile} for row in rows("machine_types_aws")]
    assert sorted(asked, key=str) == sorted(steady, key=str)
    # The API's list of offerings leaves out Capacity Blocks of p6e.
    places = [row for row in shipped("places_aws") if not row["offering"].startswith("p6e-")]
    assert sorted(rows("places_aws"), key=str) == sorted(places, key=str)


def test_what_a_new_machine_type_carries_is_read_off_ec2_s_answer(aws: Aws) -> None:
    """Checked with the known machine types: EC2's answer must give what the shipped table has for them."""
    known = {row["machine_type"]: (row["accelerator"], row["counts"]) for row in shipped("machine_types_aws")}
    machines = asked._describe(Clients(session()).ec2("us-east-1"), ["g*", "p*", "inf*", "trn*", "dl*"])
    parsed = {one.name: (one.accelerator, str(one.gpus)) for one in machines if one.provider_accelerator}
    assert parsed == {name: known[name] for name in parsed}
    assert len(parsed) > 70
    names = ("g6.xlarge", "g6f.large", "p4d.24xlarge", "p4de.24xlarge")
    assert [parsed[name] for name in names] == [("L4", "1"), ("L4", "1/8"), ("A100-40GB", "8"), ("A100-80GB", "8")]


def test_other_regions_keep_what_is_known_of_them(aws: Aws) -> None:
    aws.control.set_price("g6.xlarge", "us-east-1", "0.9")
    refresh("us-east-1")
    aws.control.set_price("g6.xlarge", "us-east-1", "0.1")
    refresh("eu-west-1")
    prices = {(row["sku"], row["region"]): row for row in rows("prices_aws")}
    assert prices["g6.xlarge", "us-east-1"]["on_demand_usd_h"] == "0.9"
    known = {(row["sku"], row["region"]): row for row in shipped("prices_aws")}
    assert prices["g6.xlarge", "eu-north-1"] == known["g6.xlarge", "eu-north-1"]
    assert {row["region"] for row in rows("spot_aws")} == set(REGIONS)
    assert {row["region"] for row in rows("quotas_aws")} == set(REGIONS)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_cannot_be_had_is_kept_and_named_with_the_action_that_failed(aws: Aws, table: str) -> None:
    refresh()
    before = {name: table_overrides.path_of(name).read_bytes() for name in TABLES}
    code = "AccessDeniedException" if ACTIONS[table] in ("GetProducts", "GetServiceQuota") else "UnauthorizedOperation"
    aws.control.fail(ACTIONS[table], error(code, 403, "You are not authorized to perform this operation."), times=None)
    code_, states, said = refresh()
    assert code_ == 6
    assert states == {**dict.fromkeys(TABLES, "refreshed"), table: "kept"}
    assert f"{table}: ask for" in said and code in said and ACTIONS[table] in said
    assert table_overrides.path_of(table).read_bytes() == before[table]


def test_short_troubles_are_waited_out(aws: Aws) -> None:
    for action in ACTIONS.values():
        aws.control.fail(action, HTML)
        aws.control.fail(action, RESET)
    aws.control.fail("DescribeInstanceTypes", error("RequestLimitExceeded", 503), times=2)
    code, states, said = refresh()
    assert (code, set(states.values())) == (0, {"refreshed"}), said


def test_no_credentials_and_an_unknown_region_are_one_clear_message(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, states, said = refresh("us-east-11")
    assert (code, states, "AWS has no region us-east-11" in said) == (4, {}, True), said
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, states, said = refresh("us-east-1")
    assert (code, states) == (6, {})
    assert "credentials" in said
    assert list((tmp_path / "home").rglob("*.csv")) == []


def test_moto_s_own_spot_prices_would_be_refused(aws: Aws) -> None:
    """A price of 0.00001 USD/h shows that the source is broken."""
    aws.control.set_price("g6.xlarge", "us-east-1a", "0.00001")
    for zone in "bcdef":
        aws.control.set_price("g6.xlarge", f"us-east-1{zone}", "0.00001")
    code, states, said = refresh("us-east-1")
    assert (code, states["spot_aws"]) == (6, "kept")
    assert "a price of 0.00001 USD/h: g6.xlarge us-east-1" in said


def test_free_or_negative_prices_are_odd(aws: Aws) -> None:
    aws.control.set_price("g6.xlarge", "us-east-1a", "0")
    ec2 = Clients(session()).ec2("us-east-1")
    with pytest.raises(OddPriceError, match=r"g6\.xlarge at '0"):
        spot_prices(ec2, ["g6.xlarge"], {}, datetime.datetime.now(datetime.UTC))
    aws.control.set_price("g6.xlarge", "us-east-1", "0")
    assert "us-east-1" not in on_demand_prices(Clients(session()).pricing(), "g6.xlarge")


def test_every_call_only_reads(aws: Aws) -> None:
    refresh("us-east-1")
    assert {call.action for call in aws.control.calls()} == {
        *ACTIONS.values(),
        "DescribeRegions",
        "DescribeAvailabilityZones",
    }


# --- quotas -----------------------------------------------------------------------------------------------------------


def run(machine_type: str, count: int = 1, market: str = "on-demand", region: str = "us-east-1") -> None:
    client: Any = session().client("ec2", region_name=region)
    options: dict[str, Any] = {} if market == "on-demand" else {"InstanceMarketOptions": {"MarketType": market}}
    image = client.describe_images()["Images"][0]["ImageId"]
    client.run_instances(ImageId=image, InstanceType=machine_type, MinCount=count, MaxCount=count, **options)


def check(*machine_types: str, market: str = "on-demand", region: str = "us-east-1") -> None:
    clients = Clients(session())
    quotas.check(
        clients.ec2(region),
        clients.service_quotas(region),
        region=region,
        market=market,
        machine_types=machine_types,
    )


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_the_numbers(aws: Aws) -> None:
    aws.control.set_quota("us-east-1", "L-DB2E81BA", 12)
    run("g4dn.xlarge")  # 4 vCPUs
    check("g4dn.xlarge", "g5.xlarge")
    with pytest.raises(ProvisionError) as refused:
        check("g4dn.xlarge", "g5.2xlarge")
    assert (refused.value.error_class, refused.value.scope) == ("quota", "region")
    assert str(refused.value) == (
        "us-east-1: 12 vCPUs more are needed, but Running On-Demand G and VT instances (L-DB2E81BA) allows 12 "
        "and 4 are in use; ask for more: "
        "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA"
    )


def test_spot_and_on_demand_families_and_regions_are_apart(aws: Aws) -> None:
    for code in ("L-DB2E81BA", "L-3819A6DF", "L-417A185B"):
        aws.control.set_quota("us-east-1", code, 8)
    run("g4dn.xlarge", 2)
    check("g4dn.xlarge", market="spot")
    check("g4dn.xlarge", region="eu-west-1")
    with pytest.raises(ProvisionError, match="All G and VT Spot"):
        check("g4dn.xlarge", "g6.2xlarge", market="spot")
    run("g4dn.xlarge", 2, market="spot")
    with pytest.raises(ProvisionError, match="8 are in use"):
        check("g4dn.xlarge", market="spot")
    with pytest.raises(ProvisionError, match="On-Demand P instances"):
        check("p4d.24xlarge")


def test_a_quota_of_zero_is_said_without_looking_at_machines(aws: Aws) -> None:
    aws.control.set_quota("us-east-1", "L-C4BD4855", 0)
    with pytest.raises(ProvisionError, match="allows 0; ask for more"):
        check("p5.48xlarge", market="spot")
    assert aws.control.calls("DescribeInstances") == []


@pytest.mark.parametrize("action", ["GetServiceQuota", "DescribeInstances"])
def test_a_failed_quota_query_does_not_stop_a_launch(aws: Aws, action: str, caplog: pytest.LogCaptureFixture) -> None:
    aws.control.set_quota("us-east-1", "L-DB2E81BA", 5)
    run("g4dn.xlarge")
    code = "AccessDeniedException" if action == "GetServiceQuota" else "UnauthorizedOperation"
    aws.control.fail(action, error(code, 403), times=None)
    quotas._say_once.cache_clear()
    check("g4dn.xlarge")
    check("g4dn.xlarge")
    assert len([record for record in caplog.records if "L-DB2E81BA" in record.message]) == 1


def test_markets_and_families_without_a_known_quota_are_left_to_ec2(aws: Aws) -> None:
    check("p5.48xlarge", market="reservation")
    check("p6-b200.48xlarge", market="spot")
    check("unheard.of")
    assert aws.control.calls() == []


# --- the price of an attempt ------------------------------------------------------------------------------------------


def offer(zone: str | None = "use1-az1", market: str = "spot", nodes: int = 2) -> Offer:
    role = RoleOffer("worker", nodes, "g6.xlarge", "L4", Fraction(1), 4, 16.0, Decimal("0.2"))
    return Offer("aws", "us-east-1", zone, market, (role,), 100.0, Decimal("0.02"), Decimal("0.42"), "2026-11-20")


def test_the_spot_price_at_launch_is_the_zone_s_with_all_machines_and_disks(aws: Aws) -> None:
    zones = session().client("ec2", region_name="us-east-1").describe_availability_zones()["AvailabilityZones"]
    amounts = {zone["ZoneId"]: Decimal(number) / 10 for number, zone in enumerate(zones, 3)}
    for zone in zones:
        aws.control.set_price("g6.xlarge", zone["ZoneName"], str(amounts[zone["ZoneId"]]))
    provisioner = AwsProvisioner(session())
    assert provisioner.price(offer()) == 2 * amounts["use1-az1"] + Decimal("0.02")
    sold = [row["zones"].split() for row in shipped("places_aws") if (row["offering"], row["region"]) == _G6]
    assert provisioner.price(offer(zone=None)) == 2 * max(amounts[zone] for zone in sold[0]) + Decimal("0.02")


_G6 = ("g6.xlarge", "us-east-1")


def test_list_prices_and_unavailable_prices_stay_as_planned(aws: Aws) -> None:
    provisioner = AwsProvisioner(session())
    assert provisioner.price(offer(market="on-demand")) is None
    assert aws.control.calls() == []
    assert provisioner.price(offer(zone="use1-az99")) is None
    aws.control.fail("DescribeSpotPriceHistory", error("UnauthorizedOperation", 403), times=None)
    assert AwsProvisioner(session()).price(offer()) is None
