"""`cloudgpu catalog refresh --cloud gcp` and quota checks before a launch, over the wire, with injected faults."""

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
from cloudgpu.provisioners.base import NodeRequest, ProvisionError
from cloudgpu.provisioners.gcp import rest
from cloudgpu.provisioners.gcp.account import Account
from cloudgpu.provisioners.gcp.catalog import prices, quotas
from cloudgpu.provisioners.gcp.rest import Rest
from cloudgpu.provisioners.shared.clock import SystemClock
from cloudgpu.tests.standins.clocks import FastClock, today
from cloudgpu.tests.standins.faults import HANG, HTML, RESET, error
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcp_catalog.control import COMPUTE, VERTEX, CatalogControl

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGIONS = ("us-central1", "europe-west4")
HERE = "us-central1"
TABLES = ("machine_types_gcp", "places_gcp", "prices_gcp", "quotas_gcp", "quotas_vertex")
MADE_OF = {
    "machineTypes.list": {"machine_types_gcp", "places_gcp", "prices_gcp"},
    "acceleratorTypes.list": {"machine_types_gcp", "places_gcp"},
    "services.skus.list": {"prices_gcp"},
    "projects.get": {"quotas_gcp"},
    "projects.locations.services.quotaInfos.get": {"quotas_gcp", "quotas_vertex"},
}
"""API method -> tables that cannot be refreshed without it."""
FAMILY = "GPUS-PER-GPU-FAMILY-per-project-region"
JOB = """\
name: digits
resources: {accelerator: A100-80GB, cloud: gcp, region: us-central1, market: [spot, on-demand]}
code: null
run: "true"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gcp, dict[str, str]]]:
    with Gcp() as gcp:
        yield gcp, gcp.environ(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def gcp(server: tuple[Gcp, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CatalogControl:
    stand_in, environ = server
    stand_in.control.reset()
    for name, value in {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    quotas._say_once.cache_clear()
    return CatalogControl(stand_in.url)


def cloudgpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([CLOUDGPU, *arguments], capture_output=True, text=True, check=False, timeout=180)
    assert "Traceback" not in done.stderr
    return done


def refresh(*regions: str) -> tuple[int, dict[str, str], str]:
    """Refresh the tables; return the exit code, each table's state and stderr."""
    where = [word for region in regions or REGIONS for word in ("--region", region)]
    done = cloudgpu("catalog", "refresh", "--cloud", "gcp", "--json", *where)
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
    """Return the refreshed on-demand and Spot prices."""
    found = [row for row in rows("prices_gcp") if (row["sku"], row["region"]) == (sku, region)]
    return (found[0]["on_demand_usd_h"], found[0]["spot_usd_h"]) if found else ("", "")


# --- refresh ----------------------------------------------------------------------------------------------------------


def test_all_tables_are_refreshed_and_planned_with(gcp: CatalogControl) -> None:
    gcp.set_price("Nvidia Tesla A100 80GB GPU attached to Spot Preemptible VMs running in Americas", "1.5")
    begun = today()
    code, states, said = refresh()
    assert (code, states) == (0, dict.fromkeys(TABLES, "refreshed")), said
    done = cloudgpu("plan", "job.yaml", "--json")
    offers = {offer["market"]: offer for offer in reversed(json.loads(done.stdout)["offers"])}
    # 12 vCPUs, 170 GB of memory, the GPU and 375 GiB of local SSD at the stand-in's list prices
    spot = 12 * Decimal("0.0167") + 170 * Decimal("0.0022") + Decimal("1.5") + 375 * Decimal("0.048") / 730
    on_demand = 12 * Decimal("0.031611") + 170 * Decimal("0.004237") + Decimal("3.92808") + 375 * Decimal("0.08") / 730
    assert Decimal(offers["spot"]["roles"][0]["price_usd_h"]) == round(spot, 6)
    assert Decimal(offers["on-demand"]["roles"][0]["price_usd_h"]) == round(on_demand, 6)
    day = offers["spot"]["price_date"]
    assert begun <= day <= today()
    assert f"note: tables refreshed {day}" in done.stderr
    assert cloudgpu("catalog", "show").stdout.count("refreshed") == len(TABLES)


