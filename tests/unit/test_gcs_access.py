"""A job dir in Cloud Storage: which credentials are used, which endpoint, and the messages for refused requests."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, MissingError, is_login

from ..standins.faults import HTML, LOSE, error
from ..standins.gcp import MACHINE, SUBMITTER, Gcp
from ..standins.gcp.tokens import GRANT
from ..standins.gcp_metadata import InstanceMetadata
from ..standins.gcs import GcsControl

BUCKET = "jobs-of-tests"
URL = f"gs://{BUCKET}/jobs/a-1"
STRANGER = "stranger@project-of-tests.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def gcp(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gcp:
    """Start a fake Cloud Storage in an environment in which only its endpoint is configured."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.control.reset()
    store(server).make_bucket(BUCKET)
    return server


@pytest.fixture
def key(gcp: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gcp:
    """Provide the key of a service account."""
    path = gcp.control.key_file(SUBMITTER, tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return gcp


def store(gcp: Gcp) -> GcsControl:
    return GcsControl(gcp.url)


def callers(gcp: Gcp) -> set[str]:
    return {call.caller for call in gcp.control.calls("objects.*")}


class Exchange:
    """Fake of Google's Security Token Service for federated logins: it exchanges a subject token for an access
    token."""

    def __init__(self, gcp: Gcp, folder: Path) -> None:
        self.asked: list[str] = []
        exchange = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                exchange.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                body = json.dumps(exchange.given).encode()
                self.send_response_only(exchange.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Suppress the request log."""

        self.status = 200
        self.given = {"access_token": gcp_token(gcp, folder), "expires_in": 3_600, "token_type": "Bearer"}
        self.given["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/token"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def credentials(self, folder: Path) -> Path:
        """Write a file as `gcloud iam workload-identity-pools create-cred-config` does."""
        (folder / "subject").write_text("a-subject's-token")
        result = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": self.url,
            "credential_source": {"file": str(folder / "subject")},
        }
        path = folder / "federated.json"
        path.write_text(json.dumps(result))
        return path


def gcp_token(gcp: Gcp, folder: Path) -> str:
    """Return an access token of the fake, obtained with a service account's key."""
    import google.auth.transport.requests
    from google.oauth2 import service_account

    path = gcp.control.key_file(STRANGER, folder / "stranger.json")
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    made = service_account.Credentials.from_service_account_file(str(path), scopes=scopes)  # type: ignore[no-untyped-call]
    made.refresh(google.auth.transport.requests.Request())
    assert [call.action for call in gcp.control.calls("token")] == ["token"], GRANT
    return str(made.token)


@pytest.fixture
def exchange(gcp: Gcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    made = Exchange(gcp, tmp_path)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(made.credentials(tmp_path)))
    yield made
    made.server.shutdown()
    made.server.server_close()


class TestCredentials:
    def test_of_a_service_accounts_key(self, key: Gcp) -> None:
        JobDir(URL).put("a", b"1")
        assert callers(key) == {SUBMITTER}

    def test_of_the_login_where_gcloud_keeps_it(self, gcp: Gcp, tmp_path: Path) -> None:
        (tmp_path / "gcloud").mkdir()
        gcp.control.key_file(SUBMITTER, tmp_path / "gcloud/application_default_credentials.json")
        JobDir(URL).put("a", b"1")
        assert callers(gcp) == {SUBMITTER}

    def test_of_what_only_google_auth_understands(self, gcp: Gcp, exchange: Exchange) -> None:
        """A federated identity; the same library distinguishes a user's login and impersonation."""
        for number in range(3):
            JobDir(f"{URL}-{number}").put("a", b"1")
        assert callers(gcp) == {STRANGER}
        assert len(exchange.asked) == 1  # the token is cached until it expires
        assert "a-subject" in exchange.asked[0]

    @pytest.mark.parametrize("kind", ["authorized_user", "impersonated", "aws", "executable"])
    def test_each_kind_is_understood_without_asking_anybody(
        self, gcp: Gcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """Not checked: whether Google would give a token for it."""
        login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
        federated: dict[str, object] = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
        }
        source = {
            "environment_id": "aws1",
            "regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity",
        }
        url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{STRANGER}:generateAccessToken"
        result: dict[str, dict[str, object]] = {
            "authorized_user": {**login},
            "impersonated": {
                "type": "impersonated_service_account",
                "source_credentials": login,
                "service_account_impersonation_url": url,
                "delegates": [],
            },
            "aws": {**federated, "credential_source": source},
            "executable": {**federated, "credential_source": {"executable": {"command": "/bin/true"}}},
        }
        (tmp_path / "login.json").write_text(json.dumps(result[kind]))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))
        JobDir(URL)

    @pytest.mark.parametrize("content", [{"type": "gdch_service_account"}, {"type": "external_account"}])
    def test_a_kind_that_cannot_be_used_is_said(
        self, gcp: Gcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, str]
    ) -> None:
        (tmp_path / "login.json").write_text(json.dumps(content))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))
        with pytest.raises(JobDirError, match=r"login\.json cannot be used: "):
            JobDir(URL)

    def test_a_login_that_has_ended_says_why(self, gcp: Gcp, exchange: Exchange) -> None:
        exchange.status = 400
        exchange.given = {"error": "invalid_grant", "error_description": "the subject is gone"}
        with pytest.raises(JobDirError, match=r"no Google credentials can be had: .*the subject is gone"):
            JobDir(URL).get("a")

    def test_of_a_machines_service_account(self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_GCE_CHECK")
        tokens = gcp._app._project.tokens  # as the fake passes it to a launched machine
        account = (MACHINE, ("https://www.googleapis.com/auth/devstorage.read_write",))
        described = {"instance": {"name": "a"}, "project": {"project-id": "p"}}
        issue = lambda: (tokens.issue(MACHINE, frozenset(account[1])), 3_600.0)  # noqa: E731
        with InstanceMetadata(lambda: described, issue, account) as metadata:
            monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
            JobDir(URL).put("a", b"1")
        assert callers(gcp) == {MACHINE}

    def test_a_machine_without_one(self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        described = {"instance": {"name": "a"}, "project": {"project-id": "p"}}
        with InstanceMetadata(lambda: described, lambda: ("", 0.0), None) as metadata:
            monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
            with pytest.raises(JobDirError, match="no Google credentials were found: log in"):
                JobDir(URL).get("a")

    def test_none_is_said_at_once(self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        with pytest.raises(JobDirError, match="no Google credentials were found: log in"):
            JobDir(URL)

    def test_a_key_that_is_not_there_is_said(self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "lost.json"))
        with pytest.raises(JobDirError, match=r"lost\.json: there is no such file: correct it"):
            JobDir(URL)

    @pytest.mark.parametrize("content", ["no JSON", "{}", "[]"])
    def test_a_file_that_is_no_key_is_said(
        self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "odd.json").write_text(content)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "odd.json"))
        with pytest.raises(JobDirError, match=r"odd\.json holds no Google credentials"):
            JobDir(URL)

    def test_a_key_of_which_something_is_missing_is_said(
        self, gcp: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "half.json").write_text('{"type": "service_account", "client_email": "a@p"}')
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "half.json"))
        with pytest.raises(JobDirError, match=r"half\.json cannot be used, it has no private_key: get a new one"):
            JobDir(URL)

    def test_an_emulator_without_credentials_is_asked_without(self, gcp: Gcp) -> None:
        """The token request names the caller, as Google's own clients do."""
        with pytest.raises(JobDirError, match="does not know these credentials"):
            JobDir(URL).get("a")
        assert callers(gcp) == {""}


