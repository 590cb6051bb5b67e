"""Looking things up in the tables, with facts anybody can check against the providers' pages."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.targets import built_in


def machine(cloud: str, name: str, accelerator: str | None) -> catalog.MachineType:
    found = catalog.find_machine_type(cloud, name, accelerator)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cloud", "name", "accelerator", "counts", "size"),
    [
        ("aws", "p4d.24xlarge", "A100-40GB", "8", (96, 1152)),
        ("aws", "p4de.24xlarge", "A100-80GB", "8", (96, 1152)),
        ("aws", "p5.48xlarge", "H100-80GB", "8", (192, 2048)),
        ("aws", "p5.4xlarge", "H100-80GB", "1", (16, 256)),
        ("aws", "p5en.48xlarge", "H200-141GB", "8", (192, 2048)),
        ("aws", "g4dn.xlarge", "T4", "1", (4, 16)),
        ("aws", "g5.48xlarge", "A10G", "8", (192, 768)),
        ("aws", "g6.8xlarge", "L4", "1", (32, 128)),
        ("aws", "g6f.large", "L4", "1/8", (2, 8)),
        ("aws", "trn1.32xlarge", "Trainium", "16", (128, 512)),
        ("gcp", "a2-highgpu-1g", "A100-40GB", "1", (12, 85)),
        ("gcp", "a2-megagpu-16g", "A100-40GB", "16", (96, 1360)),
        ("gcp", "a2-ultragpu-8g", "A100-80GB", "8", (96, 1360)),
        ("gcp", "a3-highgpu-8g", "H100-80GB", "8", (208, 1872)),
        ("gcp", "g2-standard-24", "L4", "2", (24, 96)),
        ("gcp", "g4-standard-6", "RTX-PRO-6000-BSE", "1/8", (6, 22)),
        ("gcp", "n1-standard-8", "T4", "1 2 4", (8, 30)),
        ("gcp", "n1-highmem-96", "V100-16GB", "8", (96, 624)),
        ("gcp", "n1-standard-8", None, "", (8, 30)),
        ("azure", "Standard_NC24ads_A100_v4", "A100-80GB", "1", (24, 220)),
        ("azure", "Standard_NC40ads_H100_v5", "H100-NVL-94GB", "1", (40, 320)),
        ("azure", "Standard_ND96asr_v4", "A100-40GB", "8", (96, 900)),
        ("azure", "Standard_NV6ads_A10_v5", "A10", "1/6", (6, 55)),
    ],
)
def test_machine_types(cloud: str, name: str, accelerator: str | None, counts: str, size: tuple[int, float]) -> None:
    """size: vCPUs, memory in GB."""
    found = machine(cloud, name, accelerator)
    assert found.counts == tuple(map(Fraction, counts.split()))
    assert (found.vcpus, found.memory_gb) == size


@pytest.mark.parametrize(
    ("cloud", "name", "accelerator", "markets"),
    [
        ("gcp", "a3-highgpu-1g", "H100-80GB", {"spot", "flex-start"}),
        ("gcp", "a3-highgpu-8g", "H100-80GB", {"on-demand", "spot", "flex-start", "reservation"}),
        ("gcp", "a3-ultragpu-8g", "H200-141GB", {"spot", "flex-start", "reservation"}),
        ("gcp", "a4-highgpu-8g", "B200", {"spot", "flex-start", "reservation"}),
        ("gcp", "a4x-highgpu-4g", "GB200", {"reservation"}),
        ("gcp", "a4x-maxgpu-4g-metal", "GB300", {"reservation"}),
        ("gcp", "g4-standard-48", "RTX-PRO-6000-BSE", {"on-demand", "spot", "reservation"}),
        ("gcp", "n1-standard-4", "T4", {"on-demand", "spot", "reservation"}),
        ("vertex", "g2-standard-4", "L4", {"on-demand", "spot", "flex-start", "reservation"}),
        ("aws", "p5.48xlarge", "H100-80GB", {"on-demand", "spot", "reservation"}),
        ("aws", "p6e-gb200.36xlarge", "GB200", {"reservation"}),
        ("aws", "g6.xlarge", "L4", {"on-demand", "spot"}),
        ("aws", "p3.2xlarge", "V100-16GB", set()),
    ],
)
def test_markets(cloud: str, name: str, accelerator: str, markets: set[str]) -> None:
    assert machine(cloud, name, accelerator).markets == markets


def test_compute_engine_and_vertex_keep_their_own_counts() -> None:
    """Compute Engine lets one T4 have 48 vCPUs; Vertex AI kept the older limit of 24."""
    assert machine("gcp", "n1-standard-32", "T4").counts == tuple(map(Fraction, (1, 2, 4)))
    assert machine("vertex", "n1-standard-32", "T4").counts == tuple(map(Fraction, (2, 4)))
    assert catalog.find_machine_type("vertex", "g4-standard-6", "RTX-PRO-6000-BSE") is None
    assert catalog.find_machine_type("vertex", "n1-standard-2", "T4") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("T4", "T4"),
        ("t4", "T4"),
        ("nvidia-tesla-t4", "T4"),
        ("NVIDIA_TESLA_T4", "T4"),
        ("Tesla T4", "T4"),
        ("A100", "A100-40GB"),
        ("NVIDIA_TESLA_A100", "A100-40GB"),
        ("a100_80gb", "A100-80GB"),
        ("NVIDIA_A100_80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("H100", "H100-80GB"),
        ("NVIDIA_H100_MEGA_80GB", "H100-80GB"),
        ("H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("V100", "V100-16GB"),
        ("RTX-PRO-6000", "RTX-PRO-6000-BSE"),
        ("trn2", "Trainium2"),
    ],
)
def test_accelerators_are_found_by_any_of_their_names(text: str, name: str) -> None:
    found = catalog.find_accelerator(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "text", ["", " ", "T", "T5", "Standard_NC4as_T4_v3", "none", "nvidia-tesla-t4-vws", "Т4", "A100:8"]
)
def test_what_is_no_accelerator_is_not_found(text: str) -> None:
    assert catalog.find_accelerator(text) is None


def test_accelerator_figures() -> None:
    t4, h100 = catalog.accelerators()["T4"], catalog.accelerators()["H100-80GB"]
    assert (t4.memory_gb, t4.compute_capability, t4.mig_slices) == (16, "7.5", 0)
    assert (h100.memory_gb, h100.fp16_tflops, h100.mig_slices) == (80, 989, 7)
    assert {a.name for a in catalog.accelerators().values() if a.kind == "asic"} >= {"Trainium", "Inferentia2", "Gaudi"}
    assert t4.status == {"aws": "active", "gcp": "deprecated", "vertex": "deprecated", "azure": "active"}
    assert catalog.accelerators()["K80"].status == {"aws": "retired", "gcp": "retired", "azure": "retired"}


def test_the_end_of_support_is_a_day() -> None:
    t4, p100 = machine("gcp", "n1-standard-4", "T4"), machine("gcp", "n1-standard-4", "P100")
    assert t4.ends == "2027-08-01"
    assert not t4.is_retired_on("2027-07-31")
    assert t4.is_retired_on("2027-08-01")
    assert p100.ends == "2026-09-15"
    assert p100.is_retired_on("2020-01-01"), "retired is retired, whatever the clock says"
    assert machine("azure", "Standard_NC6s_v3", "V100-16GB").ends == "2025-09-30"
    assert machine("azure", "Standard_NC6", "K80").ends == "2023-09-06"


def test_places() -> None:
    t4 = catalog.places("gcp", "n1-standard-4", "T4")
    assert t4["us-central1"] == ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
    assert "use1-az6" in catalog.zones("aws")
    assert catalog.places("vertex", "n1-standard-4", "T4")["us-central1"] == ()
    assert catalog.places("azure", "Standard_NC4as_T4_v3", "T4")["eastus"] == ()
    assert catalog.places("gcp", "n1-standard-4", "P100") == {}
    assert catalog.places("gcp", "n1-standard-4", None)["us-central1"] == ()
    assert {"us-central1", "europe-west4"} <= catalog.regions("gcp")
    assert not any(region.startswith(("cn-", "us-gov")) for region in catalog.regions("aws"))


def price(cloud: str, name: str, accelerator: str | None, count: int, *region_and_market: str) -> catalog.Price | None:
    return catalog.price(cloud, name, accelerator, Fraction(count), *region_and_market)


def test_prices_of_whole_machines() -> None:
    found = price("aws", "p4d.24xlarge", "A100-40GB", 8, "us-east-1", "on-demand")
    assert found == catalog.Price(Decimal("21.957642"), "2026-07-20", "karp-aws")
    a2 = price("gcp", "a2-highgpu-1g", "A100-40GB", 1, "us-central1", "on-demand")
    assert a2 is not None
    assert a2.amount == Decimal("3.673385")


def test_an_n1_machine_costs_its_host_and_its_gpus() -> None:
    host = price("gcp", "n1-standard-8", None, 0, "us-central1", "on-demand")
    with_gpus = price("gcp", "n1-standard-8", "T4", 2, "us-central1", "on-demand")
    assert host is not None
    assert with_gpus is not None
    assert with_gpus.amount == host.amount + 2 * Decimal("0.35")
    assert (host.date, with_gpus.date) == ("2026-07-30", "2026-05-01")
    assert with_gpus.source == "cyclenerd + skypilot"


@pytest.mark.parametrize(
    ("cloud", "name", "accelerator", "region", "market"),
    [
        ("aws", "g6.xlarge", "L4", "us-east-1", "spot"),  # no source for AWS spot prices
        ("aws", "p5.48xlarge", "H100-80GB", "us-east-1", "reservation"),  # Capacity Blocks have prices of their own
        ("aws", "p3.2xlarge", "V100-16GB", "us-east-1", "on-demand"),  # retired
        ("gcp", "a3-highgpu-1g", "H100-80GB", "us-central1", "on-demand"),  # listed, but not sold so
        ("gcp", "a4-highgpu-8g", "B200", "us-central1", "spot"),  # not in the sources
        ("gcp", "a2-highgpu-1g", "A100-40GB", "us-east5", "on-demand"),  # listed, but not offered there
        ("gcp", "n1-standard-8", "V100-16GB", "europe-west1", "on-demand"),  # the host is there, the GPU is not
        ("gcp", "n1-standard-8", "L4", "us-central1", "on-demand"),  # no such machine
        ("vertex", "n1-standard-8", "T4", "us-central1", "on-demand"),  # the fee is not known
        ("local", "this", None, "", "on-demand"),
    ],
)
def test_unknown_prices_are_none(cloud: str, name: str, accelerator: str | None, region: str, market: str) -> None:
    assert price(cloud, name, accelerator, 1, region, market) is None


def test_disk_prices() -> None:
    exact, bound = catalog.disk_price("aws", "us-east-1"), catalog.disk_price("aws", "il-central-1")
    assert exact is not None
    assert bound is not None
    assert (exact.amount, exact.upper_bound) == (Decimal("0.08") / 730, False)
    assert (bound.amount, bound.upper_bound) == (Decimal("0.152") / 730, True)
    assert catalog.disk_price("local", "") is None


def test_n1_limits() -> None:
    assert catalog.n1_limits("T4", 1) == catalog.N1Limits(1, 48, 1, 312)
    assert catalog.n1_limits("P100", 4) == catalog.N1Limits(1, 96, 1, 624)
    assert catalog.n1_limits("P100", 4, "us-east1-c") == catalog.N1Limits(1, 64, 1, 208)
    assert catalog.n1_limits("P100", 4, "us-east1-b") == catalog.N1Limits(1, 96, 1, 624)
    assert catalog.n1_limits("T4", 3) is None
    assert catalog.n1_limits("L4", 1) is None


def test_ai_platform() -> None:
    assert catalog.ai_platform_counts("n1-standard-4", "K80") == (1, 2, 4, 8)
    assert catalog.ai_platform_counts("n1-highcpu-64", "K80") == (8,)
    assert catalog.ai_platform_counts("n1-standard-64", "K80") == ()
    assert catalog.ai_platform_counts("n1-standard-4", "A100-40GB") == ()
    legacy = catalog.ai_platform_legacy("complex_model_m_gpu")
    assert legacy == catalog.LegacyMachine("complex_model_m_gpu", "n1-standard-16", "K80", 4, "documented")
    assert catalog.ai_platform_legacy("complex_model_xl") is None
    assert "us-west1" in catalog.ai_platform_regions("K80")
    assert catalog.ai_platform_regions("A100-40GB") == frozenset()


def test_targets() -> None:
    targets = built_in()
    assert list(targets) == ["local", "aws", "gcp", "vertex", "azure", "cluster"]
    local = targets["local"]
    assert local.markets == {"on-demand"}
    assert (local.multi_node, local.roles, local.image, local.gpu_idle) == (True, True, False, True)
    assert (targets["gcp"].zones, targets["vertex"].zones) == (True, False)


def test_a_cloud_without_tables_is_empty() -> None:
    assert catalog.machine_types("local") == {}
    assert catalog.regions("local") == frozenset()
    assert catalog.places("oracle", "BM.GPU.A10.4", "A10") == {}


def test_nothing_is_read_before_it_is_asked_for() -> None:
    """Importing the catalogue opens no table; a question about one cloud opens no other's, but the list of targets."""
    code = (
        "import sys, pathlib; opened = []\n"
        "sys.addaudithook(lambda event, args: event == 'open' and str(args[0]).endswith('.csv') and"
        " opened.append(pathlib.Path(args[0]).stem))\n"
        "from cloudgpu.jobspecs import catalog\n"
        "assert not opened, opened\n"
        "catalog.places('aws', 'g6.xlarge', 'L4')\n"
        "print(sorted(set(opened)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['machine_types_aws', 'places_aws', 'targets']"
