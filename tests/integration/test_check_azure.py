"""Tests of `cloudgpu check azure` over the wire, with faults of Azure and of the user's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.provisioners.azure.catalog import quotas
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.rights import PERMISSIONS, check_container, check_subscription
from cloudgpu.provisioners.checks.job_dirs import check_readable
from cloudgpu.provisioners.checks.rights import needs
from cloudgpu.tests.standins.azure import SUBMITTER, SUBSCRIPTION, Azure, AzureControl
from cloudgpu.tests.standins.azure.permissions import CATALOG, LAUNCH, LET_IN
from cloudgpu.tests.standins.azurite import ACCOUNT, shared
from cloudgpu.tests.standins.check_command import CheckCommand, statuses
from cloudgpu.tests.standins.faults import error

CONTAINER = "jobs-of-tests"
JOBS = f"az://{CONTAINER}@{ACCOUNT}/runs"
READS = "token|*.read|*.list|locations.usages"
OTHERS = (
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Resources/subscriptions/read",
    "Microsoft.Resources/subscriptions/providers/read",
)
"""Actions that the check itself uses, beside those of the page; every reader has them."""


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure() as azure:
        yield azure


@pytest.fixture
def azure(server: Azure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AzureControl]:
    server.control.reset()
    for name, value in {**server.environ(tmp_path), "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    server.control.add_storage(ACCOUNT)
    server.control.forget()
    yield server.control
    server.control.enforce(None)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> CheckCommand:
    return CheckCommand(capsys)


def permit(azure: AzureControl, without: str = "", others: tuple[str, ...] = OTHERS) -> None:
    """Allow the submitter the permissions of the table, without one of them."""
    azure.enforce({SUBMITTER: [*(one.permission for one in needs(PERMISSIONS) if one.permission != without), *others]})


def test_with_the_page_s_roles_all_is_well(azure: AzureControl, check: CheckCommand) -> None:
    permit(azure)
    found = check("azure")
    assert check.code == 0 and found.pop("job_dir")[0]["status"] == "warning", "none is configured"
    assert set().union(*statuses(found).values()) == {"ok"}, found
    assert found["account"][0]["values"]["account"] == SUBSCRIPTION
    assert not azure.calls(f"!{READS}"), "it only reads"
    assert "secret-of-submitter" not in json.dumps(check.report)


def test_the_table_has_the_permissions_of_the_page() -> None:
    for name, page in (("launch", LAUNCH), ("assign", LET_IN), ("catalog", CATALOG)):
        assert {one.permission for one in needs(PERMISSIONS) if one.set == name} == page


def test_each_missing_permission_is_named(azure: AzureControl) -> None:
    clients = Clients()
    for need in needs(PERMISSIONS):
        permit(azure, need.permission)
        found = list(check_subscription(clients, assigns=True))
        if need.set == "job_dir":
            found = list(check_container(clients, f"subscriptions/{SUBSCRIPTION}"))
        missing = {name for one in found for name in one.values["missing"]}
        assert missing == {need.permission}, found
        fatal = any(one.permission == need.permission and not one.without for one in needs(PERMISSIONS))
        assert ("error" in {one.status for one in found}) is fatal, need


def test_a_job_dir_in_blob_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(CONTAINER) as blobs:
        for name, value in blobs.environ().items():
            monkeypatch.setenv(name, value)
        assert check_readable(JOBS).status == "ok"
        missing = check_readable(f"az://nothing@{ACCOUNT}/runs")
        assert missing.status == "error" and missing.fix


def test_no_credentials(azure: AzureControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name)
    found = check("azure")
    assert check.code == 6 and check.report["state"] == "not set up"
    assert "az login" in found["credentials"][0]["fix"] and not azure.calls()
    monkeypatch.delenv("AZURE_SUBSCRIPTION_ID")
    assert "no subscription is named" in check("azure")["credentials"][0]["message"]


def test_an_expired_secret(azure: AzureControl, check: CheckCommand) -> None:
    expired = "AADSTS7000222: The provided client secret keys for app are expired."
    azure.fail("token", error("invalid_client", 401, expired), times=None)
    found = check("azure")
    result = found["credentials"][-1]
    assert check.code == 6 and result["status"] == "error" and "az login" in result["fix"]
    assert statuses(found)["rights"] == ["skipped"]


def test_permissions_that_may_not_be_read(azure: AzureControl, check: CheckCommand) -> None:
    permit(azure, others=OTHERS[1:])
    [result] = check("azure")["rights"]
    assert check.code == 0 and result["status"] == "warning" and "not checked" in result["message"]
    assert "Microsoft.Authorization/permissions/read" in result["message"]


def test_a_provider_that_is_not_registered(azure: AzureControl, check: CheckCommand) -> None:
    azure.unregister("Microsoft.Compute")
    result = check("azure")["api"][0]
    assert check.code == 6 and result["values"] == {"missing": ["Microsoft.Compute"]}
    assert "az provider register --namespace Microsoft.Compute" in result["fix"]


def test_quotas_of_0(azure: AzureControl, check: CheckCommand) -> None:
    azure.set_quota("westus2", "Standard NCASv3_T4 Family", 0)
    for family in [*quotas.families(), quotas.SPOT]:
        azure.set_quota("westus2", family, 0)
    result = check("azure", "--region", "westus2")["quota"][0]
    assert check.code == 0 and result["status"] == "warning" and "no GPU machine can start" in result["message"]
    assert quotas.REQUEST_URL in result["fix"]
    azure.set_quota("westus2", quotas.SPOT, 48)
    result = check("azure", "--region", "westus2")["quota"][0]
    assert result["status"] == "ok" and "any family -/48" in result["message"]


def test_quotas_that_are_throttled(azure: AzureControl, check: CheckCommand) -> None:
    slower = error("TooManyRequests", 429, "slower", **{"Retry-After": "600"})
    azure.fail("locations.usages", slower, times=None)
    result = check("azure")["quota"][0]
    assert check.code == 0 and result["status"] == "warning" and result["message"].startswith("not checked")
    assert result["fix"] == "try again in a minute"


def test_a_region_that_is_not_there(azure: AzureControl, check: CheckCommand) -> None:
    result = check("azure", "--region", "eastuss")["quota"][0]
    assert check.code == 6 and "did you mean" in result["message"]


def test_a_storage_account_that_is_missing(azure: AzureControl, check: CheckCommand) -> None:
    result = check("azure", "--job-dir", "az://jobs@nosuchaccount12345/runs")["job_dir"][0]
    assert check.code == 6 and result["status"] == "error" and "nosuchaccount12345" in result["message"]


def test_tls_that_is_not_trusted(azure: AzureControl, check: CheckCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name)
    found = check("azure")
    result = found["network"][0]
    assert check.code == 6 and "not trusted" in result["message"] and "REQUESTS_CA_BUNDLE" in result["fix"]
    assert statuses(found)["account"] == ["skipped"]
