"""Offers that a job is submitted with: clouds that are set up and reach the job dir, and a limited number of places."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

import cloudgpu
from cloudgpu import provisioners
from cloudgpu.control.errors import SubmitError
from cloudgpu.control.submit.submission import CAPACITY_S, _capacity_s
from cloudgpu.control.submit.submittable_offers import MAX_WAYS, limit_offers, obstacle, usable_offers
from cloudgpu.jobspecs.fields import FORMS
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer, Plan
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.jobspecs.targets import built_in, info
from cloudgpu.provisioners import is_set_up
from cloudgpu.provisioners.target import target_of
from cloudgpu.tests.standins.control import make_offer

ROOT = Path(cloudgpu.__file__).parent
TODAY = datetime.date(2026, 11, 21)
AWS, GCP, VERTEX, AZURE, LOCAL = (
    make_offer()._replace(cloud=cloud, region="r") for cloud in ("aws", "gcp", "vertex", "azure", "local")
)


def spec(job_dir: str | None = "s3://bucket/jobs", **resources: object) -> JobSpec:
    values = {"name": "job", "run": "x", "resources": resources, **({"job_dir": job_dir} if job_dir else {})}
    return JobSpec.model_validate(values)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set credentials for AWS and Google, and remove those of the user who runs the tests."""
    for name in ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    for name in ("AZURE_SUBSCRIPTION_ID", "AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path / "az"))


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all credentials."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")


def test_an_omitted_cloud_is_every_one_that_is_set_up() -> None:
    assert usable_offers(spec(), Plan((AZURE, AWS, LOCAL))) == [AWS, LOCAL]


def test_an_omitted_cloud_that_cannot_reach_the_job_dir_is_left_out() -> None:
    assert usable_offers(spec(None), Plan((AWS, LOCAL))) == [LOCAL]
    assert usable_offers(spec("runs"), Plan((AWS, LOCAL))) == [LOCAL]
    assert usable_offers(spec(), Plan((GCP, AWS, VERTEX, LOCAL))) == [AWS, LOCAL]
    assert usable_offers(spec("gs://bucket/jobs"), Plan((GCP, AWS, VERTEX, LOCAL))) == [GCP, VERTEX, LOCAL]


@pytest.mark.usefixtures("no_credentials")
def test_an_omitted_cloud_without_credentials_is_left_out() -> None:
    assert [cloud for cloud in ("aws", "gcp", "vertex", "azure", "local") if is_set_up(cloud)] == ["local"]
    assert usable_offers(spec(), Plan((AWS, LOCAL))) == [LOCAL]
    assert usable_offers(spec("gs://bucket/jobs"), Plan((VERTEX, GCP, LOCAL))) == [LOCAL]


@pytest.mark.parametrize("job_dir", [None, "runs", "file:///data/jobs", "gs://bucket/jobs"])
def test_a_named_cloud_that_cannot_reach_the_job_dir_is_refused_with_advice(job_dir: str | None) -> None:
    with pytest.raises(SubmitError, match=r"aws cannot reach the job dir, .*: write job_dir: s3://BUCKET/FOLDER"):
        usable_offers(spec(job_dir, cloud=["aws", "local"]), Plan((LOCAL, AWS)))


@pytest.mark.parametrize("cloud", ["gcp", "vertex"])
@pytest.mark.parametrize("job_dir", [None, "s3://bucket/jobs"])
def test_google_reaches_cloud_storage_only(cloud: str, job_dir: str | None) -> None:
    with pytest.raises(SubmitError, match=rf"machines of {cloud} cannot reach .*: write job_dir: gs://BUCKET/FOLDER"):
        usable_offers(spec(job_dir, cloud=cloud), Plan((make_offer()._replace(cloud=cloud),)))


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    ("cloud", "job_dir", "advice"),
    [
        ("aws", "s3://bucket/jobs", "aws configure"),
        ("gcp", "gs://bucket/jobs", "gcloud auth application-default login"),
        ("vertex", "gs://bucket/jobs", "gcloud auth application-default login"),
        ("azure", "az://jobs@myaccount/runs", "az login"),
    ],
)
def test_a_named_cloud_that_is_not_set_up_is_refused_with_advice(cloud: str, job_dir: str, advice: str) -> None:
    with pytest.raises(SubmitError, match=rf"{cloud} is not set up here: .*{advice}.*docs/guides/{cloud}\.md"):
        usable_offers(spec(job_dir, cloud=cloud), Plan((make_offer()._replace(cloud=cloud),)))


@pytest.mark.parametrize("job_dir", [None, "gs://bucket/jobs"])
def test_azure_reaches_blob_storage_only(job_dir: str | None) -> None:
    with pytest.raises(SubmitError, match=r"azure cannot reach .*: write job_dir: az://CONTAINER@ACCOUNT/FOLDER"):
        usable_offers(spec(job_dir, cloud="azure"), Plan((AZURE,)))


def test_a_login_or_an_application_and_a_subscription_make_azure_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = spec("az://jobs@myaccount/runs")
    assert usable_offers(job, Plan((AZURE, AWS, LOCAL))) == [LOCAL]
    monkeypatch.setenv("AZURE_CLIENT_ID", "an application")
    assert usable_offers(job, Plan((AZURE, AWS, LOCAL))) == [LOCAL]
    monkeypatch.setenv("AZURE_SUBSCRIPTION_ID", "a subscription")
    assert usable_offers(job, Plan((AZURE, AWS, LOCAL))) == [AZURE, LOCAL]
    monkeypatch.delenv("AZURE_CLIENT_ID")
    monkeypatch.delenv("AZURE_SUBSCRIPTION_ID")
    (tmp_path / "az").mkdir()
    profile = {"subscriptions": [{"id": "one", "isDefault": False}, {"id": "two", "isDefault": True}]}
    (tmp_path / "az" / "azureProfile.json").write_text(json.dumps(profile))
    assert usable_offers(job, Plan((AZURE, LOCAL))) == [AZURE, LOCAL]


