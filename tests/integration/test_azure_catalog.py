"""Tests of `cloudgpu catalog refresh --cloud azure`, quota checks before a launch and Spot prices, with faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from cloudgpu.jobspecs.catalog import csv_tables as catalog_read
from cloudgpu.jobspecs.catalog import table_overrides
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners.azure.catalog import prices, quotas
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.azure import Azure, AzureControl
from cloudgpu.tests.standins.clocks import FastClock, today
from cloudgpu.tests.standins.faults import HANG, HTML, RESET, Fault, error

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGIONS = ("eastus", "westeurope")
HERE = "eastus"
TABLES = ("places_azure", "machine_types_azure", "prices_azure", "quotas_azure")
MADE_OF = {
    "skus.list": {"places_azure", "machine_types_azure"},
    "prices.list": {"prices_azure"},
    "locations.usages": {"quotas_azure"},
}
"""Tables that cannot be refreshed if this call fails."""
T4, A100, H100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4", "Standard_ND96isr_H100_v5"
JOB = """\
name: digits
resources: {accelerator: A100-80GB, cloud: azure, region: eastus, market: [spot, on-demand]}
code: null
run: "true"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Azure, dict[str, str]]]:
    with Azure() as azure:
        yield azure, azure.environ(tmp_path_factory.mktemp("az"))


