"""Models of the job file: shorthands, roles, stored form, and the JSON Schema."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

import cloudgpu
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.models import CheckpointPolicy, JobSpec, Limits, Resources, Retry, Role
from cloudgpu.jobspecs.schema import job_schema

MINIMAL = {"name": "job", "run": "python train.py"}


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({**MINIMAL, **fields})


def test_one_stands_for_a_list_of_one() -> None:
    one = spec(resources={"accelerator": "L4:2", "cloud": "aws", "region": "us-east-1", "market": "spot"})
    many = spec(resources={"accelerator": ["L4:2"], "cloud": ["aws"], "region": ["us-east-1"], "market": ["spot"]})
    assert one == many


@pytest.mark.parametrize("none", ["none", ["none"], []])
def test_none_is_the_cpu(none: object) -> None:
    assert spec(resources={"accelerator": none}).resources.accelerator == ()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("L4", "L4:1"),
        ("A100-80GB:8", "A100-80GB:8"),
        (" H100 : 2..8 ", "H100:2..8"),
        ({"name": "T4", "count": "1/4"}, "T4:1/4"),
        ({"memory": "24GB.."}, "any GPU with 24GB..:1"),
    ],
)
def test_accelerators(written: object, shown: str) -> None:
    (request,) = spec(resources={"accelerator": written}).resources.accelerator
    assert str(request) == shown


def test_roles_come_in_rank_order() -> None:
    job = spec(roles={"evaluator": {}, "worker": {"nodes": 3}, "chief": {}})
    assert list(job.effective_roles()) == ["chief", "worker", "evaluator"]
    assert list(spec(resources={"nodes": 2}).effective_roles()) == ["worker"]


FULL: dict[str, Any] = {
    "name": "full",
    "resources": {
        "accelerator": ["L4:1", {"memory": "24GB..80GB", "count": "1/8"}],
        "cloud": ["gcp", "aws"],
        "region": ["us-central1"],
        "zone": "us-central1-a",
        "market": ["spot", "on-demand"],
        "disk": "1.5TB",
    },
    "code": None,
    "inputs": {"data": "s3://bucket/digits", "/mnt/weights.pt": "gs://bucket/first.pt"},
    "outputs": ["results", "model.pt"],
    "setup": ["pip", "install", "."],
    "run": "python train.py",
    "args": ["--epochs", "10"],
    "env": {"LR": "0.01", "EMPTY": ""},
    "job_dir": "gs://bucket/jobs",
    "checkpoint": {"every": "1h30m", "keep": "5"},
    "priority": "50",
    "retry": {"preemption": "7", "failure": "0"},
    "limits": {"duration": "12h", "cost": "50.25 USD", "price": "5 USD/h", "gpu_idle": "1h"},
}


@pytest.mark.parametrize(
    "fields", [MINIMAL, FULL, {**MINIMAL, "roles": {"chief": {}, "worker": {"nodes": "4", "image": "a/b:c"}}}]
)
def test_what_is_stored_is_read_back(fields: dict[str, Any]) -> None:
    job = JobSpec.model_validate(fields)
    assert JobSpec.from_stored(job.to_stored()) == job


def test_what_another_version_stored_is_read() -> None:
    stored = copy.deepcopy(JobSpec.model_validate(FULL).to_stored())
    stored["new"] = 1
    stored["resources"]["new"] = {"a": 1}
    stored["resources"]["accelerator"][0]["new"] = 1
    assert JobSpec.from_stored(stored) == JobSpec.model_validate(FULL)


def test_extra_keys_are_refused_in_python_too() -> None:
    with pytest.raises(ValidationError):
        spec(new=1)


# --- JSON Schema ------------------------------------------------------------------------------------------------------

DOCUMENT = job_schema()
SCHEMA = Draft202012Validator(DOCUMENT)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["properties"]["resources"]["$ref"] == "#/$defs/Resources"
    undescribed = [
        f"{name}.{field}"
        for name, model in {"": DOCUMENT, **DOCUMENT["$defs"]}.items()
        for field, schema in model.get("properties", {}).items()
        if "description" not in schema
    ]
    assert undescribed == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        FULL,
        {"args": ["--epochs", 10, 0.5, True], "env": {"A": 1, "B": False, "C": 1.1}},
        {"run": ["python", 3]},
        {"resources": {"accelerator": "none"}},
        {"resources": {"accelerator": {"name": "L4", "count": 2}}},
        {"resources": {"accelerator": ["L4", {"memory": "40GB"}], "nodes": 2, "market": "spot"}},
        {"resources": {"cloud": "local", "region": ["a", "b"], "disk": "100gb"}},
        {"checkpoint": {"every": "auto", "keep": 1}, "retry": {"preemption": 3}},
        {"roles": {"chief": {"accelerator": "L4:1"}, "worker": {"nodes": 4}}},
        {"code": None, "setup": None, "image": None, "job_dir": None},
        {"run": None, "image": "gcr.io/p/i", "args": ["--epochs", 10]},
        {"run": None, "roles": {"chief": {"image": "a"}, "worker": {"image": "b"}}},
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(fields: dict[str, Any]) -> None:
    import yaml

    document = {**MINIMAL, "code": None, **fields}
    assert [error.message for error in SCHEMA.iter_errors(document)] == []
    load_text(yaml.safe_dump(document))


@pytest.mark.parametrize(
    "fields",
    [
        {"new": 1},
        {"name": "My Job"},
        {"run": []},
        {"run": {"a": "b"}},
        {"run": None},
        {"run": None, "image": None},
        {"run": None, "roles": {"chief": {"image": "a"}, "worker": {}}},
        {"run": None, "roles": {"chief": {"image": None}}},
        {"launcher": "torch"},
        {"env": {"A": None}},
        {"env": {"A": ["b"]}},
        {"args": "--epochs"},
        {"resources": {"nodes": 0}},
        {"resources": {"nodes": "two"}},
        {"resources": {"cloud": "gpc"}},
        {"resources": {"cloud": []}},
        {"resources": {"disk": 100}},
        {"resources": {"disk": "100"}},
        {"resources": {"accelerator": 4}},
        {"resources": {"accelerator": {"memory": "24"}}},
        {"resources": {"accelerator": {"name": "L4", "count": 0}}},
        {"roles": {}},
        {"roles": {"boss": {}}},
        {"checkpoint": {"every": 90}},
        {"retry": {"preemption": "often"}},
        {"limits": {"duration": ""}},
        {"limits": {"cost": "5"}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(fields: dict[str, Any]) -> None:
    import yaml

    document = {**MINIMAL, "code": None, **fields}
    assert not SCHEMA.is_valid(document)
    with pytest.raises(SpecError):
        load_text(yaml.safe_dump(document))


# --- docs/reference/job-file.md ---------------------------------------------------------------------------------------

PAGE = (Path(cloudgpu.__file__).parent / "docs" / "reference" / "job-file.md").read_text()


@pytest.mark.parametrize("model", [JobSpec, Resources, Role, CheckpointPolicy, Retry, Limits])
def test_the_page_has_a_row_for_every_field(model: type[BaseModel]) -> None:
    assert [name for name in model.model_fields if f"| `{name}` |" not in PAGE] == []


def test_the_examples_of_the_page_are_read() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    files = [text for text in examples if text.startswith("name:")]
    assert len(files) >= 3
    for text in files:
        load_text(text, overrides=["code=null"])
    accelerators = [line for text in examples for line in text.splitlines() if line.startswith("accelerator:")]
    assert len(accelerators) == 7
    for line in accelerators:
        load_text(f"name: a\nrun: b\ncode: null\nresources:\n  {line}\n")
