"""Tests of `cloudgpu check gcp` and `check vertex` over the wire, with faults of Google and of the user's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.provisioners.checks.rights import needs
from cloudgpu.provisioners.gcp.catalog.quotas import quotas
from cloudgpu.provisioners.gcp.rights import PERMISSIONS
from cloudgpu.tests.standins.check_command import CheckCommand, statuses
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcs.control import GcsControl

from .test_gcp_permissions import roles

BUCKET, REGION = "my-bucket", "us-central1"
JOBS = f"gs://{BUCKET}/jobs"
READS = "token|*.get|*.list|*.testIamPermissions"
ACT_AS = "iam.serviceAccounts.actAs"
DISABLED = (
    "Compute Engine API has not been used in project 123 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=123 then retry."
)


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def gce(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GceControl:
    server.control.reset()
    for name, value in {**server.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    GcsControl(server.url).make_bucket(BUCKET)
    server.control.forget()
    return GceControl(server.url)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> CheckCommand:
    return CheckCommand(capsys)


def permit(gce: GceControl, without: str = "") -> None:
    """Allow the submitter the permissions of the table, without one of them."""
    gcp = [one for one in needs(PERMISSIONS) if one.permission != without]
    project = [one.permission for one in gcp if one.set in ("launch", "vertex", "catalog")]
    bucket = [one.permission for one in gcp if one.set == "job_dir"]
    bindings = [{"permissions": project}, {"permissions": bucket, "where": f"projects/_/buckets/{BUCKET}*"}]
    if without != ACT_AS:
        bindings.append({"permissions": [ACT_AS], "where": MACHINE})
    gce.do("enforce", bindings={SUBMITTER: bindings})


@pytest.mark.parametrize("target", ["gcp", "vertex"])
def test_with_the_page_s_roles_all_is_well(gce: GceControl, check: CheckCommand, target: str) -> None:
    permit(gce)
    found = check(target, "--job-dir", JOBS)
    assert set().union(*statuses(found).values()) == {"ok"}, found
    assert check.code == 0 and check.report["state"] == "ok"
    assert found["account"][0]["values"] == {"account": PROJECT, "identity": SUBMITTER}
    assert found["credentials"][0]["values"]["source"] == "key-file"
    assert not gce.calls(f"!{READS}"), "it only reads"


def test_the_table_has_the_permissions_of_the_page() -> None:
    page = list(roles().values())
    for name, listed in zip(("launch", "vertex", "catalog", "job_dir"), page, strict=False):
        assert {one.permission for one in needs(PERMISSIONS) if one.set == name} == set(listed)


def test_each_missing_permission_is_named(gce: GceControl, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudgpu.provisioners.gcp.check import check_job_dirs, rights
    from cloudgpu.provisioners.gcp.clients import Clients

    rest = Clients().rest
    for need in needs(PERMISSIONS):
        permit(gce, need.permission)
        found = list(rights(rest, ("launch", "catalog", "vertex"), [MACHINE]))
        if need.set == "job_dir":
            found = list(check_job_dirs(rest, "gcp", [JOBS], REGION))
        messages = [one for one in found if need.permission in one.message]
        assert messages, (need, found)
        fatal = any(one.permission == need.permission and not one.without for one in needs(PERMISSIONS))
        assert ("error" in {one.status for one in messages}) is fatal, need


def test_no_credentials(gce: GceControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    found = check("gcp")
    assert check.code == 6 and check.report["state"] == "not set up"
    assert "gcloud auth application-default login" in found["credentials"][0]["fix"] and not gce.calls()
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(broken))
    assert check("vertex")["credentials"][0]["status"] == "error" and check.code == 6


def test_credentials_that_google_does_not_take(gce: GceControl, check: CheckCommand) -> None:
    gce.fail("token", error("invalid_grant", 400, "Token has been expired or revoked."), times=None)
    found = check("gcp")
    result = found["credentials"][-1]
    assert check.code == 6 and check.report["state"] == "error"
    assert result["status"] == "error" and "application-default login" in result["fix"]
    assert statuses(found)["rights"] == ["skipped"]


def test_a_user_s_login(gce: GceControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gcloud's application-default login; Google's token service cannot be replaced for it, so that is unreachable."""
    folder = tmp_path / "gcloud"
    folder.mkdir()
    login = {"type": "authorized_user", "client_id": "a", "client_secret": "canary", "refresh_token": "canary"}
    (folder / "application_default_credentials.json").write_text(json.dumps(login))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(folder))
    found = check("gcp")
    assert found["credentials"][0]["values"]["source"] == "login"
    assert check.code == 6 and "token service does not answer" in found["credentials"][-1]["fix"]
    assert "canary" not in json.dumps(check.report)