@pytest.fixture
def azure(server: tuple[Azure, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AzureControl:
    stand_in, environ = server
    stand_in.control.reset()
    for name, value in {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    quotas._say_once.cache_clear()
    return stand_in.control


def cloudgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([CLOUDGPU, *arguments], capture_output=True, text=True, check=False, timeout=180)
    assert "Traceback" not in done.stderr
    return done


def refresh(*regions: str) -> tuple[int, dict[str, str], str]:
    """Run `catalog refresh`; return its exit code, the state of each table, and stderr."""
    where = [word for region in regions or REGIONS for word in ("--region", region)]
    done = cloudgpu("catalog", "refresh", "--cloud", "azure", "--json", *where)
    outcomes = json.loads(done.stdout) if done.stdout else []
    return done.returncode, {one["table"]: one["state"] for one in outcomes}, done.stderr


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a refreshed table."""
    found = table_overrides.load(table_overrides.path_of(table))
    assert found is not None
    return read(found.text)


def shipped(table: str) -> list[dict[str, str]]:
    return read(catalog_read.shipped_text(table))


def read(text: str) -> list[dict[str, str]]:
    columns = text.partition("\n")[0].split(",")
    return [dict(zip(columns, row, strict=True)) for row in catalog_read.parse(text, *columns)]


def price(sku: str, region: str = HERE) -> tuple[str, str]:
    """Return the refreshed on-demand and Spot prices, in USD/h."""
    found = [row for row in rows("prices_azure") if (row["sku"], row["region"]) == (sku, region)]
    return (found[0]["on_demand_usd_h"], found[0]["spot_usd_h"]) if found else ("", "")


def zones(machine_type: str, region: str = HERE) -> list[str] | None:
    """Return the refreshed zones of a machine type, or None if it is not sold in the region."""
    [row] = [row for row in rows("machine_types_azure") if row["machine_type"] == machine_type]
    found = {(one["offering"], one["region"]): one["zones"].split() for one in rows("places_azure")}
    return found.get((row["offering"], region))


def known(machine_type: str) -> dict[str, str]:
    [row] = [row for row in rows("machine_types_azure") if row["machine_type"] == machine_type]
    return row


# --- refresh ----------------------------------------------------------------------------------------------------------


def test_all_tables_are_refreshed_and_planned_with(azure: AzureControl) -> None:
    azure.set_price(A100, HERE, "spot", "0.75")
    azure.set_price(A100, HERE, "on-demand", "3.5")
    begun = today()
    code, states, said = refresh()
    assert (code, states) == (0, dict.fromkeys(TABLES, "refreshed")), said
    done = cloudgpu("plan", "job.yaml", "--json")
    found = {(offer["market"], offer["roles"][0]["machine_type"]): offer for offer in json.loads(done.stdout)["offers"]}
    assert Decimal(found["spot", A100]["roles"][0]["price_usd_h"]) == Decimal("0.75")
    assert Decimal(found["on-demand", A100]["roles"][0]["price_usd_h"]) == Decimal("3.5")
    day = found["spot", A100]["price_date"]
    assert begun <= day <= today()
    assert f"note: tables refreshed {day}" in done.stderr
    assert cloudgpu("catalog", "show").stdout.count("refreshed") == len(TABLES)


def test_what_azure_says_is_what_the_shipped_tables_say(azure: AzureControl) -> None:
    """The stand-in serves the shipped sizes and places, so a refresh must reproduce the shipped tables."""
    assert cloudgpu("catalog", "refresh", "--cloud", "azure").returncode == 0
    volatile = {"source", "date", "offering"}
    unknown = {row["machine_type"] for row in shipped("machine_types_azure") if not row["memory_gb"]}
    assert unknown == {name for name in unknown if "RTXPRO6000" in name}
    before, after = (
        {
            row["machine_type"]: {k: v for k, v in row.items() if k not in volatile}
            for row in table
            if row["machine_type"] not in unknown
        }
        for table in (shipped("machine_types_azure"), rows("machine_types_azure"))
    )
    assert after == before
    series = {row["machine_type"]: row["offering"] for row in shipped("machine_types_azure")}
    sold = {row["machine_type"]: row["offering"] for row in rows("machine_types_azure")}
    was = {(row["offering"], row["region"]) for row in shipped("places_azure")}
    now = {(row["offering"], row["region"]) for row in rows("places_azure")}
    for name, offering in series.items():
        wanted = {region for one, region in was if one == offering}
        assert {region for one, region in now if one == sold[name]} == wanted, name
        if wanted and name not in unknown:
            assert sold[name] in (name, offering)


def test_a_fraction_of_a_gpu_stays_one_though_azure_lists_a_whole_one(azure: AzureControl) -> None:
    assert refresh()[0] == 0
    assert (known("Standard_NV6ads_A10_v5")["counts"], known("Standard_NV36ads_A10_v5")["counts"]) == ("1/6", "1")


def test_zones_are_the_subscription_s_own_and_of_each_size(azure: AzureControl) -> None:
    azure.set_sku(T4, HERE, zones=["1", "2", "3"], restricted=["2"])
    azure.set_sku("Standard_NC64as_T4_v3", HERE, zones=["3"])
    assert refresh()[0] == 0
    assert zones(T4) == ["1", "3"]
    assert zones("Standard_NC64as_T4_v3") == ["3"]
    assert zones("Standard_NC8as_T4_v3") == ["1", "2", "3"]


@pytest.mark.parametrize("reason", ["NotAvailableForSubscription", "QuotaId"])
def test_restricted_sizes_are_left_out_and_reported(azure: AzureControl, reason: str) -> None:
    azure.set_sku(A100, HERE, restricted=[], reason=reason)
    azure.set_sku(H100, HERE, zones=["1", "2"], restricted=["1", "2"], reason=reason)
    code, states, said = refresh()
    assert (code, set(states.values())) == (0, {"refreshed"}), said
    assert zones(A100) is None and zones(H100) is None
    assert zones("Standard_NC48ads_A100_v4") == ["1", "2", "3"]
    assert zones(A100, "westeurope") is not None
    assert f"not sold to this subscription: {A100} in eastus, {H100} in eastus" in said
    assert price(A100) == ("", "") and price(A100, "westeurope") != ("", "")
    offers = json.loads(cloudgpu("plan", "job.yaml", "--json").stdout)["offers"]
    assert A100 not in {offer["roles"][0]["machine_type"] for offer in offers}


def test_a_subscription_that_may_have_next_to_nothing_is_no_odd_answer(azure: AzureControl) -> None:
    """A new subscription is restricted for most GPU sizes until its owner asks Azure's support for access."""
    for row in shipped("machine_types_azure"):
        if row["machine_type"] != T4:
            azure.set_sku(row["machine_type"], HERE, restricted=[])
    code, states, said = refresh(HERE)
    assert (code, states) == (0, dict.fromkeys(TABLES, "refreshed")), said
    assert [row["offering"] for row in rows("places_azure") if row["region"] == HERE] == ["NCasT4_v3", T4]
    assert "more; ask Azure's support for access" in said


def test_spot_is_where_azure_says_so(azure: AzureControl) -> None:
    azure.set_sku(T4, HERE, capabilities={"LowPriorityCapable": "False"})
    assert refresh(HERE)[0] == 0
    assert known(T4)["markets"] == "on-demand spot reservation"  # other regions still sell it as Spot
    for region in {row["region"] for row in shipped("places_azure")}:
        azure.set_sku(T4, region, capabilities={"LowPriorityCapable": "False"})
    assert cloudgpu("catalog", "refresh", "--cloud", "azure").returncode == 0
    assert known(T4)["markets"] == "on-demand reservation"
    assert price(T4) == ("0.526", "")


def test_what_can_be_reserved_is_what_azure_says_can_be(azure: AzureControl) -> None:
    azure.set_sku(H100, HERE, capabilities={"CapacityReservationSupported": "True"})
    assert refresh(HERE)[0] == 0
    assert known(H100)["markets"] == "on-demand spot reservation"
    for region in {row["region"] for row in shipped("places_azure")}:
        azure.set_sku(H100, region, capabilities={"CapacityReservationSupported": "False"})
    assert cloudgpu("catalog", "refresh", "--cloud", "azure").returncode == 0
    assert known(H100)["markets"] == "on-demand spot"


def test_new_sizes_are_taken_for_what_their_family_carries(azure: AzureControl) -> None:
    azure.copy_sku("Standard_NC128ads_A100_v4", "Standard_NC96ads_A100_v4")
    azure.copy_sku("Standard_NV18adms_A10_v5", "Standard_NV18ads_A10_v5")  # a family with fractions of GPUs
    azure.add_price("Standard_NC128ads_A100_v4", HERE, "20")
    code, _, said = refresh(HERE)
    assert code == 0
    new, sister = known("Standard_NC128ads_A100_v4"), known("Standard_NC96ads_A100_v4")
    same = ("accelerator", "counts", "vcpus", "memory_gb", "markets")
    assert {name: new[name] for name in same} == {name: sister[name] for name in same}
    assert new["offering"] == "Standard_NC128ads_A100_v4"
    assert zones("Standard_NC128ads_A100_v4") == ["1", "2", "3"]
    assert price("Standard_NC128ads_A100_v4") == ("20.0", "")
    assert "left out, for the tables do not know what they carry: Standard_NV18adms_A10_v5" in said


def test_other_ways_to_buy_are_not_taken_for_the_price(azure: AzureControl) -> None:
    """The price list also has Windows, Cloud Services, Low Priority, DevTest and reservation meters of the size."""
    azure.add_price(T4, HERE, "0.01", productName="Virtual Machines NCasT4 v3 Series Dedicated Host")
    azure.add_price(T4, HERE, "0.01", effectiveStartDate="2999-01-01T00:00:00Z")
    azure.add_price(T4, HERE, "0.01", effectiveEndDate="2020-01-01T00:00:00Z")
    azure.add_price(T4, HERE, "0.01", tierMinimumUnits=100.0)
    assert refresh(HERE)[0] == 0
    [listed] = [row for row in shipped("prices_azure") if (row["sku"], row["region"]) == (T4, HERE)]
    amount = Decimal(listed["on_demand_usd_h"])
    assert [Decimal(one) for one in price(T4)] == [amount, amount / 5]


@pytest.mark.parametrize(
    ("usd", "changes", "said"),
    [
        ("0.2", {}, f"{T4} on-demand: 2 prices in eastus"),
        ("0.2", {"unitOfMeasure": "1 Month"}, "NC4as T4 v3 in USD for 1 Month"),
        ("0.2", {"currencyCode": "EUR"}, "NC4as T4 v3 in EUR for 1 Hour"),
        ("0", {"meterName": "NC4as T4 v3 Spot", "skuName": "NC4as T4 v3 Spot"}, "a price of 0.0 USD/h in eastus"),
        ("0.2", {"retailPrice": None}, "not understood (ValueError: a price of None)"),
    ],
    ids=["two", "month", "euro", "free", "none"],
)
def test_implausible_entries_are_reported(
    azure: AzureControl, usd: str, changes: dict[str, str | None], said: str
) -> None:
    azure.add_price(T4, HERE, usd, **changes)
    code, states, stderr = refresh(HERE)
    assert (code, states["prices_azure"]) == (0, "refreshed")
    assert said in stderr
    assert price(T4) == (("", "0.1052") if not changes else ("0.526", "0.1052"))


def test_other_regions_keep_what_is_known_of_them(azure: AzureControl) -> None:
    azure.set_quota(HERE, quotas.SPOT, 8)
    azure.set_sku(T4, HERE, zones=["2"])
    azure.set_price(T4, HERE, "spot", "0.2")
    assert refresh(HERE)[0] == 0
    azure.set_quota(HERE, quotas.SPOT, 16)
    azure.set_quota("westeurope", quotas.SPOT, 32)
    azure.set_sku(T4, HERE, zones=["1"])
    azure.set_price(T4, HERE, "spot", "0.3")
    azure.set_price(T4, "westeurope", "spot", "0.4")
    assert refresh("westeurope")[0] == 0
    assert (zones(T4), zones(T4, "westeurope")) == (["2"], ["1", "2", "3"])
    assert (price(T4)[1], price(T4, "westeurope")[1]) == ("0.2", "0.4")
    assert zones(T4, "australiaeast") == []  # as shipped
    known = [row for row in shipped("prices_azure") if row["region"] == "australiaeast"]
    assert [row for row in rows("prices_azure") if row["region"] == "australiaeast"] == known != []
    limits = {row["region"]: row["vcpus"] for row in rows("quotas_azure") if row["code"] == quotas.SPOT}
    assert limits == {HERE: "8", "westeurope": "32"}


@pytest.mark.parametrize("call", MADE_OF)
def test_a_table_that_cannot_be_had_is_kept_and_named_with_what_failed(azure: AzureControl, call: str) -> None:
    refresh()
    before = {name: table_overrides.path_of(name).read_bytes() for name in TABLES}
    azure.fail(call, error("AuthorizationFailed", 403, f"no permission for {call}"), times=None)
    code, states, said = refresh()
    assert code == 6
    assert {table for table, state in states.items() if state == "kept"} == MADE_OF[call]
    for table in MADE_OF[call]:
        assert f"{table}: ask for" in said and f"no permission for {call}" in said
        assert table_overrides.path_of(table).read_bytes() == before[table]


def test_machine_types_that_were_kept_are_found_in_places_that_were_not(azure: AzureControl) -> None:
    """Refreshed places name sizes, while the shipped machine types name series: planning must join them."""
    refresh(HERE)
    path = table_overrides.path_of("machine_types_azure")
    path.unlink()
    offers = json.loads(cloudgpu("plan", "job.yaml", "--json").stdout)["offers"]
    assert {offer["roles"][0]["machine_type"] for offer in offers} >= {A100}


def test_short_troubles_are_waited_out(azure: AzureControl) -> None:
    for call in MADE_OF:
        azure.fail(call, HTML)
        azure.fail(call, RESET)
    azure.fail("prices.list", error("TooManyRequests", 429, "Too many requests", **{"Retry-After": "1"}))
    azure.fail("locations.list", error("ServerTimeout", 503))
    for call in ("skus.list", "locations.list", "prices.list"):
        azure.fail(call, Fault("html", status=200))
    code, states, said = refresh(HERE)
    assert (code, set(states.values())) == (0, {"refreshed"}), said


def test_no_credentials_and_an_unknown_region_are_one_clear_message(
    azure: AzureControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, states, said = refresh("eastus9")
    assert (code, states, "Azure has no region eastus9" in said) == (4, {}, True), said
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    code, states, said = refresh(HERE)
    assert (code, states) == (6, {}), said
    assert "log in" in said or "AZURE_CLIENT_SECRET" in said
    assert list((tmp_path / "home").rglob("*.csv")) == []


def test_every_call_only_reads(azure: AzureControl) -> None:
    refresh(HERE)
    assert {call.action for call in azure.calls()} - {"token"} == {*MADE_OF, "locations.list"}


# --- quotas -----------------------------------------------------------------------------------------------------------


def check(*machine_types: str, market: str = "on-demand", region: str = HERE) -> None:
    quotas.check(Clients(FastClock()), region=region, market=market, machine_types=machine_types)


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_the_numbers(azure: AzureControl) -> None:
    azure.set_quota(HERE, "Standard NCASv3_T4 Family", 12)
    check(T4, "Standard_NC8as_T4_v3")
    with pytest.raises(ProvisionError) as refused:
        check(T4, T4, "Standard_NC8as_T4_v3")
    assert (refused.value.error_class, refused.value.scope) == ("quota", "region")
    assert str(refused.value) == (
        "eastus: 16 vCPUs more are needed, but Standard NCASv3_T4 Family vCPUs (Standard NCASv3_T4 Family) allows 12; "
        "ask for more: https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"
    )
    check(T4, T4, "Standard_NC8as_T4_v3", region="westeurope")
    check(A100)


def test_all_families_together_have_a_limit_and_spot_has_one_of_its_own(azure: AzureControl) -> None:
    azure.set_quota(HERE, quotas.TOTAL, 20)
    check(T4)
    with pytest.raises(ProvisionError, match=r"24 vCPUs more are needed, but Total Regional vCPUs \(cores\) allows 20"):
        check(A100)
    check(A100, market="spot")
    azure.set_quota(HERE, quotas.SPOT, 3)
    with pytest.raises(ProvisionError, match=r"4 vCPUs more are needed, but .*\(lowPriorityCores\) allows 3"):
        check(T4, market="spot")


def test_names_of_families_are_compared_as_azure_spells_them(azure: AzureControl) -> None:
    """Family names are compared regardless of case: Azure spells `standard` and `Standard NDAMSv4_A100Family`."""
    azure.set_quota(HERE, "Standard NDAMSv4_A100Family", 95)
    with pytest.raises(ProvisionError, match=r"96 vCPUs more are needed, but .* allows 95"):
        check("Standard_ND96amsr_A100_v4")


def test_reserved_machines_and_unknown_sizes_are_not_asked_about(azure: AzureControl) -> None:
    check(H100, market="reservation")
    check("Standard_D2s_v5")
    assert azure.calls("locations.usages") == []


@pytest.mark.parametrize("fault", [error("AuthorizationFailed", 403, "no permission"), HTML], ids=["denied", "html"])
def test_a_failed_quota_query_does_not_stop_a_launch(
    azure: AzureControl, fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    azure.set_quota(HERE, "Standard NCASv3_T4 Family", 0)
    azure.fail("locations.usages", fault, times=None)  # type: ignore[arg-type]
    check(T4)
    check(T4)
    warnings = [record.message for record in caplog.records if "not checked before launching" in record.message]
    assert len(warnings) == 1 and "ask for the quotas of eastus" in warnings[0]


# --- the price of an attempt ------------------------------------------------------------------------------------------


def offer(market: str = "spot", nodes: int = 2) -> Offer:
    role = RoleOffer("worker", nodes, T4, "T4", Fraction(1), 4, 28.0, Decimal("0.1"))
    return Offer("azure", HERE, "1", market, (role,), 100.0, Decimal("0.02"), Decimal("0.22"), "2026-11-20")


def test_the_spot_price_at_launch_is_the_region_s_with_all_machines_and_disks(azure: AzureControl) -> None:
    azure.set_price(T4, HERE, "spot", "0.2345")
    clients = Clients(FastClock())
    book = prices.PriceList(clients.account, clients.clock)
    assert prices.offer_price(book, offer()) == Decimal("0.489")
    assert prices.offer_price(book, offer("on-demand")) is None
    assert prices.offer_price(book, offer()._replace(region="brazilsouth2")) is None


def test_an_unavailable_price_is_an_error_and_no_price(azure: AzureControl) -> None:
    clients = Clients(FastClock())
    book = prices.PriceList(clients.account, clients.clock)
    azure.fail("prices.list", RESET, times=None)
    with pytest.raises(ProvisionError, match=f"ask for prices of {T4}") as failed:
        prices.offer_price(book, offer())
    assert failed.value.error_class == "transient"


def test_a_price_list_that_hangs_is_given_up(azure: AzureControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_READ_S", 0.5)
    clients = Clients(FastClock())
    azure.fail("prices.list", HANG, times=None)
    with pytest.raises(ProvisionError, match=f"ask for prices of {T4}"):
        prices.offer_price(prices.PriceList(clients.account, clients.clock), offer())