def test_when_nothing_is_usable_every_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(built_in(), "azure", info("azure")._replace(code=""))
    with pytest.raises(SubmitError) as caught:
        usable_offers(spec(None), Plan((AZURE, AWS)))
    assert "plans for azure, but launches only on: aws, gcp, local, vertex" in str(caught.value)
    assert "machines of aws cannot reach the job dir, a folder of this computer" in str(caught.value)


def test_a_plan_says_so_without_looking_for_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(spec(), "aws", look=False) == ""
    assert "s3://" in obstacle(spec(None), "aws", look=False)
    assert obstacle(spec("gs://bucket/jobs"), "gcp", look=False) == ""
    assert obstacle(spec("az://jobs@myaccount/runs"), "azure", look=False) == ""
    monkeypatch.setitem(built_in(), "azure", info("azure")._replace(code=""))
    assert "launches only on" in obstacle(spec(), "azure", look=False)


def test_every_target_that_needs_it_has_advice() -> None:
    assert {scheme for target in built_in().values() for scheme in target.schemes} <= set(FORMS)
    for name in provisioners.launchable():
        target = target_of(name)
        assert target is not None
        assert bool(target.set_up) == bool(target.setup_hint)
        if target.set_up:
            [page] = re.findall(r"docs/[a-z/]+\.md", target.setup_hint)
            assert target.setup_hint.startswith(f"{name} is not set up here") and (ROOT / page).is_file()


def test_inputs_that_machines_cannot_reach_are_refused() -> None:
    job = {"name": "job", "run": "x", "job_dir": "s3://bucket/jobs", "inputs": {"data": "gs://bucket/data"}}
    found = obstacle(JobSpec.model_validate(job), "aws", look=False)
    assert found == "machines of aws cannot reach inputs.data, gs://bucket/data: they read from s3://"
    assert obstacle(JobSpec.model_validate(job), "local", look=False) == ""


def test_offers_of_unknown_price_cannot_be_held_to_a_cost() -> None:
    limited = JobSpec.model_validate({"name": "job", "run": "x", "limits": {"cost": "5 USD"}})
    dear = LOCAL._replace(price=None)
    assert usable_offers(limited, Plan((dear, LOCAL))) == [LOCAL]
    with pytest.raises(SubmitError, match=r"the price of .* is unknown"):
        usable_offers(limited, Plan((dear,)))


# -- places that are kept


def planned(**resources: Any) -> list[Offer]:
    return list(plan(spec(**resources), machine=None, today=TODAY).offers)


@pytest.mark.parametrize(
    "resources",
    [
        {"accelerator": "T4:1", "cloud": "aws", "market": ["spot", "on-demand"]},
        {"accelerator": ["T4:1", "L4:1", "A10G:1"], "cloud": "aws", "market": ["spot", "on-demand"]},
        {"accelerator": "A100:8", "cloud": "aws", "market": ["spot", "on-demand"]},
        {"accelerator": ["L4:1", "T4:1"], "cloud": "aws", "market": "on-demand"},
    ],
)
def test_no_region_and_no_kind_of_machine_is_cut_away(resources: dict[str, Any]) -> None:
    offers = planned(**resources)
    kept = limit_offers(offers)
    ways = {offer._replace(zone=None) for offer in kept}
    assert len(ways) <= MAX_WAYS
    assert {offer.region for offer in kept} == {offer.region for offer in offers}
    kinds = {(offer.market, offer.roles[0].accelerator) for offer in offers}
    assert {(offer.market, offer.roles[0].accelerator) for offer in kept} == kinds
    assert kept == [offer for offer in offers if offer in set(kept)], "the plan's order"
    assert kept[0] == offers[0]
    assert set(kept) == {offer for offer in offers if offer._replace(zone=None) in ways}, "with all zones"


def test_few_places_are_all_kept() -> None:
    offers = planned(accelerator="T4:1", cloud="aws", region=["us-east-1", "us-west-2"])
    assert limit_offers(offers) == offers


def test_in_a_long_list_the_better_ones_are_kept() -> None:
    offers = [make_offer(region=f"r{number}", zone="a") for number in range(100)]
    assert limit_offers(offers) == offers[:MAX_WAYS]


# -- timeouts


def test_how_long_machines_are_looked_for() -> None:
    assert _capacity_s(None, [LOCAL]) is None
    assert _capacity_s(None, [LOCAL, AWS]) == CAPACITY_S
    assert _capacity_s("unlimited", [AWS]) is None
    assert _capacity_s(7200, [LOCAL]) == 7200


@pytest.mark.parametrize(("text", "value"), [("2h", 7200), ("unlimited", "unlimited"), ("90s", 90)])
def test_retry_capacity_is_read_and_stored(text: str, value: object) -> None:
    read = JobSpec.model_validate({"name": "job", "run": "x", "retry": {"capacity": text}})
    assert read.retry.capacity == value
    assert JobSpec.from_stored(read.to_stored()).retry.capacity == value
    assert JobSpec.model_validate({"name": "job", "run": "x"}).retry.capacity is None