def test_a_refresh_reproduces_the_shipped_tables(gcp: CatalogControl) -> None:
    """The stand-in serves the machine types and places of the shipped tables, so a refresh must reproduce them."""
    assert refresh()[0] == 0
    volatile = {"source", "date"}
    before, after = (
        [{k: v for k, v in row.items() if k not in volatile} for row in table]
        for table in (shipped("machine_types_gcp"), rows("machine_types_gcp"))
    )
    assert sorted(after, key=str) == sorted(before, key=str)
    known = {(row["offering"], row["region"]): set(row["zones"].split()) for row in shipped("places_gcp")}
    found = {(row["offering"], row["region"]): set(row["zones"].split()) for row in rows("places_gcp")}
    assert found.keys() == known.keys()
    assert [key for key in known if known[key] and found[key] != known[key]] == []


def test_a_computed_price_equals_the_shipped_price(gcp: CatalogControl) -> None:
    """Google publishes the component prices of these types: their sum must equal the price in the shipped table."""
    refresh(HERE)
    for sku, markets in {
        **dict.fromkeys(("n1-standard-4", "n1-highmem-96", "nvidia-tesla-t4"), 2),
        **dict.fromkeys(("a2-highgpu-1g", "a2-ultragpu-8g", "g2-standard-4"), 1),
    }.items():
        [known] = [row for row in shipped("prices_gcp") if (row["sku"], row["region"]) == (sku, HERE)]
        published = [Decimal(known[column]) for column in ("on_demand_usd_h", "spot_usd_h")][:markets]
        assert [Decimal(one) for one in price(sku)][:markets] == published, sku


def test_prices_of_other_purchase_options_are_ignored(gcp: CatalogControl) -> None:
    """The price list also has DWS, calendar mode, commitments, sole tenancy and workstations for the same GPUs, cheaper
    or dearer. It labels the A4's Spot price OnDemand. It has no host price for the H200, so the price of the whole
    machine is unknown."""
    refresh(HERE)
    assert price("nvidia-tesla-t4") == ("0.35", "0.175")
    assert price("a4-highgpu-8g")[1] == "39.6336"
    assert price("a3-ultragpu-8g") == ("", "")
    host = 208 * Decimal("0.026924") + 1872 * Decimal("0.002344") + 16 * 375 * Decimal("0.08") / 730
    assert Decimal(price("a3-megagpu-8g")[0]) == round(host + 8 * Decimal("10.344276"), 6)
    # not sold on demand, although the list has a price
    assert price("a3-highgpu-1g")[0] == "" and price("a3-highgpu-1g")[1] != ""


def test_a_part_of_a_gpu_costs_a_part(gcp: CatalogControl) -> None:
    refresh(HERE)
    whole = 48 * Decimal("0.03") + 180 * Decimal("0.0034") + Decimal("2.45")
    eighth = 6 * Decimal("0.03") + 22 * Decimal("0.0034") + Decimal("2.45") / 8
    assert Decimal(price("g4-standard-48")[0]) == whole
    assert Decimal(price("g4-standard-6")[0]) == round(eighth, 6)


def test_two_prices_for_one_sku_make_it_unknown_and_are_reported(gcp: CatalogControl) -> None:
    gcp.add_sku("Nvidia L4 GPU running in Iowa", HERE, "0.1")
    code, states, said = refresh(HERE)
    assert (code, states["prices_gcp"]) == (0, "refreshed")
    assert price("g2-standard-4")[0] == "" and price("g2-standard-4")[1] != ""
    assert "Nvidia L4 GPU running in Iowa: two prices in us-central1" in said


