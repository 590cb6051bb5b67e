"""Google's SDK is optional; whose account it is; its exceptions, and those of the transport, become one line."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core.exceptions import GoogleAPICallError

from cloudgpu.provisioners import ProvisionError
from cloudgpu.provisioners.gcp.account import Account, error_translator, is_set_up
from cloudgpu.provisioners.gcp.clients import Clients, translate_error, translate_errors
from cloudgpu.tests.standins.clocks import FastClock

# The package has no types.
api: Any = importlib.import_module("google.api_core.exceptions")
auth: Any = importlib.import_module("google.auth.exceptions")

_SETTINGS = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCE_METADATA_HOST", "CLOUDGPU_GCP_ENDPOINT")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all of the user's Google Cloud settings."""
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def answer(status: int, body: object, **headers: str) -> GoogleAPICallError:
    """Return a response of Google as the exception that the SDK raises."""
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    response._content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    response.request = requests.Request("POST", "https://compute.googleapis.com/compute/v1/x").prepare()
    made = api.from_http_response(response)
    assert isinstance(made, GoogleAPICallError)
    return made


def legacy(reason: str, status: int, message: str) -> GoogleAPICallError:
    """An error in Compute Engine's form."""
    told_so = {"reason": reason, "message": message, "domain": "global"}
    return answer(status, {"error": {"code": status, "message": message, "errors": [told_so]}})


def test_the_sdk_is_loaded_by_nothing_but_a_call() -> None:
    code = "import sys; from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner; GcpProvisioner()"
    loaded = "{name for name in sys.modules if name.startswith(('google.a', 'google.cloud.', 'requests'))}"
    assert run(f"{code}; print({loaded})") == "set()"


@pytest.mark.parametrize("missing", ["google.auth", "google.cloud.compute_v1"])
@pytest.mark.parametrize(
    "call", ["get_provisioner('gcp').find(Owner('x'))", "tagged_resources.find('gcp', Owner('x'), [])"]
)
def test_without_the_sdk_it_is_said_what_to_install(missing: str, call: str) -> None:
    code = f"""
import os, sys
sys.modules["{missing}"] = None
os.environ["GOOGLE_CLOUD_PROJECT"] = "p"
from cloudgpu.provisioners import Owner, ProvisionError, get_provisioner, tagged_resources
try:
    {call}
except ProvisionError as error:
    print(error.error_class, error)
"""
    assert run(code) == "invalid the target gcp needs Google's SDK: pip install 'cloudgpu[gcp]'"


# --- account and credentials ------------------------------------------------------------------------------------------


def test_without_credentials_it_is_said_how_to_log_in() -> None:
    assert not is_set_up()
    with pytest.raises(ProvisionError, match="gcloud auth application-default login") as caught:
        _ = Account(FastClock()).project
    assert caught.value.error_class == "auth"


def test_credentials_of_some_kind_are_enough_to_be_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "gcloud"
    folder.mkdir()
    (folder / "application_default_credentials.json").write_text("{}")
    assert is_set_up()
    (folder / "application_default_credentials.json").unlink()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    assert is_set_up(), "whoever uses it is told that there is no such file"
    with pytest.raises(ProvisionError, match=r"/nowhere\.json") as caught:
        _ = Account(FastClock()).credentials
    assert caught.value.error_class == "auth"


def test_an_endpoint_in_the_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_GCP_ENDPOINT", "http://compute.example.org")
    with pytest.raises(ProvisionError, match="not encrypted"):
        _ = Account(FastClock()).endpoint
    monkeypatch.setenv("CLOUDGPU_GCP_ENDPOINT", "http://127.0.0.1:1/")
    assert Account(FastClock()).endpoint == "http://127.0.0.1:1"


def test_the_machines_service_account_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_GCP_SERVICE_ACCOUNT", "runner@p.iam.gserviceaccount.com")
    assert Clients(FastClock()).service_account == "runner@p.iam.gserviceaccount.com"


