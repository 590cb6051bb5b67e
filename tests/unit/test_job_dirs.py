"""Job dirs per cloud: their form in the job file, the clouds that can reach them, and their URLs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cloudgpu.control.errors import SubmitError
from cloudgpu.control.submit.submission import _job_dir_urls, _portable, _reads
from cloudgpu.control.submit.submittable_offers import obstacle, usable_offers
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.job_file import to_text
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Plan
from cloudgpu.jobspecs.schema import job_schema
from cloudgpu.protocol.jobdir import JobRecord
from cloudgpu.tests.standins.control import make_offer

S3, GS, AZ = "s3://bucket/jobs", "gs://bucket/jobs", "az://jobs@account/jobs"
EACH = {"aws": S3, "gcp": GS, "azure": AZ}
AWS, GCP, VERTEX, AZURE, LOCAL = (
    make_offer()._replace(cloud=cloud, region="r") for cloud in ("aws", "gcp", "vertex", "azure", "local")
)


def spec(job_dir: Any, *clouds: str, **more: Any) -> JobSpec:
    resources = {"cloud": list(clouds)} if clouds else {}
    given = {} if job_dir is None else {"job_dir": job_dir}
    return JobSpec.model_validate({"name": "job", "run": "x", "resources": resources, **given, **more})


def text(job_dir: str) -> str:
    return f"name: job\nrun: x\njob_dir: {job_dir}\n"


# -- the job file


@pytest.mark.parametrize("job_dir", [S3, "runs", EACH, {"local": "runs"}, {"vertex": GS, "gcp": GS}])
def test_one_for_all_or_one_for_each_is_read_stored_and_written(job_dir: Any) -> None:
    loaded = load_text(text(json.dumps(job_dir))).spec
    assert loaded.job_dir == job_dir == JobSpec.from_stored(json.loads(json.dumps(loaded.to_stored()))).job_dir
    assert load_text(to_text(loaded)).spec == loaded
    jsonschema.validate({"name": "job", "run": "x", "job_dir": job_dir}, job_schema())
    for cloud in ("aws", "gcp", "vertex", "azure", "local"):
        assert loaded.job_dir_on(cloud) == (job_dir.get(cloud) if isinstance(job_dir, Mapping) else job_dir)


@pytest.mark.parametrize(
    ("job_dir", "where", "message", "hint"),
    [
        (f"{{asw: {S3}}}", (3, 11), "expected local, aws, gcp, vertex or azure, not `asw`", "did you mean aws?"),
        ("{aws: sss://b/c}", (3, 16), "expected a path or file://, s3://, gs:// or az://, not `sss://b/c`", ""),
        ("{aws: 's3://'}", (3, 16), "`s3://` names no folder", "write s3://NAME/FOLDER"),
        ("{aws: }", (3, 16), "expected a text, not nothing", ""),
        ("{}", (3, 10), "this is empty", "write a value, or delete the key"),
        (f"[{S3}]", (3, 10), "expected a text, not a list", ""),
    ],
)
def test_mistakes_in_it_are_shown_where_they_are(job_dir: str, where: tuple[int, int], message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(text(job_dir))
    (found,) = caught.value.diagnostics
    assert (found.line, found.column, found.message) == (*where, message)
    assert found.hint.startswith(hint)


@pytest.mark.parametrize("job_dir", [{"asw": S3}, {}, [S3], {"aws": None}])
def test_editors_see_them_too(job_dir: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "job", "run": "x", "job_dir": job_dir}, job_schema())


@pytest.mark.parametrize(
    ("given", "override", "expected"),
    [
        (json.dumps({"aws": S3}), f"job_dir.gcp={GS}", {"aws": S3, "gcp": GS}),
        (json.dumps({"aws": S3}), f"job_dir={GS}", GS),
        (S3, f"job_dir={{gcp: {GS}}}", {"gcp": GS}),
        ("", f"job_dir.gcp={GS}", {"gcp": GS}),
    ],
)
def test_the_command_line_changes_one_or_all(given: str, override: str, expected: Any) -> None:
    assert load_text(text(given), overrides=[override]).spec.job_dir == expected


# -- access from clouds


@pytest.fixture(autouse=True)
def _credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set credentials for all three clouds."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
        "AZURE_SUBSCRIPTION_ID": "a subscription",
        "AZURE_CLIENT_ID": "an application",
    }.items():
        monkeypatch.setenv(name, value)


def test_each_cloud_has_its_own() -> None:
    everywhere = Plan((AWS, GCP, AZURE))
    assert usable_offers(spec(EACH, "aws", "gcp", "azure"), everywhere) == [AWS, GCP, AZURE]
    assert usable_offers(spec(EACH), everywhere) == [AWS, GCP, AZURE]


def test_a_cloud_that_has_none_is_left_out_unless_it_is_named() -> None:
    few = {"aws": S3, "azure": GS}
    assert usable_offers(spec(few), Plan((GCP, AZURE, AWS, LOCAL))) == [AWS]
    with pytest.raises(SubmitError) as caught:
        usable_offers(spec(few, "aws", "gcp", "azure"), Plan((AWS, GCP, AZURE)))
    line = "{aws: s3://bucket/jobs, azure: az://CONTAINER@ACCOUNT/FOLDER, gcp: gs://BUCKET/FOLDER}"
    assert str(caught.value) == f"job_dir names none that machines of gcp and azure can reach: write job_dir: {line}"


@pytest.mark.parametrize(
    ("job_dir", "clouds", "line"),
    [
        (S3, ("aws", "gcp"), "{aws: s3://bucket/jobs, gcp: gs://BUCKET/FOLDER}"),
        (S3, ("gcp", "vertex"), "gs://BUCKET/FOLDER"),
        (None, ("aws", "gcp"), "{aws: s3://BUCKET/FOLDER, gcp: gs://BUCKET/FOLDER}"),
        (None, ("local", "aws"), "s3://BUCKET/FOLDER"),
        (None, ("local", "aws", "gcp"), "{local: file:///FOLDER, aws: s3://BUCKET/FOLDER, gcp: gs://BUCKET/FOLDER}"),
        ({"gcp": GS}, ("gcp", "vertex"), "{gcp: gs://bucket/jobs, vertex: gs://BUCKET/FOLDER}"),
        ({"aws": S3}, ("aws", "local"), "{aws: s3://bucket/jobs, local: file:///FOLDER}"),
    ],
)
def test_what_is_refused_says_the_line_to_write(job_dir: Any, clouds: tuple[str, ...], line: str) -> None:
    offers = tuple(make_offer()._replace(cloud=cloud, region="r") for cloud in clouds)
    with pytest.raises(SubmitError) as caught:
        usable_offers(spec(job_dir, *clouds), Plan(offers))
    assert str(caught.value).endswith(f": write job_dir: {line}")
    filled = line.replace("BUCKET", "b").replace("CONTAINER@ACCOUNT", "c@a").replace("FOLDER", "f")
    loaded = load_text(text(filled), overrides=[f"resources.cloud=[{', '.join(clouds)}]"]).spec
    assert [obstacle(loaded, cloud, look=False) for cloud in clouds] == [""] * len(clouds), "what it says is right"


# -- inputs per cloud


def test_inputs_may_be_in_each_cloud_too() -> None:
    data = {"aws": "s3://bucket/data", "gcp": "gs://bucket/data"}
    given = json.dumps({"data": data, "weights.pt": "s3://bucket/w.pt"})
    loaded = load_text(f"name: job\nrun: x\njob_dir: {json.dumps(EACH)}\ninputs: {given}\n").spec
    assert JobSpec.from_stored(json.loads(json.dumps(loaded.to_stored()))) == loaded == load_text(to_text(loaded)).spec
    assert loaded.inputs_on("aws") == {"data": data["aws"], "weights.pt": "s3://bucket/w.pt"}
    assert [obstacle(loaded, cloud, look=False) for cloud in ("aws", "gcp", "azure")] == [
        "",
        "machines of gcp cannot reach inputs.weights.pt, s3://bucket/w.pt: they read from gs://",
        "inputs.data names none for azure, whose machines read from az://",
    ]
    assert _reads(loaded, ["aws", "gcp"]) == {
        "aws": ["s3://bucket/data", "s3://bucket/w.pt"],
        "gcp": ["gs://bucket/data", "s3://bucket/w.pt"],
    }
    inputs = {path: _portable(where) for path, where in loaded.inputs.items()}
    record = JobRecord.from_bytes(JobRecord("job-1", "job", "x", inputs=inputs).to_bytes())
    assert record.inputs_on("aws") == loaded.inputs_on("aws")
    assert record.inputs_on("azure") == {"weights.pt": "s3://bucket/w.pt"}


def test_mistakes_in_the_inputs_of_a_cloud_are_shown_where_they_are() -> None:
    with pytest.raises(SpecError) as caught:
        load_text("name: job\nrun: x\ninputs:\n  data:\n    aws: folder\n    gpc: gs://b/d\n    azure: 7\n")
    found = [(one.line, one.column, one.hint) for one in caught.value.diagnostics]
    assert found == [
        (5, 10, "write aws: s3://BUCKET/FOLDER"),
        (6, 5, "did you mean gcp?"),
        (7, 12, "write azure: az://CONTAINER@ACCOUNT/FOLDER"),
    ]


# -- URLs of job dirs


def test_the_folders_of_a_job(tmp_path: Path) -> None:
    given = {"aws": S3 + "/", "local": "runs", "azure": AZ, "vertex": GS}
    loaded = load_text(text(json.dumps(given)), base=tmp_path)
    urls = _job_dir_urls(loaded, ["azure", "local", "aws"], "job-1")
    assert urls == {"azure": f"{AZ}/job-1", "local": f"file://{tmp_path}/runs/job-1", "aws": f"{S3}/job-1"}
    assert (tmp_path / "runs/job-1").stat().st_mode & 0o777 == 0o700
    assert _job_dir_urls(load_text(text(S3)), ["aws", "local"], "job-1") == dict.fromkeys(
        ["aws", "local"], f"{S3}/job-1"
    )