@pytest.mark.parametrize(
    ("more", "usd"), [({"unit": "mo"}, "0.3"), ({}, "0"), ({"unit": "GiBy.h"}, "0.3")], ids=["unit", "free", "gib"]
)
def test_a_price_in_another_unit_is_no_price(gcp: CatalogControl, more: dict[str, str], usd: str) -> None:
    gcp.add_sku("Nvidia Tesla P4 GPU running in Nowhere", "me-west1", usd, **more)
    clock = SystemClock()
    book = prices.read(Rest(Account(clock), clock))
    assert book.gpu("nvidia-tesla-p4", "me-west1", "on-demand") is None
    assert book.odd == {"Nvidia Tesla P4 GPU running in Nowhere"}


def test_new_sizes_are_added_and_what_is_unlike_all_known_is_left_out(gcp: CatalogControl) -> None:
    def made(gpu: str) -> dict[str, object]:
        carried = {"guestAcceleratorType": gpu, "guestAcceleratorCount": 2}
        return {"guestCpus": 40, "memoryMb": 163_840, "architecture": "X86_64", "accelerators": [carried]}

    gcp.describe("machineTypes", "g2-standard-40", ["us-central1-a"], made("nvidia-l4"))
    gcp.describe("machineTypes", "a9-highgpu-2g", ["us-central1-a"], made("nvidia-x900"))
    code, _, said = refresh(HERE)
    assert code == 0
    [new] = [row for row in rows("machine_types_gcp") if row["machine_type"] == "g2-standard-40"]
    assert (new["accelerator"], new["counts"], new["vcpus"], new["memory_gb"]) == ("L4", "2", "40", "160")
    [sister] = [row for row in rows("machine_types_gcp") if row["machine_type"] == "g2-standard-48"]
    assert (new["markets"], new["offering"]) == (sister["markets"], "g2-standard-40")
    assert {"offering": "g2-standard-40", "region": HERE, "zones": "us-central1-a"} in rows("places_gcp")
    host = 40 * Decimal("0.02499") + 160 * Decimal("0.002927")
    assert Decimal(price("g2-standard-40")[0]) == host + 2 * Decimal("0.56004")
    assert "a9-highgpu-2g (nvidia-x900)" in said
    assert not [row for row in rows("machine_types_gcp") if row["machine_type"].startswith("a9-")]


def test_a_variant_of_a_known_size_is_sold_as_that_size_is(gcp: CatalogControl) -> None:
    """Names of variants have one part more than their family's sizes: `a3-highgpu-8g-nolssd`."""

    def made(gpu: str, memory_gb: int) -> dict[str, object]:
        carried = {"guestAcceleratorType": gpu, "guestAcceleratorCount": 8}
        return {"guestCpus": 208, "memoryMb": memory_gb * 1024, "architecture": "X86_64", "accelerators": [carried]}

    gcp.describe("machineTypes", "a2-highgpu-8g-lowmem", ["us-central1-a"], made("nvidia-tesla-a100", 340))
    gcp.describe("machineTypes", "a3-highgpu-8g-lowmem", ["us-central1-a"], made("nvidia-h100-80gb", 936))
    gcp.describe("machineTypes", "a3-highgpu-8g-nolssd", ["us-central1-a"], made("nvidia-h100-80gb", 1872))
    assert refresh(HERE)[0] == 0
    found = {row["machine_type"]: row for row in rows("machine_types_gcp")}
    assert found["a2-highgpu-8g-lowmem"]["markets"] == found["a2-highgpu-8g"]["markets"]
    assert found["a3-highgpu-8g-lowmem"]["markets"] == found["a3-highgpu-8g"]["markets"], "not as the smaller ones are"
    assert {"offering": "a3-highgpu-8g-nolssd", "region": HERE, "zones": "us-central1-a"} in rows("places_gcp")


