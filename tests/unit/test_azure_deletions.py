"""Deletions in Blob Storage where it refuses batch requests. obstore sends every deletion, even of one blob, as a
batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError
from cloudgpu.storage.azure_account import _login

from ..standins.azurite import KEY
from .test_azure_access import Authority

URL = "az://jobs-of-tests@jobsoftests/jobs/a-1"
REFUSAL = (
    b'<?xml version="1.0" encoding="utf-8"?><Error><Code>AuthorizationPermissionMismatch</Code>'
    b"<Message>This request is not authorized to perform this operation using this permission.</Message></Error>"
)


class Blobs:
    """Fake Blob Storage that supports deletions only: it refuses batches and accepts any token or signature."""

    def __init__(self) -> None:
        self.there = {f"jobs/a-1/checkpoints/{step}/shard 0.bin" for step in (1, 2)}
        self.asked: list[str] = []
        self.refuses_all = False
        self.batch_status = 403
        blobs = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.say(blobs.batch_status, REFUSAL)

            def do_DELETE(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                allowed = (self.headers["Authorization"] or "").startswith("Bearer ey") or "sig" in query
                key = parts.path.partition("/jobs-of-tests/")[2].replace("%20", " ")
                if blobs.refuses_all or not allowed:
                    self.say(403, REFUSAL)
                elif key not in blobs.there:
                    self.say(404, b"<Error><Code>BlobNotFound</Code></Error>")
                else:
                    blobs.there.discard(key)
                    self.say(202, b"")

            def say(self, status: int, body: bytes) -> None:
                blobs.asked.append(self.command)
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Suppress the request log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jobsoftests"


@pytest.fixture
def blobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blobs]:
    made = Blobs()
    threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", made.url)
    _login.cache_clear()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Authority() as authority:
        variables = {
            "identity": {
                "AZURE_CLIENT_ID": "its-identity",
                "AZURE_MSI_ENDPOINT": f"{authority.url}/metadata/identity/oauth2/token",
            },
            "key": {"AZURE_STORAGE_KEY": KEY},
            "signature": {"AZURE_STORAGE_SAS_TOKEN": "?sv=2023-11-03&sig=abc"},
            "token": {"AZURE_STORAGE_TOKEN": "ey.a.token"},
        }
        for name, value in variables[request.param].items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.parametrize("credentials", ["identity", "key", "signature", "token"], indirect=True)
def test_where_batches_are_refused_blobs_are_deleted_one_by_one(
    blobs: Blobs, credentials: None, caplog: pytest.LogCaptureFixture
) -> None:
    job_dir = JobDir(URL)
    for step in (1, 2, 3):
        job_dir.delete(f"checkpoints/{step}/shard 0.bin")
    assert blobs.there == set()
    assert blobs.asked == ["POST", "DELETE", "DELETE", "DELETE"], "the third was gone already"
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["one by one" in record.message for record in said] == [True]


@pytest.mark.parametrize("credentials", ["identity"], indirect=True)
def test_where_deletions_are_refused_too_the_right_that_is_missing_is_named(blobs: Blobs, credentials: None) -> None:
    blobs.refuses_all = True
    with pytest.raises(JobDirError, match=r"access denied.*containers/blobs/delete"):
        JobDir(URL).delete("checkpoints/1/shard 0.bin")


@pytest.mark.parametrize("credentials", ["identity"], indirect=True)
def test_a_batch_that_fails_for_a_moment_is_no_refusal(blobs: Blobs, credentials: None) -> None:
    blobs.batch_status = 503
    with pytest.raises(JobDirError):
        JobDir(URL).delete("checkpoints/1/shard 0.bin")
    assert set(blobs.asked) == {"POST"}
