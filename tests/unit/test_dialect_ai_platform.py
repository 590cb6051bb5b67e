"""trainingInput: fields, rules, roles, program. The machine tables are tested in a separate module."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.diagnostics import Loc
from cloudgpu.jobspecs.dialects import Conversion, ai_platform, convert, detect
from cloudgpu.jobspecs.dialects.conversion import Fields
from cloudgpu.jobspecs.dialects.successors import SUCCESSORS
from cloudgpu.jobspecs.loading.loader import load_file
from cloudgpu.jobspecs.models import JobSpec

GPU = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "1"}}
IMAGE = {"imageUri": "gcr.io/p/image:1", "containerCommand": ["python", "train.py"]}


def training(**fields: object) -> dict[str, dict[str, object]]:
    base: dict[str, object] = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-8",
        "region": "us-central1",
        "pythonModule": "t.task",
    }
    return {"trainingInput": {k: v for k, v in {**base, **fields}.items() if v is not None}}


def codes(conversion: Conversion) -> list[tuple[str, Loc]]:
    return [(problem.code, problem.loc) for problem in conversion.problems]


def test_detect() -> None:
    assert detect({"trainingInput": None}) == "ai-platform"
    assert detect({"training_input": {}}) == "ai-platform"
    assert detect({"workerPoolSpecs": []}) == detect({"job_spec": {}}) == "vertex"
    assert detect({"name": "x", "run": "y"}) is None
    assert detect(["trainingInput"]) is detect(None) is None


def test_a_single_machine_is_a_plain_job() -> None:
    conversion = convert(
        {
            "jobId": "Census_2",
            **training(masterConfig=GPU, args=["--epochs", "10"], jobDir="gs://b/out", packageUris=["gs://b/t.tar.gz"]),
        }
    )
    assert conversion.problems == []
    assert {k: v for k, v in conversion.job.items() if k != "setup"} == {
        "name": "census-2",
        "resources": {
            "cloud": ["vertex", "gcp"],
            "region": "us-central1",
            "accelerator": "T4:1",
            "machine_type": "n1-standard-8",
        },
        "code": None,
        "run": ["python", "-m", "t.task"],
        "args": ["--epochs", "10", "--job-dir", "gs://b/out"],
        "job_dir": "gs://b/out",
    }
    # The packages' names are arguments of the script, never part of its text.
    assert conversion.job["setup"][3:] == ["setup", "gs://b/t.tar.gz"]
    assert "gs://b" not in conversion.job["setup"][2]
    JobSpec.model_validate(conversion.job)


def test_a_cluster_has_roles_in_rank_order() -> None:
    conversion = convert(
        training(
            masterConfig={**GPU, "imageUri": "gcr.io/p/a"},
            workerCount="2",
            workerType="n1-standard-4",
            workerConfig={**GPU, "imageUri": "gcr.io/p/b", "diskConfig": {"bootDiskSizeGb": "200"}},
            parameterServerCount="1",
            parameterServerType="n1-highmem-2",
            evaluatorCount="1",
            evaluatorType="n1-standard-4",
        )
    )
    assert conversion.problems == []
    spec = JobSpec.model_validate(conversion.job)
    assert list(conversion.job["roles"]) == ["chief", "worker", "parameter_server", "evaluator"]
    assert [role.nodes for role in spec.effective_roles().values()] == [1, 2, 1, 1]
    assert spec.launcher == "tensorflow"
    assert spec.image == "gcr.io/p/a"
    assert spec.roles is not None
    assert spec.roles["worker"].image == "gcr.io/p/b"
    assert spec.roles["parameter_server"].image is None
    assert spec.resources.disk == 200
    assert any("largest disk" in note for note in conversion.notes)


def test_every_place_of_the_job_has_its_origin_in_the_source() -> None:
    conversion = convert(
        training(masterConfig={**GPU, **IMAGE}, scheduling={"maxRunningTime": "90.5s"}, pythonModule=None)
    )
    source = ("trainingInput",)
    assert conversion.origins["resources", "accelerator"] == (*source, "masterConfig", "acceleratorConfig")
    assert conversion.origins["resources", "machine_type"] == (*source, "masterType")
    assert conversion.origins["resources", "region"] == (*source, "region")
    assert conversion.origins["limits", "duration"] == (*source, "scheduling", "maxRunningTime")
    assert conversion.origins["image",] == (*source, "masterConfig", "imageUri")
    assert conversion.job["limits"]["duration"] == "91s"
    assert conversion.job["run"] == ["python", "train.py"]


@pytest.mark.parametrize(
    ("fields", "code", "place"),
    [
        ({"masterType": None}, "missing-machine-type", ("scaleTier",)),
        ({"workerCount": "2"}, "missing-machine-type", ("workerCount",)),
        ({"workerType": "n1-standard-8"}, "no-replicas", ("workerType",)),
        ({"workerType": "standard_gpu", "workerCount": "1"}, "mixed-machine-types", ("workerType",)),
        ({"scaleTier": "BASIC"}, "only-custom-tier", ("masterType",)),
        ({"scaleTier": None}, "only-custom-tier", ("masterType",)),
        ({"scaleTier": "STANDARD_1", "masterType": None, "masterConfig": GPU}, "only-custom-tier",
         ("masterConfig", "acceleratorConfig")),
        ({"scaleTier": "BASIC_TPU", "masterType": None}, "no-tpu", ("scaleTier",)),
        ({"masterType": "cloud_tpu"}, "no-tpu", ("masterType",)),
        ({"scaleTier": "COSTUM"}, "unknown-scale-tier", ("scaleTier",)),
        ({"masterType": "n1-standrad-8"}, "unknown-machine-type", ("masterType",)),
        ({"masterType": "standart_gpu"}, "unknown-machine-type", ("masterType",)),
        ({"region": "us-centrl1"}, "unknown-region", ("region",)),
        ({"workerCount": "-1"}, "wrong-value", ("workerCount",)),
        ({"workerCount": "9" * 30}, "wrong-value", ("workerCount",)),
        ({"workerCount": ["1"]}, "wrong-value", ("workerCount",)),
        ({"masterConfig": "x"}, "wrong-value", ("masterConfig",)),
        ({"args": "--epochs 10"}, "wrong-value", ("args",)),
        ({"args": [["a"]]}, "wrong-value", ("args",)),
        ({"scheduling": {"maxRunningTime": "2h"}}, "wrong-value", ("scheduling", "maxRunningTime")),
        ({"scheduling": {"maxRunningTime": "nans"}}, "wrong-value", ("scheduling", "maxRunningTime")),
        ({"useChiefInTfConfig": "maybe"}, "wrong-value", ("useChiefInTfConfig",)),
        ({"masterConfig": {"acceleratorConfig": {"count": "1"}}}, "incomplete-accelerator",
         ("masterConfig", "acceleratorConfig")),
        ({"masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T5", "count": "1"}}}, "unknown-accelerator",
         ("masterConfig", "acceleratorConfig", "type")),
        ({"masterConfig": {"acceleratorConfig": {"type": "TPU_V3", "count": "8"}}}, "no-tpu",
         ("masterConfig", "acceleratorConfig", "type")),
        ({"hyperparameters": {"maxTrials": "3"}}, "no-counterpart", ("hyperparameters",)),
        ({"encryptionConfig": {"kmsKeyName": "k"}}, "no-counterpart", ("encryptionConfig",)),
        ({"pythonModule": None}, "no-program", ()),
        ({"pythonModule": None, "masterConfig": {"containerCommand": ["python", "train.py"]}}, "no-program", ()),
        ({"args": ["a"], "masterConfig": {**IMAGE, "containerArgs": ["b"]}}, "exclusive-fields", ("args",)),
        ({"args": ["a"], "masterConfig": IMAGE}, "exclusive-fields", ("args",)),
        ({"worker_count": "1", "workerCount": "1", "workerType": "n1-standard-4"}, "duplicate-key", ("workerCount",)),
    ],
)  # fmt: skip
def test_rules_of_the_service(fields: dict[str, object], code: str, place: Loc) -> None:
    assert codes(convert(training(**fields))) == [(code, ("trainingInput", *place))]


@pytest.mark.parametrize("field", ["args", "containerArgs"])
def test_a_container_without_command_runs_its_images_own_entrypoint(field: str) -> None:
    arguments = {"args": ["--lr", "0.1"]} if field == "args" else {}
    config = {"imageUri": "gcr.io/p/i", **({} if arguments else {"containerArgs": ["--lr", "0.1"]})}
    conversion = convert(training(pythonModule=None, masterConfig=config, jobDir="gs://b/out", **arguments))
    assert conversion.problems == []
    spec = JobSpec.model_validate(conversion.job)
    assert (spec.image, spec.run, spec.code) == ("gcr.io/p/i", None, None)
    assert spec.args == ("--lr", "0.1", "--job-dir", "gs://b/out")


@pytest.mark.parametrize("command", [["python", "ps.py"], None])
def test_different_programs_are_refused(command: list[str] | None) -> None:
    other = {"imageUri": "gcr.io/p/ps", **({"containerCommand": command} if command else {})}
    conversion = convert(
        training(pythonModule=None, masterConfig=IMAGE, workerConfig=other, workerCount="1", workerType="n1-standard-4")
    )
    assert codes(conversion) == [("different-programs", ("trainingInput", "workerConfig"))]


def test_typing_errors_get_a_suggestion() -> None:
    [problem] = convert(training(wrokerCount="2")).problems
    assert (problem.code, problem.hint, problem.in_key) == ("unknown-field", "did you mean workerCount?", True)
    [problem] = convert(training(masterType="complex_model_m_gpus")).problems
    assert "complex_model_m_gpu" in problem.hint


@pytest.mark.parametrize("fields", [ai_platform.TRAINING_INPUT, ai_platform.JOB, ai_platform.SCHEDULING])
def test_no_known_field_is_dropped_silently(fields: Fields) -> None:
    for name, lost in fields.items():
        if lost is None:
            continue
        given = {name: "something"}
        if fields is ai_platform.JOB:
            conversion = convert({**training(), **given})
        elif fields is ai_platform.SCHEDULING:
            conversion = convert(training(scheduling=given))
        else:
            conversion = convert(training(**given))
        said = [*conversion.notes, *(problem.message for problem in conversion.problems)]
        assert any(name in text and lost.why in text for text in said), name
        assert conversion.refused is lost.refuse


def test_snake_case_is_read_as_well() -> None:
    document = {
        "job_id": "a",
        "training_input": {"scale_tier": "BASIC_GPU", "python_module": "t", "region": "us-east1"},
    }
    conversion = convert(document)
    assert conversion.problems == []
    assert conversion.origins["resources", "region"] == ("training_input", "region")


def test_values_of_other_types_than_text() -> None:
    """Documents may come from other parsers than cloudgpu's YAML reader."""
    config = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 2}}
    conversion = convert(
        training(masterConfig=config, workerCount=1, workerType="n1-standard-4", useChiefInTfConfig=True)
    )
    assert conversion.problems == []
    assert conversion.job["roles"]["chief"]["accelerator"] == "T4:2"