def test_ends_of_support_that_google_announces_are_taken_over(gcp: CatalogControl) -> None:
    zones = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"]
    ends = {"state": "DEPRECATED", "deleted": "2027-03-01T00:00:00-08:00"}
    gcp.describe("acceleratorTypes", "nvidia-tesla-v100", zones, {"deprecated": ends})
    gcp.describe("machineTypes", "a2-megagpu-16g", zones, {"deprecated": {"state": "OBSOLETE"}})
    refresh(HERE)
    found = {(row["machine_type"], row["accelerator"]): row for row in rows("machine_types_gcp")}
    v100, a2 = found["n1-standard-8", "V100-16GB"], found["a2-megagpu-16g", "A100-40GB"]
    assert (v100["status"], v100["ends"], v100["markets"]) == (
        *("deprecated", "2027-03-01"),
        "on-demand spot reservation",
    )
    assert (a2["status"], a2["markets"]) == ("retired", "")
    assert found["n1-standard-8", ""]["status"] == "active"
    assert found["n1-standard-8", "P100"]["status"] == "retired"  # has already ended, whatever the API reports


def test_types_missing_in_a_zone_are_not_offered_there(gcp: CatalogControl) -> None:
    gcp.describe("machineTypes", "a2-ultragpu-8g", ["us-central1-a", "us-central1-c"], None)
    gcp.describe("acceleratorTypes", "nvidia-tesla-t4", ["us-central1-a", "us-central1-b"], None)
    refresh(HERE)
    found = {row["offering"]: row["zones"].split() for row in rows("places_gcp") if row["region"] == HERE}
    known = {row["offering"]: row["zones"].split() for row in shipped("places_gcp") if row["region"] == HERE}
    assert (
        found["n1+nvidia-tesla-t4"]
        == [zone for zone in known["n1+nvidia-tesla-t4"] if zone[-1] not in "ab"]
        != known["n1+nvidia-tesla-t4"]
    )
    # No zone has all sizes of the family, so zones with any size are listed.
    assert found["a2-ultragpu"] == known["a2-ultragpu"]


def test_other_regions_keep_what_is_known_of_them(gcp: CatalogControl) -> None:
    gcp.set_cloud_quota(VERTEX, "CustomModelTrainingT4GPUsPerProjectPerRegion", ({}, 3))
    refresh(HERE)
    gcp.set_price("Nvidia Tesla T4 GPU running in Americas", "0.5")
    gcp.set_price("Nvidia Tesla T4 GPU running in Netherlands", "0.6")
    gcp.set_cloud_quota(VERTEX, "CustomModelTrainingT4GPUsPerProjectPerRegion", ({}, 5))
    refresh("europe-west4")
    assert (price("nvidia-tesla-t4")[0], price("nvidia-tesla-t4", "europe-west4")[0]) == ("0.35", "0.6")
    known = [row for row in shipped("prices_gcp") if row["region"] == "asia-east1"]
    assert [row for row in rows("prices_gcp") if row["region"] == "asia-east1"] == known != []
    limits = {
        row["region"]: row["limit"]
        for row in rows("quotas_vertex")
        if (row["accelerator"], row["market"]) == ("NVIDIA_TESLA_T4", "on-demand")
    }
    assert limits == {HERE: "3", "europe-west4": "5"}


