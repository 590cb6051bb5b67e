"""The default job_dir of a job, taken from a known infra stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.control.errors import StoreError
from cloudgpu.control.submit.default_job_dir import with_job_dir
from cloudgpu.jobspecs.loading.draft import LoadedSpec
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import Offer, Plan
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    return tmp_path


def job(more: str = "") -> LoadedSpec:
    return load_text(f"name: job\nrun: x\ncode: null\n{more}")


def plan(*places: tuple[str, str]) -> Plan:
    offers = tuple(Offer(cloud, region, None, "on-demand", (), 100.0, None, None, None) for cloud, region in places)
    return Plan(offers, ())


def stack(cloud: str, region: str, job_dir: str) -> None:
    infra_outputs.save(Infrastructure(cloud, region, f"infra-{cloud}-{region}", "me", "net", job_dir=job_dir))


def test_the_bucket_of_the_stack_in_the_best_offers_region() -> None:
    stack("aws", "us-east-1", "s3://one/jobs")
    stack("aws", "us-west-2", "s3://two/jobs")
    found, said = with_job_dir(job(), plan(("aws", "us-west-2"), ("aws", "us-east-1")))
    assert found.spec.job_dir == "s3://two/jobs"
    assert "s3://two/jobs" in said


def test_a_stack_elsewhere_in_the_cloud_is_better_than_none() -> None:
    stack("gcp", "us-central1", "gs://one/jobs")
    found, _ = with_job_dir(job(), plan(("vertex", "europe-west4"), ("gcp", "us-east1")))
    assert found.spec.job_dir == "gs://one/jobs"


def test_several_clouds_have_each_their_own_and_this_machine_its_folder(home: Path) -> None:
    stack("aws", "us-east-1", "s3://one/jobs")
    stack("azure", "eastus", "az://jobs@two/jobs")
    places = (("local", "local"), ("aws", "us-east-1"), ("azure", "eastus"), ("gcp", "us-east1"))
    found, _ = with_job_dir(job(), plan(*places))
    assert found.spec.job_dir == {
        "aws": "s3://one/jobs",
        "azure": "az://jobs@two/jobs",
        "local": (home / "jobs").as_uri(),
    }
    assert found.spec.job_dir_on("gcp") is None


def test_a_job_that_names_one_keeps_it() -> None:
    stack("aws", "us-east-1", "s3://one/jobs")
    loaded = job("job_dir: s3://mine/jobs\n")
    assert with_job_dir(loaded, plan(("aws", "us-east-1"))) == (loaded, "")


def test_without_a_stack_all_is_as_it_was() -> None:
    stack("gcp", "us-central1", "gs://one/jobs")
    for places in ((("aws", "us-east-1"),), (("local", "local"),), ()):
        loaded = job()
        assert with_job_dir(loaded, plan(*places)) == (loaded, "")


def test_a_damaged_file_is_named() -> None:
    stack("aws", "us-east-1", "s3://one/jobs")
    infra_outputs.path_of("aws", "us-east-1").write_text("{")
    with pytest.raises(StoreError, match="aws-us-east-1"):
        with_job_dir(job(), plan(("aws", "us-east-1")))
    assert with_job_dir(job(), plan(("local", "local")))[1] == ""