@pytest.mark.parametrize(
    "document",
    [
        {"trainingInput": None},
        {"trainingInput": []},
        {"trainingInput": "x"},
        {"trainingInput": {None: 1, 5: 2}},
        {"trainingInput": {"masterConfig": {"acceleratorConfig": []}, "scheduling": "x", "scaleTier": {}}},
    ],
)
def test_nonsense_is_reported(document: dict[str, object]) -> None:
    assert convert(document).refused


@pytest.mark.parametrize(
    ("written", "name"),
    [("My_Job_7", "my-job-7"), ("7abc", "abc"), ("___", "training"), ("Ünïcode", "n-code"), ("a" * 60, "a" * 40)],
)
def test_names(written: str, name: str) -> None:
    conversion = convert({"jobId": written, **training()})
    assert conversion.job["name"] == name
    JobSpec.model_validate(conversion.job)


@pytest.mark.parametrize(("day", "accelerator"), [("2027-07-31", "T4:1"), ("2027-08-01", "L4:1")])
def test_a_gpu_is_kept_until_its_last_day(day: str, accelerator: str) -> None:
    conversion = convert(training(masterConfig=GPU), today=datetime.date.fromisoformat(day))
    assert conversion.problems == []
    assert conversion.job["resources"]["accelerator"] == accelerator
    assert any("support ended 2027-08-01" in note for note in conversion.notes) is (accelerator == "L4:1")