def test_quotas_are_the_region_s_own_and_those_of_the_newer_gpus(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 4)
    gcp.set_quota("global", "GPUS_ALL_REGIONS", 16)
    gcp.set_cloud_quota(
        *(COMPUTE, FAMILY, ({}, 0), ({"gpu_family": "NVIDIA_H100"}, 8)),
        ({"gpu_family": "NVIDIA_H100", "region": HERE}, 24),
        ({"gpu_family": "NVIDIA_H200", "region": HERE}, None),
        ({"region": HERE}, 1),
    )
    gcp.set_cloud_quota(COMPUTE, "PREEMPTIBLE-NVIDIA-B200-GPUS-per-project-region", ({}, -1))
    refresh()
    found = {
        (row["region"], row["accelerator"], row["market"], row["code"]): row["limit"] for row in rows("quotas_gcp")
    }
    assert found[HERE, "nvidia-tesla-t4", "on-demand", "NVIDIA_T4_GPUS"] == "4"
    assert found["global", "", "", "GPUS_ALL_REGIONS"] == "16"
    assert found[HERE, "nvidia-h100-80gb", "on-demand", f"{FAMILY} NVIDIA_H100"] == "24"
    assert found["europe-west4", "nvidia-h100-80gb", "on-demand", f"{FAMILY} NVIDIA_H100"] == "8"
    assert found[HERE, "nvidia-h200-141gb", "on-demand", f"{FAMILY} NVIDIA_H200"] == "1"
    assert found["europe-west4", "nvidia-b200", "on-demand", f"{FAMILY} NVIDIA_B200"] == "0"
    assert found[HERE, "nvidia-b200", "spot", "PREEMPTIBLE-NVIDIA-B200-GPUS-per-project-region"] == "unlimited"


@pytest.mark.parametrize("method", MADE_OF)
def test_a_table_that_cannot_be_had_is_kept_and_named_with_what_failed(gcp: CatalogControl, method: str) -> None:
    refresh()
    before = {name: table_overrides.path_of(name).read_bytes() for name in TABLES}
    gcp.fail(method, error("forbidden", 403, f"Required permission for {method}"), times=None)
    code, states, said = refresh()
    assert code == 6
    assert {table for table, state in states.items() if state == "kept"} == MADE_OF[method]
    for table in MADE_OF[method]:
        assert f"{table}: ask for" in said and f"Required permission for {method}" in said
        assert table_overrides.path_of(table).read_bytes() == before[table]


def test_short_troubles_are_waited_out(gcp: CatalogControl) -> None:
    for method in MADE_OF:
        gcp.fail(method, HTML)
        gcp.fail(method, RESET)
    gcp.fail("machineTypes.list", error("rateLimitExceeded", 403, "Rate Limit Exceeded"), times=2)
    code, states, said = refresh(HERE)
    assert (code, set(states.values())) == (0, {"refreshed"}), said


def test_no_credentials_and_an_unknown_region_are_one_clear_message(
    gcp: CatalogControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, states, said = refresh("us-central11")
    assert (code, states, "Google Cloud has no region us-central11" in said) == (4, {}, True), said
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    code, states, said = refresh(HERE)
    assert (code, states) == (6, {})
    assert "credentials" in said
    assert list((tmp_path / "home").rglob("*.csv")) == []


def test_every_call_only_reads(gcp: CatalogControl) -> None:
    refresh(HERE)
    assert {call.action for call in gcp.calls()} - {"token"} == {*MADE_OF, "regions.list"}


# --- quotas -----------------------------------------------------------------------------------------------------------


def node(machine_type: str, accelerator: str | None, count: int | Fraction = 1, index: int = 0) -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, accelerator, Fraction(count))


T4, L4 = node("n1-standard-4", "T4"), node("g2-standard-4", "L4")
H100 = node("a3-highgpu-8g", "H100-80GB", 8)


def check(
    *nodes: NodeRequest,
    market: str = "on-demand",
    region: str = HERE,
    target: str = "gcp",
    run_s: int | None = None,
) -> None:
    clock = FastClock()
    quotas.check(Rest(Account(clock), clock), region=region, market=market, nodes=nodes, target=target, run_s=run_s)


