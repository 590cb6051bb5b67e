"""A job dir in Blob Storage: which credentials are used, which endpoint, and the messages for refused requests."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, MissingError, portable_url
from cloudgpu.storage.azure_account import _login

from ..standins.azurite import ACCOUNT, KEY, Azurite, a_token, shared
from ..standins.tls import server_context

CONTAINER = "jobs-of-tests"
URL = f"az://{CONTAINER}@{ACCOUNT}/jobs/a-1"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server() -> Iterator[Azurite]:
    with shared(CONTAINER) as made:
        yield made


@pytest.fixture
def blobs(server: Azurite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Azurite:
    """Provide an environment in which only the Blob Storage endpoint is configured."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name, value in server.environ("").items():
        monkeypatch.setenv(name, value)
    _login.cache_clear()
    return server


class Authority:
    """Fake token service: it answers POST for an application's secret and GET for a machine's managed identity."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[dict[str, str]] = []
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.give(parse_qs(form), {"path": self.path})

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self.give(parse_qs(parts.query), {"path": parts.path, "Metadata": self.headers["Metadata"] or ""})

            def give(self, asked: dict[str, list[str]], more: dict[str, str]) -> None:
                authority.asked.append({name: values[0] for name, values in asked.items()} | more)
                result = {"access_token": a_token(), "token_type": "Bearer", "expires_in": 3_600, "resource": ""}
                if "/metadata/" in more["path"]:
                    result |= {"expires_in": "3600", "expires_on": str(int(time.time()) + 3_600)}
                body = json.dumps(result).encode()
                self.send_response_only(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Suppress the request log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            self.server.socket = server_context(certificate).wrap_socket(self.server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Authority:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def works(name: str) -> bool:
    return JobDir(URL).create(f"{name}.json", b"mine") and JobDir(URL).get(f"{name}.json") == b"mine"


class TestCredentials:
    @pytest.mark.parametrize("variable", ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"])
    def test_an_accounts_key(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        monkeypatch.setenv(variable, KEY)
        assert works(variable)

    def test_a_token(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_TOKEN", a_token())
        assert works("token")

    def test_an_applications_secret(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        with Authority(blobs.certificate) as authority:
            result = {"TENANT_ID": "a-tenant", "CLIENT_ID": "a-client", "CLIENT_SECRET": "a-secret"}
            for name, value in (result | {"AUTHORITY_HOST": authority.url}).items():
                monkeypatch.setenv(f"AZURE_{name}", value)
            assert works("secret")
        assert authority.asked[0]["path"] == "/a-tenant/oauth2/v2.0/token"
        assert (authority.asked[0]["client_id"], authority.asked[0]["client_secret"]) == ("a-client", "a-secret")

    def test_a_machines_identity(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        """The identity must be used although azure-identity is installed, as it is here."""
        with Authority() as authority:
            monkeypatch.setenv("AZURE_CLIENT_ID", "its-identity")
            monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{authority.url}/metadata/identity/oauth2/token")
            assert works("identity")
        assert {(one["client_id"], one["Metadata"]) for one in authority.asked} == {("its-identity", "true")}
        assert {one["resource"].rstrip("/") for one in authority.asked} == {"https://storage.azure.com"}

    def test_a_login_of_the_command_line(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """All job dirs of a process share one call of `az`."""
        az, calls = tmp_path / "az", tmp_path / "calls"
        token = {"accessToken": a_token(), "expiresOn": "2999-01-01 00:00:00.000000", "expires_on": 32_472_144_000}
        az.write_text(
            f"#!{sys.executable}\nprint({json.dumps(json.dumps(token))})\nopen({str(calls)!r}, 'a').write('.')\n"
        )
        az.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv(
            "AZURE_TOKEN_CREDENTIALS", "AzureCliCredential"
        )  # azure-identity's setting: use no other credential
        assert works("login")
        JobDir(URL.replace("a-1", "a-2")).list("")
        assert calls.read_text() == "."

    def test_none_at_all(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
        with pytest.raises(
            JobDirError, match=r"no Azure credentials were found: log in \(az login\).*Azure CLI not found"
        ):
            JobDir(URL).get("job.json")

    def test_a_machine_without_its_metadata_service(self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        with Authority() as authority:
            monkeypatch.setenv("AZURE_CLIENT_ID", "its-identity")
            monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{authority.url}/metadata/identity/oauth2/token")
        with pytest.raises(
            JobDirError, match=r"the metadata service gives no token\. Elsewhere than on Azure's machines"
        ):
            JobDir(URL).get("job.json")


@pytest.fixture
def token(blobs: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", a_token())
    return blobs


class TestUrls:
    def test_the_account_may_be_the_environments(self, token: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        JobDir(URL).put("where.json", b"there")
        short = URL.replace(f"@{ACCOUNT}", "")
        assert JobDir(short).get("where.json") == b"there"
        assert portable_url(short) == portable_url(URL) == URL

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            (f"az://{CONTAINER}/jobs", f"write az://{CONTAINER}@ACCOUNT/jobs, or set AZURE_STORAGE_ACCOUNT"),
            ("az://No_Container@account/jobs", "'No_Container' cannot be a container's name"),
            ("az://a--b@account/jobs", "'a--b' cannot be a container's name"),
            ("az://jobs@my.account/jobs", "'my.account' cannot be a storage account's name"),
        ],
    )
    def test_what_names_nothing(self, token: Azurite, url: str, says: str) -> None:
        for use in (JobDir, portable_url):
            with pytest.raises(JobDirError, match=re.escape(says)):
                use(url)

    def test_other_stores_urls_stay(self) -> None:
        assert portable_url("s3://bucket/jobs/") == "s3://bucket/jobs/"

    def test_plain_http_leaves_no_machine(self, token: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://10.0.0.1:10000/account")
        with pytest.raises(JobDirError, match="plain http is allowed for this machine only"):
            JobDir(URL)


class TestRefusals:
    def test_a_container_that_is_not_there(self, token: Azurite) -> None:
        store = JobDir(f"az://not-there@{ACCOUNT}/jobs")
        for ask in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.list("")):
            with pytest.raises(
                JobDirError, match=r"there is no container of this name.*\(ContainerNotFound\)"
            ) as found:
                ask()
            assert not isinstance(found.value, MissingError)

    @pytest.mark.parametrize(("variable", "value"), [("TOKEN", "not-a-token"), ("KEY", "bm90IHRoZSBrZXk=")])
    def test_credentials_that_are_wrong(
        self, blobs: Azurite, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
    ) -> None:
        monkeypatch.setenv(f"AZURE_STORAGE_{variable}", value)
        for ask in (lambda: JobDir(URL).get("a"), lambda: JobDir(URL).size("a")):
            with pytest.raises(JobDirError, match="Blob Storage does not accept these credentials"):
                ask()

    def test_nobody_is_there(self, token: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"https://127.0.0.1:{port}/{ACCOUNT}")
        with pytest.raises(JobDirError, match=rf"https://127.0.0.1:{port} cannot be reached from here"):
            JobDir(URL).get("a")
