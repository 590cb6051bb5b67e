"""Selection of the subscription and credentials, and translation of the Azure SDK's errors."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from azure.core import PipelineClient
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.core.rest import HttpRequest
from azure.identity import CredentialUnavailableError

from cloudgpu.provisioners import ProvisionError
from cloudgpu.provisioners.azure import account
from cloudgpu.provisioners.shared.clock import SystemClock


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (account.SUBSCRIPTION, account.ENDPOINT, account.AUTHORITY, "AZURE_CLIENT_ID", "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MSI_ENDPOINT", raising=False)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))


def log_in(folder: Path, *subscriptions: dict[str, Any]) -> None:
    """Write the profile as `az login` does, with a byte order mark."""
    text = json.dumps({"installationId": "x", "subscriptions": subscriptions})
    (folder / "azureProfile.json").write_text(text, encoding="utf-8-sig")


def test_the_subscription_is_that_of_az_unless_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = account.Account(SystemClock())
    with pytest.raises(ProvisionError, match="set AZURE_SUBSCRIPTION_ID, or log in") as refused:
        _ = mine.subscription
    assert (refused.value.error_class, refused.value.scope) == ("auth", "cloud")
    log_in(tmp_path, {"id": "other", "isDefault": False}, {"id": "default", "isDefault": True})
    assert mine.subscription == "default"
    monkeypatch.setenv(account.SUBSCRIPTION, "named")
    assert mine.subscription == "default"  # cached until the cache is cleared
    mine.forget()
    assert mine.subscription == "named"


def test_a_broken_profile_is_no_login(tmp_path: Path) -> None:
    (tmp_path / "azureProfile.json").write_text("{")
    assert account.default_subscription() is None
    (tmp_path / "azureProfile.json").write_text('{"subscriptions": 3}')
    assert account.default_subscription() is None


def test_whether_azure_is_set_up_is_seen_without_asking_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not account.is_set_up()
    monkeypatch.setenv("AZURE_CLIENT_ID", "an-application")
    assert not account.is_set_up()
    monkeypatch.setenv(account.SUBSCRIPTION, "s")
    assert account.is_set_up()
    monkeypatch.delenv("AZURE_CLIENT_ID")
    monkeypatch.delenv(account.SUBSCRIPTION)
    log_in(tmp_path, {"id": "default", "isDefault": True})
    assert account.is_set_up()


def test_credentials_are_not_sent_in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = account.Account(SystemClock())
    assert (mine.endpoint, mine.scope) == (
        "https://management.azure.com",
        "https://management.azure.com/.default",
    )
    monkeypatch.setenv(account.ENDPOINT, "https://management.chinacloudapi.cn/")
    assert mine.scope == "https://management.chinacloudapi.cn/.default"
    monkeypatch.setenv(account.ENDPOINT, "http://example.org")
    with pytest.raises(ProvisionError, match="not encrypted"):
        _ = mine.endpoint


# --- errors -----------------------------------------------------------------------------------------------------------


def meaning(error: Exception) -> ProvisionError:
    found = account.translate_error(error, "start worker-0.1", SystemClock())
    assert found is not None
    return found


def answered(status: int, body: Any, **headers: str) -> ProvisionError:
    """Return the ProvisionError for an HTTP response, passed through the SDK's real pipeline."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client: Any = PipelineClient(f"http://127.0.0.1:{server.server_port}", policies=[])
        answer = client.send_request(HttpRequest("GET", f"http://127.0.0.1:{server.server_port}/x"))
        thread.join()
    with pytest.raises(HttpResponseError) as error:
        answer.raise_for_status()
    return meaning(error.value)


def test_azures_code_and_words_are_read_from_its_answer() -> None:
    found = answered(409, {"error": {"code": "SkuNotAvailable", "message": "not available in location 'eastus'"}})
    assert (found.error_class, found.scope, found.code) == ("capacity", "region", "SkuNotAvailable")
    assert str(found).startswith("start worker-0.1: SkuNotAvailable: not available in location 'eastus'")


def test_an_outer_code_that_says_nothing_gives_way_to_the_detail() -> None:
    inner = {"code": "QuotaExceeded", "message": "too many"}
    found = answered(409, {"error": {"code": "Conflict", "message": "see details", "details": [inner]}})
    assert (found.error_class, found.code) == ("quota", "QuotaExceeded")


def test_throttling_says_when_to_ask_again() -> None:
    found = answered(429, {"error": {"code": "OperationNotAllowed", "message": "quota"}}, Retry_After="17")
    assert (found.error_class, found.retry_after) == ("throttled", 17.0)


def test_a_page_of_html_is_no_message() -> None:
    found = answered(503, "<html>" + "x" * 5_000)
    assert found.error_class == "transient"
    assert len(str(found)) < 900


def test_a_clock_that_is_off_is_told() -> None:
    date = "Mon, 01 Jan 2024 00:00:00 GMT"
    found = answered(401, {"error": {"code": "InvalidAuthenticationToken", "message": "expired"}}, Date=date)
    assert found.error_class == "auth"
    assert "this computer's clock is" in str(found)


def test_an_operation_that_failed_is_understood_as_its_answer_would_be() -> None:
    found = account.refusal({"code": "ZonalAllocationFailed", "message": "Allocation failed."}, "start worker-0.1")
    assert (found.error_class, found.scope) == ("capacity", "zone")
    assert account.refusal("no object", "x").error_class == "capacity"


def test_errors_without_an_answer() -> None:
    assert meaning(ServiceRequestError("Failed to resolve 'management.azure.com'")).error_class == "transient"
    assert meaning(CredentialUnavailableError("no environment")).error_class == "auth"
    chain = "DefaultAzureCredential failed to retrieve a token. Attempted credentials failed"
    assert "az login" in str(meaning(ClientAuthenticationError(chain)))
    network = "DefaultAzureCredential failed: HTTPSConnectionPool: Max retries exceeded"
    assert meaning(ClientAuthenticationError(network)).error_class == "transient"
    assert account.translate_error(ValueError("a bug"), "x", SystemClock()) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"AZURE_CLIENT_SECRET": ""}, "client secret"),
        ({"AZURE_CLIENT_SECRET": "s", "AZURE_TENANT_ID": "no tenant!"}, "Invalid tenant"),
        ({"AZURE_CLIENT_CERTIFICATE_PATH": "/nowhere/it.pem"}, "No such file"),
    ],
    ids=["secret", "tenant", "certificate"],
)
def test_settings_that_cannot_be_used_are_told(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], says: str
) -> None:
    for name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({account.SUBSCRIPTION: "s", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"} | wrong).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProvisionError, match=f"read Azure's credentials: .*{says}.*variable AZURE_") as refused:
        _ = account.Account(SystemClock()).credential
    assert (refused.value.error_class, refused.value.scope) == ("auth", "cloud")
