"""Job file writer: a written file loads as the same spec."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.jobspecs import job_file
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.models import JobSpec

FULL = {
    "name": "digits",
    "resources": {
        "accelerator": ["L4", "T4:1..2", {"memory": "24GB..", "count": "2"}, "RTX-PRO-6000-BSE:1/4"],
        "cloud": ["gcp", "aws"],
        "region": ["us-central1"],
        "market": ["spot", "on-demand"],
        "nodes": "2",
        "disk": "1.5TB",
    },
    "image": "gcr.io/p/i",
    "code": None,
    "setup": "pip install -r requirements.txt\npip list",
    "run": "python train.py",
    "args": ["--epochs", "010", "yes", "", "a b"],
    "env": {"LR": "0.10", "DEBUG": "no"},
    "launcher": "torchrun",
    "job_dir": "s3://bucket/jobs",
    "checkpoint": {"every": "10m", "keep": "5"},
    "recover": "fleet",
    "retry": {"preemption": "3", "failure": "0"},
    "limits": {"duration": "90m", "cost": "50 USD", "price": "5.5 USD/h", "gpu_idle": "1h"},
}
ROLES = {
    "name": "ps",
    "roles": {
        "worker": {"nodes": "3", "accelerator": "T4:4", "machine_type": "n1-standard-16"},
        "chief": {"accelerator": "T4:4", "image": "gcr.io/p/other"},
        "evaluator": {},
    },
    "run": ["python", "-m", "trainer"],
    "launcher": "tensorflow",
}


@pytest.mark.parametrize("job", [FULL, ROLES, {"name": "a", "run": "b"}, {"name": "a", "image": "i", "args": ["b"]}])
def test_round_trip(job: dict[str, object]) -> None:
    spec = JobSpec.model_validate(job)
    text = job_file.to_text(spec, ["a note", "two\nlines: yes"])
    assert load_text(text).spec == spec
    assert load_text(job_file.to_json(spec)).spec == spec
    assert job_file.to_text(load_text(text).spec) == job_file.to_text(spec)


def test_the_text_reads_as_a_person_would_write_it() -> None:
    text = job_file.to_text(JobSpec.model_validate(FULL))
    assert text.splitlines()[:6] == [
        "name: digits",
        "resources:",
        "  accelerator:",
        "    - L4:1",
        "    - T4:1..2",
        "    - memory: 24GB..",
    ]
    for line in ("  cloud: [gcp, aws]", "  region: us-central1", "  disk: 1500GB", "code: null", "setup: |-"):
        assert line in text.splitlines()
    assert list(json.loads(job_file.to_json(JobSpec.model_validate(FULL)))) == [
        *("name", "resources", "image", "code", "setup", "run", "args"),
        *("env", "launcher", "job_dir", "checkpoint", "recover", "retry", "limits"),
    ]


def test_defaults_are_left_out() -> None:
    assert job_file.to_text(JobSpec(name="a", run="b")) == "name: a\nresources:\n  accelerator: none\nrun: b\n"


def test_notes_are_comments_whatever_they_hold() -> None:
    lines = job_file.to_text(JobSpec(name="a", run="b"), ["x\nrun: evil\r\u2028" + "long " * 60]).splitlines()
    assert lines[lines.index("name: a") :][0] == "name: a"
    assert all(line.startswith("#") and len(line) <= 100 for line in lines[: lines.index("name: a")])


TEXT = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=30)


@settings(max_examples=100, deadline=None)
@given(args=st.lists(TEXT, max_size=5), value=TEXT, run=TEXT.filter(bool))
def test_any_text_survives(args: list[str], value: str, run: str) -> None:
    spec = JobSpec.model_validate({"name": "a", "run": [run], "args": tuple(args), "env": {"X": value}})
    assert load_text(job_file.to_text(spec, [value])).spec == spec
    assert load_text(job_file.to_json(spec)).spec == spec
