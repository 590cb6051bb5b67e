"""AI Platform Training's limits, cell by cell: machine type × accelerator × count, legacy types, regions.

Three sources must agree: the project's tables, the dialect's result, and the service's own rule (maximum vCPUs and
memory for a number of GPUs), written here without the tables.
"""

from __future__ import annotations

import itertools

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.dialects import Conversion, convert
from cloudgpu.jobspecs.dialects.ai_platform_rules import ACCELERATOR_TYPES, LEGACY_CPU_TYPES, SCALE_TIERS
from cloudgpu.jobspecs.models import JobSpec

# GPU count -> maximum vCPUs and memory (GB) of a machine.
LIMITS = {
    "NVIDIA_TESLA_K80": {1: (8, 52), 2: (16, 104), 4: (32, 208), 8: (64, 208)},
    "NVIDIA_TESLA_P4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
    "NVIDIA_TESLA_P100": {1: (16, 104), 2: (32, 208), 4: (64, 208)},
    "NVIDIA_TESLA_T4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
    "NVIDIA_TESLA_V100": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
}
GB_PER_VCPU = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
N1_SIZES = {
    "standard": (4, 8, 16, 32, 64, 96),
    "highmem": (2, 4, 8, 16, 32, 64, 96),
    "highcpu": (16, 32, 64, 96),
}
A2_GPUS = {"a2-highgpu-1g": 1, "a2-highgpu-2g": 2, "a2-highgpu-4g": 4, "a2-highgpu-8g": 8, "a2-megagpu-16g": 16}
N1_TYPES = [f"n1-{family}-{size}" for family, sizes in N1_SIZES.items() for size in sizes]
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32)
LEGACY = {
    "standard_gpu": ("NVIDIA_TESLA_K80", 1),
    "complex_model_m_gpu": ("NVIDIA_TESLA_K80", 4),
    "complex_model_l_gpu": ("NVIDIA_TESLA_K80", 8),
    "standard_p100": ("NVIDIA_TESLA_P100", 1),
    "complex_model_m_p100": ("NVIDIA_TESLA_P100", 4),
    "standard_v100": ("NVIDIA_TESLA_V100", 1),
    "large_model_v100": ("NVIDIA_TESLA_V100", 1),
    "complex_model_m_v100": ("NVIDIA_TESLA_V100", 4),
    "complex_model_l_v100": ("NVIDIA_TESLA_V100", 8),
}
REGIONS = {
    "NVIDIA_TESLA_K80": "us-west1 us-central1 us-east1 europe-west1 asia-east1",
    "NVIDIA_TESLA_P4": "us-west2 us-central1 us-east4 northamerica-northeast1 europe-west4 asia-southeast1 "
    "australia-southeast1",
    "NVIDIA_TESLA_P100": "us-west1 us-central1 us-east1 southamerica-east1 europe-west1 asia-east1 "
    "australia-southeast1",
    "NVIDIA_TESLA_T4": "us-west1 us-central1 us-east1 southamerica-east1 europe-west2 europe-west4 asia-south1 "
    "asia-southeast1 asia-northeast1 asia-northeast3",
    "NVIDIA_TESLA_V100": "us-west1 us-central1 europe-west4 asia-east1",
}
ALL_REGIONS = sorted(set(" ".join(REGIONS.values()).split()))
GONE = ("NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100")


def allowed(machine_type: str, accelerator: str, count: int) -> bool:
    """Return True if the service's rule allows the combination."""
    if machine_type in A2_GPUS:
        return accelerator == "NVIDIA_TESLA_A100" and count == A2_GPUS[machine_type]
    _, family, size = machine_type.split("-")
    vcpus, memory = int(size), int(size) * GB_PER_VCPU[family]
    most = LIMITS.get(accelerator, {}).get(count)
    return most is not None and vcpus <= most[0] and memory <= most[1]


def custom(machine_type: str, accelerator: str | None = None, count: int = 0, region: str | None = None) -> Conversion:
    training: dict[str, object] = {"scaleTier": "CUSTOM", "masterType": machine_type, "pythonModule": "trainer.task"}
    if accelerator:
        training["masterConfig"] = {"acceleratorConfig": {"type": accelerator, "count": str(count)}}
    if region:
        training["region"] = region
    return convert({"trainingInput": training})