def test_the_day_comes_from_whoever_loads_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-8, region: us-central1, pythonModule: t,"
        " masterConfig: {acceleratorConfig: {type: NVIDIA_TESLA_T4, count: 1}}}"
    )
    kept, ended = (load_file(tmp_path / "config.yaml", today=day) for day in (None, datetime.date(2027, 8, 1)))
    assert [str(loaded.spec.resources.accelerator[0]) for loaded in (kept, ended)] == ["T4:1", "L4:1"]


def test_the_successors_figures_are_known() -> None:
    known = {name: one.fp32_tflops for name, one in catalog.accelerators().items()}
    names = {*SUCCESSORS, *(name for row in SUCCESSORS.values() for name in row)}
    assert [name for name in names if not known[name]] == []


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"masterType": "g2-standard-4"}, "AI Platform Training had no g2-standard-4"),
        ({"masterType": "n1-standard-2"}, "AI Platform Training had no n1-standard-2"),
        ({"masterType": "a2-highgpu-1g", "region": "us-west3"}, "is not known to have had GPUs in us-west3"),
        (
            # The example that the service itself gives for a refusal: no zone of us-central1 had all three.
            {
                "masterType": "n1-standard-8",
                "masterConfig": {"acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_T4"}},
                "workerType": "n1-standard-8",
                "workerCount": "2",
                "workerConfig": {"acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_P100"}},
                "region": "us-central1",
            },
            "wanted all kinds of GPU of a job in one zone",
        ),
    ],
)
def test_what_the_service_refused_and_is_read_is_noted(fields: dict[str, object], note: str) -> None:
    conversion = convert({"trainingInput": {"scaleTier": "CUSTOM", "pythonModule": "t", **fields}})
    assert conversion.problems == []
    assert any(note in said for said in conversion.notes)


def test_what_the_service_had_brings_no_such_note() -> None:
    fields = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", "pythonModule": "t", "region": "us-central1"}
    notes = convert({"trainingInput": fields}).notes
    assert not [said for said in notes if "had no" in said or "not known" in said or "one zone" in said]


def test_a_gpu_that_the_service_never_had_is_not_taken_for_one_it_had() -> None:
    accelerator = {"acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_L4"}}
    fields = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", "pythonModule": "t", "masterConfig": accelerator}
    [problem] = convert({"trainingInput": fields}).problems
    assert problem.hint.startswith("one of NVIDIA_TESLA_K80")
