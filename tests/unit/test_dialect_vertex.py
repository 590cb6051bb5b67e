"""Vertex AI custom jobs."""

from __future__ import annotations

import pytest

from cloudgpu.jobspecs.diagnostics import Loc
from cloudgpu.jobspecs.dialects import Conversion, convert, vertex
from cloudgpu.jobspecs.models import JobSpec

T4 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": "1"}
CONTAINER = {"imageUri": "gcr.io/p/i", "command": ["python", "train.py"], "args": ["--lr", "0.1"]}


def pool(**fields: object) -> dict[str, object]:
    return {"machineSpec": T4, "replicaCount": "1", "containerSpec": CONTAINER, **fields}


def codes(conversion: Conversion) -> list[tuple[str, Loc]]:
    return [(problem.code, problem.loc) for problem in conversion.problems]


def test_one_container() -> None:
    container = {**CONTAINER, "env": [{"name": "LR", "value": "0.10"}, {"name": "EMPTY"}]}
    conversion = convert(
        {
            "displayName": "My job",
            "jobSpec": {
                "workerPoolSpecs": [pool(containerSpec=container, diskSpec={"bootDiskSizeGb": "200"})],
                "scheduling": {"timeout": "7200s", "strategy": "SPOT", "disableRetries": "true"},
                "baseOutputDirectory": {"outputUriPrefix": "gs://b/out/"},
            },
        }
    )
    assert conversion.problems == []
    assert conversion.job == {
        "name": "my-job",
        "resources": {
            "cloud": ["vertex", "gcp"],
            "accelerator": "T4:1",
            "machine_type": "n1-standard-8",
            "disk": "200GB",
            "market": "spot",
        },
        "image": "gcr.io/p/i",
        "code": None,
        "run": ["python", "train.py"],
        "args": ["--lr", "0.1"],
        "env": {
            "LR": "0.10",
            "EMPTY": "",
            "AIP_MODEL_DIR": "gs://b/out/model/",
            "AIP_CHECKPOINT_DIR": "gs://b/out/checkpoints/",
            "AIP_TENSORBOARD_LOG_DIR": "gs://b/out/logs/",
        },
        "limits": {"duration": "7200s"},
        "retry": {"failure": 0},
        "job_dir": "gs://b/out/",
    }
    JobSpec.model_validate(conversion.job)


def test_a_container_without_command_runs_its_images_own_entrypoint() -> None:
    silent = {"imageUri": "gcr.io/p/i", "args": ["--lr", "0.1"]}
    conversion = convert(
        {"workerPoolSpecs": [pool(containerSpec=silent), pool(containerSpec={**silent, "imageUri": "j"})]}
    )
    assert conversion.problems == []
    spec = JobSpec.model_validate(conversion.job)
    assert (spec.run, spec.args, spec.code, spec.image) == (None, ("--lr", "0.1"), None, "gcr.io/p/i")
    assert spec.roles is not None
    assert spec.roles["worker"].image == "j"


def test_pools_are_roles_and_may_be_skipped() -> None:
    package = {"executorImageUri": "e", "packageUris": ["gs://b/t.tar.gz"], "pythonModule": "trainer.task"}
    chief = {"machineSpec": T4, "replicaCount": 1, "pythonPackageSpec": package}
    conversion = convert(
        {
            "worker_pool_specs": [
                chief,
                {},
                {"machine_spec": {"machine_type": "n1-highmem-8"}, "replica_count": 2, "python_package_spec": package},
                chief,
            ]
        }
    )
    assert conversion.problems == []
    spec = JobSpec.model_validate(conversion.job)
    assert {name: role.nodes for name, role in spec.effective_roles().items()} == {
        "chief": 1,
        "parameter_server": 2,
        "evaluator": 1,
    }
    assert spec.run == ("python", "-m", "trainer.task")
    assert conversion.origins["roles", "parameter_server", "machine_type"] == (
        *("worker_pool_specs", 2, "machine_spec", "machine_type"),
    )


def test_the_reduction_server_is_left_out() -> None:
    server = {"imageUri": "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"}
    conversion = convert({"workerPoolSpecs": [pool(), pool(), pool(containerSpec=server, replicaCount="4")]})
    assert conversion.problems == []
    assert list(conversion.job["roles"]) == ["chief", "worker"]
    assert any("reduction server" in note for note in conversion.notes)