@pytest.mark.parametrize("accelerator", ACCELERATOR_TYPES)
@pytest.mark.parametrize("machine_type", [*N1_TYPES, *A2_GPUS])
def test_every_cell(machine_type: str, accelerator: str) -> None:
    for count in COUNTS:
        expected = allowed(machine_type, accelerator, count)
        name = ACCELERATOR_TYPES[accelerator]
        assert (count in catalog.ai_platform_counts(machine_type, name)) is expected, count
        conversion = custom(machine_type, accelerator, count)
        if expected:
            assert conversion.problems == []
            JobSpec.model_validate(conversion.job)
            if accelerator not in GONE:
                assert conversion.job["resources"]["accelerator"] == f"{name}:{count}"
                assert conversion.job["resources"]["machine_type"] == machine_type
        else:
            [problem] = conversion.problems
            assert problem.code == "count-on-machine-type"
            assert problem.loc[:3] == ("trainingInput", "masterConfig", "acceleratorConfig")
            assert machine_type in problem.hint
            assert name in problem.message


def test_the_table_has_no_other_machine_types_or_accelerators() -> None:
    assert catalog.ai_platform_machine_types() == {*N1_TYPES, *A2_GPUS}
    assert {a for a in catalog.accelerators() for m in N1_TYPES if catalog.ai_platform_counts(m, a)} == {
        ACCELERATOR_TYPES[a] for a in LIMITS
    }


@pytest.mark.parametrize("machine_type", [*N1_TYPES, *A2_GPUS])
def test_the_cells_hold_for_every_role(machine_type: str) -> None:
    for prefix, role in (("worker", "worker"), ("parameterServer", "parameter_server"), ("evaluator", "evaluator")):
        for accelerator, count in itertools.product(("NVIDIA_TESLA_T4", "NVIDIA_TESLA_A100"), (1, 4)):
            conversion = convert(
                {
                    "trainingInput": {
                        "scaleTier": "CUSTOM",
                        "masterType": "n1-standard-8",
                        "pythonModule": "trainer.task",
                        f"{prefix}Count": "1",
                        f"{prefix}Type": machine_type,
                        f"{prefix}Config": {"acceleratorConfig": {"type": accelerator, "count": str(count)}},
                    }
                }
            )
            if allowed(machine_type, accelerator, count):
                assert conversion.problems == []
                assert conversion.job["roles"][role]["accelerator"] == f"{ACCELERATOR_TYPES[accelerator]}:{count}"
            else:
                [problem] = conversion.problems
                assert (problem.code, problem.loc[1]) == ("count-on-machine-type", f"{prefix}Config")


@pytest.mark.parametrize(("machine_type", "count"), A2_GPUS.items())
def test_a2_machines_have_their_gpus_built_in(machine_type: str, count: int) -> None:
    assert custom(machine_type).job["resources"]["accelerator"] == f"A100-40GB:{count}"


@pytest.mark.parametrize("machine_type", LEGACY)
def test_legacy_machine_types(machine_type: str) -> None:
    accelerator, count = LEGACY[machine_type]
    row = catalog.ai_platform_legacy(machine_type)
    assert row is not None
    assert (row.accelerator, row.count) == (ACCELERATOR_TYPES[accelerator], count)
    assert allowed(row.machine_type, accelerator, count), "the Compute Engine machine it stands for takes the GPUs"
    conversion = custom(machine_type)
    assert conversion.problems == []
    assert any(machine_type in note and row.machine_type in note for note in conversion.notes)
    if accelerator not in GONE:
        assert conversion.job["resources"]["accelerator"] == f"{row.accelerator}:{count}"
    JobSpec.model_validate(conversion.job)


@pytest.mark.parametrize(("machine_type", "today"), LEGACY_CPU_TYPES.items())
def test_legacy_machine_types_without_gpus(machine_type: str, today: str) -> None:
    resources = custom(machine_type).job["resources"]
    assert (resources["machine_type"], resources["accelerator"]) == (today, "none")