def run(control: CatalogControl, *nodes: NodeRequest, market: str = "on-demand") -> None:
    """Start these machines without cloudgpu, so that they use quota."""
    import google.auth
    from google.cloud import compute_v1

    credentials, project = google.auth.default()
    client = compute_v1.InstancesClient(credentials=credentials, client_options={"api_endpoint": control.url})
    attached = {"T4": "nvidia-tesla-t4"}
    for number, one in enumerate(nodes):
        gpu = attached.get(one.accelerator or "")
        spot = {"provisioning_model": "SPOT"} if market == "spot" else {}
        client.insert_unary(
            project=project,
            zone="us-central1-a",
            instance_resource=compute_v1.Instance(
                name=f"other-{one.machine_type}-{market}-{number}",
                machine_type=f"zones/us-central1-a/machineTypes/{one.machine_type}",
                disks=[{"boot": True, "initialize_params": {"source_image": IMAGE}}],
                network_interfaces=[{"network": "global/networks/default"}],
                guest_accelerators=[
                    {"accelerator_type": f"zones/us-central1-a/acceleratorTypes/{gpu}", "accelerator_count": 1}
                ]
                if gpu
                else [],
                scheduling={"on_host_maintenance": "TERMINATE", "automatic_restart": False, **spot},
            ),
            timeout=180,
        )


IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"


def refused(
    *nodes: NodeRequest, market: str = "on-demand", target: str = "gcp", run_s: int | None = None
) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        check(*nodes, market=market, target=target, run_s=run_s)
    assert caught.value.error_class == "quota"
    return caught.value


def test_a_launch_above_the_quota_is_refused_with_the_numbers(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 3)
    run(gcp, T4)
    check(T4, T4)
    error_ = refused(T4, T4, T4)
    assert (error_.scope, error_.code) == ("region", "NVIDIA_T4_GPUS")
    assert str(error_) == (
        "us-central1: 3 GPUs more are needed, but NVIDIA_T4_GPUS allows 3 and 1 are in use; ask for more: "
        "https://console.cloud.google.com/iam-admin/quotas?project=project-of-tests"
    )


def test_the_quota_of_all_regions_stops_the_cloud(gcp: CatalogControl) -> None:
    gcp.set_quota("global", "GPUS_ALL_REGIONS", 1)
    check(T4)
    error_ = refused(T4, L4)
    assert (error_.scope, error_.code) == ("cloud", "GPUS_ALL_REGIONS")
    assert "all regions together: 2 GPUs more are needed" in str(error_)
    check(T4, L4, market="spot")  # Google does not document whether Spot GPUs count


def test_the_vcpus_of_n1_machines_count_too(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "CPUS", 7)
    check(T4, L4)  # G2 has no vCPU quota
    assert "8 vCPUs more are needed, but CPUS allows 7" in str(refused(T4, T4))


def test_spot_and_on_demand_models_and_regions_are_apart(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 0)
    gcp.set_quota(HERE, "PREEMPTIBLE_NVIDIA_T4_GPUS", 1)
    refused(T4)
    check(L4)
    check(T4, region="europe-west4")
    check(T4, market="spot")
    check(T4, market="flex-start")
    check(T4, market="reservation")
    assert refused(T4, T4, market="flex-start").code == "PREEMPTIBLE_NVIDIA_T4_GPUS"


def test_spot_uses_the_standard_quota_where_the_project_has_no_preemptible_one(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "PREEMPTIBLE_NVIDIA_T4_GPUS", 0)
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 1)
    check(T4, market="spot")
    assert refused(T4, T4, market="spot").code == "PREEMPTIBLE_NVIDIA_T4_GPUS"


def test_machines_on_demand_for_a_week_at_most_may_use_either_quota(gcp: CatalogControl) -> None:
    week = 7 * 86_400
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 1)
    gcp.set_quota(HERE, "PREEMPTIBLE_NVIDIA_T4_GPUS", 2)
    check(T4, T4, run_s=week)
    for run_s in (week + 1, None):
        assert refused(T4, T4, run_s=run_s).code == "NVIDIA_T4_GPUS"
    assert refused(T4, T4, T4, run_s=week).code == "NVIDIA_T4_GPUS"
    gcp.set_quota(HERE, "PREEMPTIBLE_NVIDIA_T4_GPUS", 1)
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 2)
    check(T4, T4, run_s=week)
    assert refused(T4, T4, market="spot", run_s=week).code == "PREEMPTIBLE_NVIDIA_T4_GPUS"