def test_no_project(gce: GceControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "")
    path = tmp_path / "key.json"
    path.write_text(json.dumps({**gce.do("key", email=SUBMITTER), "project_id": None}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    result = check("gcp")["credentials"][0]
    assert check.code == 6 and "no project" in result["message"] and "gcloud config set project" in result["fix"]


def test_an_api_that_is_not_enabled(gce: GceControl, check: CheckCommand) -> None:
    disabled = error("accessNotConfigured", 403, DISABLED)
    gce.fail("*", disabled, where={"service": "compute"}, times=None)
    result = check("gcp")["api"][0]
    assert check.code == 6 and result["status"] == "error"
    assert "gcloud services enable compute.googleapis.com" in result["fix"]
    page = "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=123"
    assert result["values"] == {"service": "compute.googleapis.com", "activation_url": page}


def test_apis_that_only_the_check_needs(gce: GceControl, check: CheckCommand) -> None:
    """Without Resource Manager, IAM and Cloud Quotas something is not checked, and jobs run all the same."""
    for name in ("cloudresourcemanager", "iam", "cloudquotas"):
        text = f"{name} API has not been used: https://console.developers.google.com/apis/api/{name}.googleapis.com"
        gce.fail("*", error("SERVICE_DISABLED", 403, text), where={"service": name}, times=None)
    found = check("gcp", "--job-dir", JOBS)
    assert check.code == 0 and check.report["state"] == "warning"
    assert [one["status"] for one in found["rights"]] == ["warning", "warning"]
    assert "cloudquotas.googleapis.com is not enabled" in found["quota"][-1]["message"]
    assert check("vertex")["quota"][0]["status"] == "warning"


def test_quotas_that_are_throttled(gce: GceControl, check: CheckCommand) -> None:
    slower = error("rateLimitExceeded", 429, "slower", **{"Retry-After": "600"})
    gce.fail("regions.get", slower, times=None)
    found = check("gcp")
    assert check.code == 0 and {found["quota"][0]["status"], found["api"][0]["status"]} == {"warning"}


def test_quotas_of_0(gce: GceControl, check: CheckCommand) -> None:
    gce.set_quota(REGION, "NVIDIA_T4_GPUS", 3)
    result = check("gcp")["quota"][0]
    assert "T4 3/" in result["message"] and result["values"]["region"] == REGION
    gce.set_quota("global", "GPUS_ALL_REGIONS", 0)
    result = check("gcp")["quota"][0]
    assert check.code == 0 and result["status"] == "warning" and "GPUS_ALL_REGIONS is 0" in result["message"]
    assert f"project={PROJECT}" in result["fix"] and len(quotas("gcp")) > len(result["values"]["quotas"]) > 0


def test_the_machines_account_is_missing(gce: GceControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_GCP_SERVICE_ACCOUNT", f"nobody@{PROJECT}.iam.gserviceaccount.com")
    result = check("gcp")["rights"][-1]
    assert check.code == 6 and "is not there" in result["message"]
    assert "gcloud iam service-accounts create nobody" in result["fix"]


def test_a_bucket_that_is_missing(gce: GceControl, check: CheckCommand) -> None:
    result = check("gcp", "--job-dir", "gs://no-such-bucket/jobs")["job_dir"][0]
    assert check.code == 6 and result["status"] == "error" and "no bucket of this name" in result["message"]


def test_a_region_that_is_not_there(gce: GceControl, check: CheckCommand) -> None:
    result = check("gcp", "--region", "us-nowhere1")["quota"][0]
    assert check.code == 6 and result["status"] == "error" and "us-nowhere1" in result["message"]


def test_an_endpoint_that_is_unreachable(gce: GceControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_GCP_ENDPOINT", "http://127.0.0.1:9")
    found = check("gcp")
    assert check.code == 6 and "refused" in found["network"][0]["message"]
    assert statuses(found)["rights"] == ["skipped"]