# --- error translation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (legacy("rateLimitExceeded", 403, "Rate Limit Exceeded"), "throttled", "Rate Limit Exceeded"),
        (legacy("userRateLimitExceeded", 403, "Too fast"), "throttled", "Too fast"),
        (legacy("quotaExceeded", 403, "Quota 'FIREWALLS' exceeded.  Limit: 100.0 globally."), "quota", "FIREWALLS"),
        (
            legacy("forbidden", 403, "Required 'compute.instances.create' permission for 'projects/p/zones/z'"),
            "auth",
            "compute.instances.create",
        ),
        (legacy("accessNotConfigured", 403, "Compute Engine API has not been used"), "auth", "gcloud services enable"),
        (legacy("authError", 401, "Invalid Credentials"), "auth", "log in again"),
        (legacy("invalid", 400, "Invalid value for field 'resource.name': 'X'"), "invalid", "resource.name"),
        (
            legacy("notFound", 404, "The resource 'projects/p/zones/z/acceleratorTypes/nvidia-l4' was not found"),
            "not_offered",
            "nvidia-l4",
        ),
        (legacy("alreadyExists", 409, "The resource 'x' already exists"), "transient", "still, or again"),
        (legacy("backendError", 503, "Backend Error"), "transient", "Backend Error"),
        (answer(502, "<html><title>502 Bad Gateway</title></html>"), "transient", "502"),
        (answer(429, {"error": {"code": 429, "message": "slower", "status": "RESOURCE_EXHAUSTED"}}), "throttled", ""),
        (auth.DefaultCredentialsError("none were found"), "auth", "gcloud auth application-default login"),
        (auth.RefreshError("invalid_grant: Token has been expired or revoked."), "expired", "invalid_grant"),
        (auth.RefreshError("Service Unavailable", retryable=True), "transient", "token service"),
        (auth.TransportError("cannot be reached"), "transient", "check the network"),
        (requests.exceptions.ReadTimeout("Read timed out."), "transient", "check the network"),
        (requests.exceptions.ConnectionError("Connection aborted."), "transient", "check the network"),
        (requests.exceptions.SSLError("bad certificate"), "transient", "REQUESTS_CA_BUNDLE"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, Exception) else None,
)
def test_exceptions_of_the_sdk(error: Exception, kind: str, says: str) -> None:
    with pytest.raises(ProvisionError, match="launch") as caught, translate_errors("launch", FastClock()):
        raise error
    assert caught.value.error_class == kind
    assert says in str(caught.value)
    assert "https://compute" not in str(caught.value), "the URL is nobody's business"


def test_a_bug_is_no_error_of_googles() -> None:
    assert translate_error(KeyError("x"), "launch", FastClock()) is None
    with pytest.raises(KeyError), translate_errors("launch", FastClock()):
        raise KeyError("x")


def test_google_says_when_to_come_back() -> None:
    busy = translate_error(
        answer(429, {"error": {"message": "slower"}}, **{"Retry-After": "30"}), "launch", FastClock()
    )
    assert busy is not None and (busy.error_class, busy.retry_after) == ("throttled", 30.0)


def test_a_page_of_html_is_cut() -> None:
    page = translate_error(answer(503, f"<html>{'x' * 10_000}</html>"), "launch", FastClock())
    assert page is not None and len(str(page)) < 700


def test_the_newer_apis_say_it_elsewhere() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED", "domain": "g"}
    error = answer(429, {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [info]}})
    found = translate_error(error, "look", FastClock())
    assert found is not None and (found.code, found.error_class) == ("RATE_LIMIT_EXCEEDED", "throttled")
    plain = answer(403, {"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}})
    for target in ("gcp", "vertex"):
        same = error_translator(target)(plain, "look", FastClock())
        assert same is not None and (same.code, same.error_class) == ("PERMISSION_DENIED", "auth")