class TestAddress:
    @pytest.mark.parametrize("given", ["http://10.0.0.1:4443", "storage.example.com:80", "http://169.254.169.254"])
    def test_plain_http_leaves_no_machine(self, key: Gcp, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", given)
        with pytest.raises(JobDirError, match="plain http is allowed for this machine only"):
            JobDir(URL)

    def test_one_without_a_scheme_is_known_too(self, key: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", key.url.removeprefix("http://"))
        assert not JobDir(URL).exists("a")

    def test_one_that_nothing_answers_for(self, key: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as nobody:  # bound, but not listening
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            with pytest.raises(JobDirError, match=f"{url} cannot be reached from here"):
                JobDir(URL).get("a")


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "says"),
        [
            (403, "AccessDenied", "access denied"),
            (401, "AuthenticationRequired", "does not know these credentials"),
            (403, "UserProjectAccountProblem", "billing account"),
            (400, "UserProjectMissing", "requester pays"),
        ],
    )
    @pytest.mark.parametrize("kind", ["insert", "get", "size", "list"])
    def test_each_says_what_to_do(self, key: Gcp, status: int, code: str, says: str, kind: str) -> None:
        key.control.fail("objects.*", error(code, status), times=None)
        job_dir = JobDir(URL)
        calls: dict[str, Callable[[], object]] = {
            "insert": lambda: job_dir.put("a", b"1"),
            "get": lambda: job_dir.get("a"),
            "size": lambda: job_dir.exists("a"),
            "list": lambda: job_dir.list("a"),
        }
        with pytest.raises(JobDirError, match=f"{URL}: .*{says}.*{code}") as caught:
            calls[kind]()
        assert not isinstance(caught.value, MissingError)
        assert is_login(caught.value) == (status == 401)

    def test_a_permission_that_lacks_is_named(self, key: Gcp) -> None:
        key.control.enforce({})
        denied = r"docs/reference/gcp-permissions\.md \(AccessDenied: storage\.objects\.get"
        with pytest.raises(JobDirError, match=denied):
            JobDir(URL).get("a")

    @pytest.mark.parametrize("key_of", ["get", "put"])
    def test_a_bucket_that_is_not_there(self, key: Gcp, key_of: str) -> None:
        job_dir = JobDir("gs://nobodys-bucket/job")
        with pytest.raises(JobDirError, match="there is no bucket of this name") as caught:
            job_dir.get("a") if key_of == "get" else job_dir.put("a", b"1")
        assert not isinstance(caught.value, MissingError)

    def test_a_service_that_is_down_for_a_moment(self, key: Gcp) -> None:
        key.control.fail("objects.insert", HTML, times=2)
        JobDir(URL).put("a", b"1")
        assert JobDir(URL).get("a") == b"1"


class TestMachinesThatMayNotList:
    """Without the right to list, Cloud Storage answers 403 for a missing object."""

    @pytest.fixture
    def narrow(self, key: Gcp) -> Gcp:
        store(key).blind(SUBMITTER)
        return key

    def test_what_is_not_there_is_missing(self, narrow: Gcp) -> None:
        job_dir = JobDir(URL)
        job_dir.put("a/there", b"1")
        assert job_dir.find("a/not") is None
        assert not job_dir.exists("not")
        assert job_dir.get("a/there") == b"1"
        with pytest.raises(MissingError):
            job_dir.download("a/not", Path("/nowhere"))


class TestWriting:
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_claim_whose_answer_is_lost_is_mine(self, key: Gcp, times: int) -> None:
        key.control.fail("objects.insert", LOSE, where={"ifGenerationMatch": "0"}, times=times)
        assert JobDir(URL).create("claim", b"mine")
        assert key.control.calls("objects.insert")[0].fault == "lose"

    def test_an_object_is_not_replaced_faster_than_the_service_allows(self, key: Gcp) -> None:
        """The limit is one change per second: earlier requests get 429 and are retried after a pause."""
        store(key).limit_updates(1.0)
        job_dir, begun = JobDir(URL), time.monotonic()
        for number in range(3):
            job_dir.put("heartbeat.json", str(number).encode())
        assert time.monotonic() - begun > 2.0 - 0.05
        assert job_dir.get("heartbeat.json") == b"2"
        assert 429 in {call.status for call in key.control.calls("objects.insert")}
        assert job_dir.min_rewrite_s == 1.0

    def test_large_files_are_sent_in_parts_and_told_of(self, key: Gcp, tmp_path: Path) -> None:
        (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 21)
        result: list[tuple[int, int]] = []
        JobDir(URL).upload_file("large", tmp_path / "large", lambda done, total: result.append((done, total)))
        assert JobDir(URL).get("large") == (tmp_path / "large").read_bytes()
        assert len(key.control.calls("multipartUploads.uploadPart")) == 3
        assert result[-1] == (21 << 20, 21 << 20)
        assert store(key).uploads() == 0

    def test_a_copy_is_made_within_the_store(self, key: Gcp) -> None:
        job_dir = JobDir(URL)
        job_dir.put("a b/ü#?", b"1")
        job_dir.copy("a b/ü#?", "c/d")
        assert job_dir.get("c/d") == b"1"
        assert len(key.control.calls("objects.get")) == 1
        with pytest.raises(MissingError):
            job_dir.copy("not", "e")


class TestReading:
    def test_listings_go_on_over_pages(self, key: Gcp) -> None:
        job_dir = JobDir(URL)
        names = [f"many/{number:04d}" for number in range(1_030)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: job_dir.put(name, b""), names))
        assert job_dir.list("many") == names
        assert [entry.key for entry in job_dir.entries("many", after=names[1_027])] == names[1_028:]
        assert len(key.control.calls("objects.list")) == 3
        assert job_dir.folders("") == ["many"]