@pytest.mark.parametrize("machine_type", [*LEGACY, *LEGACY_CPU_TYPES])
def test_legacy_machine_types_take_no_accelerator(machine_type: str) -> None:
    [problem] = custom(machine_type, "NVIDIA_TESLA_K80", 1).problems
    assert problem.code == "accelerator-on-legacy-type"
    assert "n1-" in problem.hint


def test_there_are_no_other_legacy_names() -> None:
    assert set(catalog.ai_platform_legacy_names()) == set(LEGACY)


@pytest.mark.parametrize("accelerator", REGIONS)
@pytest.mark.parametrize("region", ALL_REGIONS)
def test_every_accelerator_in_every_region(accelerator: str, region: str) -> None:
    offered = region in REGIONS[accelerator].split()
    assert (region in catalog.ai_platform_regions(ACCELERATOR_TYPES[accelerator])) is offered
    problems = custom("n1-standard-8", accelerator, 1, region).problems
    if offered:
        assert problems == []
    else:
        [problem] = problems
        assert (problem.code, problem.loc) == ("accelerator-region", ("trainingInput", "region"))
        assert problem.hint.endswith(", ".join(sorted(REGIONS[accelerator].split())))


@pytest.mark.parametrize("machine_type", LEGACY)
@pytest.mark.parametrize("region", ALL_REGIONS)
def test_every_legacy_type_in_every_region(machine_type: str, region: str) -> None:
    accelerator, _ = LEGACY[machine_type]
    codes = [problem.code for problem in custom(machine_type, region=region).problems]
    assert codes == ([] if region in REGIONS[accelerator].split() else ["accelerator-region"])


@pytest.mark.parametrize("accelerator", GONE)
@pytest.mark.parametrize("region", ALL_REGIONS)
def test_what_is_gone_becomes_what_is_sold_today_in_that_region(accelerator: str, region: str) -> None:
    if region not in REGIONS[accelerator].split():
        return
    for machine_type, count in itertools.product(N1_TYPES, (1, 2, 4, 8)):
        if not allowed(machine_type, accelerator, count):
            continue
        conversion = custom(machine_type, accelerator, count, region)
        assert conversion.problems == []
        resources = conversion.job["resources"]
        name, _, number = resources["accelerator"].partition(":")
        sold = catalog.find_machine_type("vertex", resources["machine_type"], name)
        assert sold is not None
        assert sold.status != "retired"
        assert int(number) in sold.counts
        assert int(number) <= count
        assert region in catalog.places("gcp", resources["machine_type"], name)
        old, new = catalog.accelerators()[ACCELERATOR_TYPES[accelerator]], catalog.accelerators()[name]
        assert new.memory_gb * int(number) >= old.memory_gb * count
        assert any("no longer exists" in note and f"{name}:{number}" in note for note in conversion.notes)


@pytest.mark.parametrize("tier", [tier for tier in SCALE_TIERS if tier not in ("CUSTOM", "BASIC_TPU")])
def test_scale_tiers(tier: str) -> None:
    conversion = convert({"trainingInput": {"scaleTier": tier, "region": "us-central1", "pythonModule": "t"}})
    assert conversion.problems == []
    roles = JobSpec.model_validate(conversion.job).effective_roles()
    expected = {
        "BASIC": [("worker", 1, "n1-standard-4", [])],
        "STANDARD_1": [
            ("chief", 1, "n1-highcpu-8", []),
            ("worker", 4, "n1-highcpu-8", []),
            ("parameter_server", 3, "n1-standard-4", []),
        ],
        "PREMIUM_1": [
            ("chief", 1, "n1-highcpu-16", []),
            ("worker", 19, "n1-highcpu-16", []),
            ("parameter_server", 11, "n1-highmem-8", []),
        ],
        "BASIC_GPU": [("worker", 1, "n1-standard-8", ["T4:1"])],
    }
    found = [(name, role.nodes, role.machine_type, [str(a) for a in role.accelerator]) for name, role in roles.items()]
    assert found == expected[tier]