def test_a_gpu_that_is_gone_is_replaced() -> None:
    machine = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_K80", "acceleratorCount": "2"}
    conversion = convert({"workerPoolSpecs": [pool(machineSpec=machine)]})
    assert conversion.job["resources"]["accelerator"] == "T4:2"
    assert any("K80 no longer exists" in note for note in conversion.notes)


@pytest.mark.parametrize(
    ("affinity", "market"),
    [
        ("NO_RESERVATION", None),
        ("ANY_RESERVATION", ["reservation", "on-demand"]),
        ("SPECIFIC_RESERVATION", ["reservation"]),
    ],
)
def test_reservations(affinity: str, market: list[str] | None) -> None:
    machine = {**T4, "reservationAffinity": {"reservationAffinityType": affinity}}
    conversion = convert({"workerPoolSpecs": [pool(machineSpec=machine)]})
    assert conversion.problems == []
    assert conversion.job["resources"].get("market") == market


@pytest.mark.parametrize(("strategy", "market"), vertex.MARKETS.items())
def test_strategies(strategy: str, market: str) -> None:
    job = convert({"workerPoolSpecs": [pool()], "scheduling": {"strategy": strategy}}).job
    assert JobSpec.model_validate(job).resources.market == (market,)


@pytest.mark.parametrize(
    ("pools", "code", "place"),
    [
        ([], "no-machines", ()),
        ([{}, pool()], "one-chief", ("workerPoolSpecs", 0)),
        ([pool(replicaCount="2")], "one-chief", ("workerPoolSpecs", 0, "replicaCount")),
        ([pool(replicaCount="0")], "wrong-value", ("workerPoolSpecs", 0, "replicaCount")),
        ([pool()] * 5, "too-many-pools", ("workerPoolSpecs", 4)),
        ([pool(machineSpec={})], "missing-machine-type", ("workerPoolSpecs", 0, "machineSpec")),
        ([pool(machineSpec={**T4, "acceleratorType": "NVIDIA_TESLA_T44"})], "unknown-accelerator",
         ("workerPoolSpecs", 0, "machineSpec", "acceleratorType")),
        ([pool(machineSpec={**T4, "acceleratorType": "TPU_V3"})], "no-tpu",
         ("workerPoolSpecs", 0, "machineSpec", "acceleratorType")),
        ([pool(machineSpec={"machineType": "n1-standard-8", "acceleratorCount": "1"})], "incomplete-accelerator",
         ("workerPoolSpecs", 0, "machineSpec", "acceleratorCount")),
        ([pool(machineSpec={**T4, "machine_typ": "x"})], "unknown-field",
         ("workerPoolSpecs", 0, "machineSpec", "machine_typ")),
        ([pool(containerSpec={"args": ["a"]})], "no-program", ("workerPoolSpecs", 0, "containerSpec")),
        ([pool(containerSpec={"command": ["a"]})], "no-program", ("workerPoolSpecs", 0, "containerSpec", "command")),
        ([pool(), pool(containerSpec={"imageUri": "gcr.io/p/i"})], "different-programs", ("workerPoolSpecs",)),
        ([pool(), pool(containerSpec={**CONTAINER, "command": ["sh"]})], "different-programs", ("workerPoolSpecs",)),
        ([pool(nfsMounts=[{"server": "s"}])], "no-counterpart", ("workerPoolSpecs", 0, "nfsMounts")),
        (["x"], "wrong-value", ("workerPoolSpecs",)),
    ],
)  # fmt: skip
def test_mistakes(pools: list[object], code: str, place: Loc) -> None:
    assert (code, place) in codes(convert({"workerPoolSpecs": pools}))


def test_an_unknown_strategy() -> None:
    conversion = convert({"workerPoolSpecs": [pool()], "scheduling": {"strategy": "SPOTT"}})
    [problem] = conversion.problems
    assert (problem.loc, problem.hint) == (("scheduling", "strategy"), "did you mean SPOT?")


@pytest.mark.parametrize("name", [name for name, lost in vertex.CUSTOM_JOB_SPEC.items() if lost is not None])
def test_no_known_field_is_dropped_silently(name: str) -> None:
    conversion = convert({"workerPoolSpecs": [pool()], name: "something"})
    lost = vertex.CUSTOM_JOB_SPEC[name]
    assert lost is not None
    said = [*conversion.notes, *(problem.message for problem in conversion.problems)]
    assert any(name in text and lost.why in text for text in said)
    assert conversion.refused is lost.refuse