def test_the_newer_gpus_limits_are_asked_of_cloud_quotas_and_their_use_is_counted(gcp: CatalogControl) -> None:
    gcp.set_cloud_quota(COMPUTE, FAMILY, ({}, 0), ({"gpu_family": "NVIDIA_H100", "region": HERE}, 16))
    check(H100, H100)
    run(gcp, H100)
    check(H100)
    error_ = refused(H100, H100)
    assert f"16 GPUs more are needed, but {FAMILY} NVIDIA_H100 allows 16 and 8 are in use" in str(error_)
    with pytest.raises(ProvisionError, match="allows 0; ask for more"):
        check(H100, region="europe-west4")


def test_a_limit_that_is_too_small_by_itself_is_said_without_counting(gcp: CatalogControl) -> None:
    gcp.set_cloud_quota(COMPUTE, FAMILY, ({}, 4))
    refused(H100)
    assert gcp.calls("instances.*") == []


def test_vertex_ai_s_quotas_are_its_own(gcp: CatalogControl) -> None:
    gcp.set_quota(HERE, "NVIDIA_T4_GPUS", 0)
    gcp.set_cloud_quota(VERTEX, "CustomModelTrainingT4GPUsPerProjectPerRegion", ({}, 4))
    gcp.set_cloud_quota(VERTEX, "CustomModelTrainingPreemptibleT4GPUsPerProjectPerRegion", ({}, 0))
    four = node("n1-standard-16", "T4", 4)
    check(four, target="vertex")
    assert refused(four, T4, target="vertex").code == "CustomModelTrainingT4GPUsPerProjectPerRegion"
    refused(T4, market="flex-start", target="vertex")
    assert gcp.calls("regions.get") == []


@pytest.mark.parametrize(
    ("method", "nodes"),
    [
        ("regions.get", [T4]),
        ("projects.get", [T4]),
        ("projects.locations.services.quotaInfos.get", [H100]),
        ("instances.aggregatedList", [H100]),
    ],
)
@pytest.mark.parametrize("fault", [error("forbidden", 403, "no"), HTML], ids=["refused", "broken"])
def test_an_unreadable_quota_blocks_no_launch_and_is_logged_once(
    gcp: CatalogControl, method: str, nodes: list[NodeRequest], fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    gcp.fail(method, fault, times=None)  # type: ignore[arg-type]  # a Fault
    check(*nodes)
    check(*nodes)
    said = [record.message for record in caplog.records if record.name == "cloudgpu.provisioners.gcp"]
    assert len([one for one in said if one.startswith("not checked before launching: ")]) >= 1
    assert len(said) == len(set(said))


def test_a_server_that_hangs_costs_one_timeout_for_each_question(
    gcp: CatalogControl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each launch fetches the region's and the project's quotas at most once, although it checks GPU and vCPU, Spot and
    standard quotas."""
    monkeypatch.setattr(rest, "_TIMEOUT_S", (1.0, 1.0))  # keeps the test short; the timeout itself is requests' own
    monkeypatch.setattr(rest, "_RETRY_TIMEOUT_S", 0.5)
    for method in ("regions.get", "projects.get"):
        gcp.fail(method, HANG, times=None)
    check(T4, T4)
    check(T4, T4, market="spot")
    assert (len(gcp.calls("regions.get")), len(gcp.calls("projects.get"))) == (2, 1)
    said = " ".join(record.message for record in caplog.records)
    assert "ask for the quotas of us-central1" in said and "ask for the project's quotas" in said


def test_markets_and_machines_without_a_known_quota_are_left_to_google(gcp: CatalogControl) -> None:
    check(T4, market="reservation")
    check(node("unheard-of-4", "T4"))
    check(node("e2-standard-4", None, 0))
    assert [call.action for call in gcp.calls()] == []
