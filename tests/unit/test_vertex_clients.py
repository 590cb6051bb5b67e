"""Google's optional SDK: lazy import, client settings, and translation of its exceptions on both transports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import google.api_core.exceptions as api
import grpc
import pytest
import requests

from cloudgpu.provisioners import Owner, ProvisionError, get_provisioner
from cloudgpu.provisioners.vertex.clients import ENDPOINT, TRANSPORT, Clients, translate_error
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.gcp.tokens import Tokens


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    return done.stdout.strip()


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set credentials of a key file that have not been used yet."""
    import json

    key = tmp_path / "key.json"
    key.write_text(json.dumps(Tokens().key_file("a@p.iam.gserviceaccount.com", "p", "http://127.0.0.1:9/token")))
    for name in ("CLOUDGPU_GCP_ENDPOINT", ENDPOINT, TRANSPORT, "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))


def test_the_sdk_is_loaded_by_nothing_but_a_call() -> None:
    code = "import sys; from cloudgpu.provisioners import get_provisioner; get_provisioner('vertex')"
    assert run(f"{code}; print({{'google.auth', 'google.api_core', 'grpc', 'requests'}} & set(sys.modules))") == "set()"


def test_without_the_sdk_it_is_said_what_to_install() -> None:
    code = """
import sys
sys.modules["google.cloud.aiplatform_v1"] = sys.modules["google.auth"] = None
from cloudgpu.provisioners import Owner, ProvisionError, get_provisioner
try:
    get_provisioner("vertex").find(Owner("x"))
except ProvisionError as error:
    print(error.error_class, error)
"""
    assert run(code) == "invalid the target vertex needs Google's SDK: pip install 'cloudgpu[gcp]'"


@pytest.mark.usefixtures("account")
def test_without_a_setting_a_region_is_asked_at_its_own_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(FastClock())
    assert clients.parent("europe-west4") == "projects/p/locations/europe-west4"
    assert clients.jobs("europe-west4").api_endpoint == "https://europe-west4-aiplatform.googleapis.com"
    assert clients.jobs("europe-west4") is clients.jobs("europe-west4")
    monkeypatch.setenv(TRANSPORT, "grpc")
    clients.forget()
    assert clients.jobs("europe-west4").transport.host == "europe-west4-aiplatform.googleapis.com:443"


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (TRANSPORT, "soap", "there are rest and grpc"),
        (ENDPOINT, "http://vertex.example:80", "is not encrypted"),
        (ENDPOINT, "https://vertex.example", "is for tests"),
        ("CLOUDGPU_GCP_ENDPOINT", "http://vertex.example", "is not encrypted"),
    ],
)
def test_settings_that_are_refused(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ProvisionError, match=says) as caught:
        Clients(FastClock()).jobs("us-central1")
    assert caught.value.error_class == "invalid" and name in str(caught.value)


def test_without_credentials_it_is_said_how_to_get_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ProvisionError, match=r"none\.json") as caught:
        get_provisioner("vertex").find(Owner("x"))
    assert caught.value.error_class == "auth" and "gcloud auth application-default login" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (api.ServiceUnavailable, "transient"),
        (api.GatewayTimeout, "transient"),
        (api.DeadlineExceeded, "transient"),
        (requests.exceptions.ReadTimeout, "transient"),
        (requests.exceptions.ConnectTimeout, "transient"),
        (requests.exceptions.ConnectionError, "transient"),
        (requests.exceptions.SSLError, "transient"),
        (api.TooManyRequests, "throttled"),
        (api.ResourceExhausted, "throttled"),
        (api.Forbidden, "auth"),
        (api.PermissionDenied, "auth"),
        (api.Unauthorized, "auth"),
        (api.Unauthenticated, "auth"),
        (api.BadRequest, "invalid"),
        (api.InvalidArgument, "invalid"),
    ],
)
def test_exceptions_of_both_wires(error: type[Exception], kind: str) -> None:
    found = translate_error(error("no"), "start worker-0.1", FastClock())
    assert found is not None
    assert found.error_class == kind and str(found).startswith("start worker-0.1: ")


def test_a_bug_is_no_error_of_googles() -> None:
    assert translate_error(KeyError("x"), "launch", FastClock()) is None
    assert translate_error(grpc.RpcError("not even a call"), "launch", FastClock()) is None
