"""Job dirs in S3: credentials, the bucket's region, and error messages for users."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import JobDir, JobDirError, MissingError
from cloudgpu.storage.objects import PART, PARTS
from cloudgpu.storage.s3 import S3

from ..standins import s3
from ..standins.metadata_aws import AwsMetadata


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[s3.S3]:
    """Start a fake S3; its endpoint is the only setting in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with s3.running() as standin:
        monkeypatch.setenv("AWS_ENDPOINT_URL", standin.environment["AWS_ENDPOINT_URL"])
        yield standin


@pytest.fixture
def keys(store: s3.S3, monkeypatch: pytest.MonkeyPatch) -> s3.S3:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return store


def signer(request: s3.Request) -> tuple[str, str]:
    """Return the access key and region with which a request was signed."""
    found = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3/", request.headers["Authorization"])
    assert found
    return found[1], found[2]


def role(imds: AwsMetadata, key: str, expires: datetime) -> None:
    """Serve credentials as the metadata service does for a machine's role."""
    imds.values["iam/security-credentials/role"] = json.dumps(
        {"AccessKeyId": key, "SecretAccessKey": "s", "Token": "t", "Expiration": f"{expires:%Y-%m-%dT%H:%M:%SZ}"}
    )


class TestPlainHttp:
    @pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
    def test_to_another_host_is_refused(self, keys: s3.S3, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """The name resolves to the loopback; the request is refused all the same."""
        monkeypatch.setenv(name, f"http://0.0.0.0:{keys.port}")
        with pytest.raises(JobDirError, match=r"plain http on another host.*CLOUDGPU_AWS_PLAIN_HTTP=1"):
            JobDir(keys.url).put("a", b"1")
        assert keys.requests == []

    def test_is_allowed_by_a_setting(self, keys: s3.S3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://0.0.0.0:{keys.port}")
        monkeypatch.setenv("CLOUDGPU_AWS_PLAIN_HTTP", "1")
        JobDir(keys.url).put("a", b"1")
        assert keys.requests


class TestCredentials:
    def test_of_the_environment(self, keys: s3.S3) -> None:
        JobDir(keys.url).put("a", b"1")
        assert signer(keys.requests[-1]) == ("AKIDENV", "us-east-1")

    def test_of_a_profile_with_its_region(self, store: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "credentials").write_text("[work]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\n")
        (tmp_path / "config").write_text("[profile work]\nregion = eu-west-1\n")
        monkeypatch.setenv("AWS_PROFILE", "work")
        JobDir(store.url).put("a", b"1")
        assert signer(store.requests[-1]) == ("AKIDFILE", "eu-west-1")

    def test_of_a_program_that_a_profile_names(self, store: s3.S3, tmp_path: Path) -> None:
        """botocore interprets the files, as for SSO and assumed roles."""
        said = {"Version": 1, "AccessKeyId": "AKIDPROGRAM", "SecretAccessKey": "s", "SessionToken": "t"}
        said["Expiration"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        (tmp_path / "said").write_text(json.dumps(said))
        (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path}/said\n")
        JobDir(store.url).put("a", b"1")
        assert signer(store.requests[-1])[0] == "AKIDPROGRAM"
        assert store.requests[-1].headers["x-amz-security-token"] == "t"

    def test_of_a_machines_role_and_again_when_they_expire(self, store: s3.S3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        with AwsMetadata() as imds:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{imds.url}/")
            imds.values["iam/security-credentials/"] = "role"
            role(imds, "ASIAONE", datetime.now(UTC) + timedelta(seconds=1))
            job_dir = JobDir(store.url)
            job_dir.put("a", b"1")
            assert signer(store.requests[-1])[0] == "ASIAONE"
            role(imds, "ASIATWO", datetime.now(UTC) + timedelta(hours=1))
            until = time.monotonic() + 10  # obstore asks the service at most once in 100 ms
            while signer(store.requests[-1])[0] == "ASIAONE" and time.monotonic() < until:
                job_dir.put("a", b"1")
            assert signer(store.requests[-1])[0] == "ASIATWO"

    @pytest.mark.parametrize(
        ("config", "profile", "says"),
        [
            ("", "", "no AWS credentials were found: set AWS_PROFILE"),
            ("[default]\nregion = eu-west-1\n", "", "no AWS credentials were found"),
            ("", "nobody", "config profile (nobody) could not be found"),
        ],
    )
    def test_none_is_said_at_once(  # noqa: PLR0917
        self, store: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, profile: str, says: str
    ) -> None:
        if config:
            (tmp_path / "config").write_text(config)
        if profile:
            monkeypatch.setenv("AWS_PROFILE", profile)
        with pytest.raises(JobDirError, match=re.escape(says)):
            JobDir(store.url)
        assert not store.requests

    def test_a_session_that_cannot_be_renewed_says_why(self, store: s3.S3, tmp_path: Path) -> None:
        (tmp_path / "config").write_text(
            "[default]\ncredential_process = sh -c 'echo the session is over >&2; exit 1'\n"
        )
        with pytest.raises(JobDirError, match=r"no AWS credentials can be had: .*the session is over"):
            JobDir(store.url).get("a")

    def test_a_machine_without_a_role(self, store: s3.S3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        with AwsMetadata() as imds:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
            with pytest.raises(JobDirError, match="no AWS credentials were found"):
                JobDir(store.url).get("a")


def move(store: s3.S3, status: int, code: str) -> None:
    """Move the buckets to eu-central-1; replies to unsigned requests name this region."""
    home = {"x-amz-bucket-region": "eu-central-1"}

    def wrong(request: s3.Request) -> bool:
        return "Authorization" in request.headers and signer(request)[1] != "eu-central-1"

    store.faults.append(s3.Fault(wrong, status=status, code=code))
    store.faults.append(s3.Fault(lambda request: "Authorization" not in request.headers, status=301, headers=home))


class TestRegion:
    @pytest.mark.parametrize(("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")])
    @pytest.mark.parametrize("kind", ["PUT", "GET", "HEAD", "list"])
    def test_the_buckets_own_is_found(self, keys: s3.S3, status: int, code: str, kind: str) -> None:
        """S3 refuses requests signed for another region, and names the right region in its reply to an unsigned
        request."""
        bucket = f"bucket-{kind.lower()}-{status}"
        move(keys, status, code)
        job_dir = JobDir(f"s3://{bucket}/job")
        calls: dict[str, Callable[[], object]] = {
            "PUT": lambda: job_dir.put("a", b"1"),
            "GET": lambda: job_dir.find("a"),
            "HEAD": lambda: job_dir.exists("a"),
            "list": lambda: job_dir.list("a"),
        }
        calls[kind]()
        assert signer(keys.requests[-1])[1] == "eu-central-1"
        before = len(keys.requests)
        JobDir(f"s3://{bucket}/other").put("b", b"2")
        assert len(keys.requests) == before + 1  # the region is cached for the whole process

    def test_it_is_found_by_each_that_looked_elsewhere(self, keys: s3.S3) -> None:
        """Two job dirs are opened before either has found the bucket's region."""
        move(keys, 301, "PermanentRedirect")
        for job_dir in [JobDir(f"s3://bucket-of-two/{name}") for name in "ab"]:
            job_dir.put("a", b"1")

    def test_an_unknown_region_is_an_error(self, keys: s3.S3) -> None:
        keys.fail("PUT", status=301, code="PermanentRedirect")
        with pytest.raises(JobDirError, match=r"bucket-lost is in another region.*set AWS_REGION"):
            JobDir("s3://bucket-lost/job").put("a", b"1")


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ServiceUnavailable"])
def test_a_fault_of_s3_is_one_line_that_stays_the_same(code: str) -> None:
    """The library's text contains times and ids, which would make each failure a separate event."""

    def text(elapsed: str, request: str) -> str:
        xml = f"<Error><Code>{code}</Code><Message>x</Message><RequestId>{request}</RequestId></Error>"
        return f"Generic S3 error: Error performing GET in {elapsed}, after 4 retries - Server returned 503:\n{xml}"

    first, second = (S3("s3://bucket/job").explain(text(*one), "reading a") for one in (("1.2s", "A1"), ("1.3s", "B2")))
    assert first == second and first.endswith(f"nothing to do ({code})") and "\n" not in first


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "says"),
        [
            (404, "NoSuchBucket", "there is no bucket of this name"),
            (403, "AccessDenied", "access denied"),
            (400, "ExpiredToken", "credentials have expired: log in again"),
            (403, "InvalidAccessKeyId", "does not know this access key"),
            (403, "SignatureDoesNotMatch", "secret access key does not belong"),
            (403, "RequestTimeTooSkewed", "clock of this machine is off"),
        ],
    )
    @pytest.mark.parametrize("kind", ["PUT", "GET", "HEAD", "list"])
    def test_each_says_what_to_do(self, keys: s3.S3, status: int, code: str, says: str, kind: str) -> None:
        for each in ("PUT", "GET", "HEAD", "list"):
            keys.fail(each, status=status, code=code)
        job_dir = JobDir(keys.url)
        calls: dict[str, Callable[[], object]] = {
            "PUT": lambda: job_dir.put("a", b"1"),
            "GET": lambda: job_dir.get("a"),
            "HEAD": lambda: job_dir.exists("a"),
            "list": lambda: job_dir.list("a"),
        }
        if (kind, code) == ("HEAD", "NoSuchBucket"):
            assert not job_dir.exists("a")  # the reply is only a status 404
            return
        with pytest.raises(JobDirError, match=f"s3://bucket/job: .*{says}.*{code}") as caught:
            calls[kind]()
        assert not isinstance(caught.value, MissingError)


def test_a_store_that_nothing_answers_for(keys: s3.S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(JobDirError, match=f"{url} cannot be reached from here"):
            JobDir(keys.url).get("a")


class TestMachinesThatMayNotListTheBucket:
    """A machine's role may list its job's folder only. S3 then answers 403 for a missing object."""

    @pytest.fixture
    def narrow(self, keys: s3.S3) -> s3.S3:
        keys.faults.append(
            s3.Fault(lambda request: request.kind in ("GET", "HEAD") and request.key not in keys.objects, status=403)
        )
        return keys

    def test_what_is_not_there_is_missing(self, narrow: s3.S3) -> None:
        job_dir = JobDir(narrow.url)
        job_dir.put("a/there", b"1")
        assert job_dir.find("a/not") is None
        assert not job_dir.exists("not")
        assert job_dir.get("a/there") == b"1"
        with pytest.raises(MissingError):
            job_dir.download("a/not", Path("/nowhere"))

    def test_looking_again_and_again_costs_no_listing_each_time(self, narrow: s3.S3) -> None:
        job_dir = JobDir(narrow.url)
        for _ in range(20):
            assert job_dir.find("stop.json") is None
        assert narrow.count("list") == 1

    def test_a_moment_of_refusal_makes_nothing_vanish(self, narrow: s3.S3) -> None:
        """Otherwise a machine would conclude that its job was deleted."""
        job_dir = JobDir(narrow.url)
        job_dir.put("job.json", b"1")
        assert not job_dir.exists("stop.json")
        narrow.fail("HEAD", "job.json", status=403, times=1)
        with pytest.raises(JobDirError) as caught:
            job_dir.exists("job.json")
        assert not isinstance(caught.value, MissingError)
        assert job_dir.exists("job.json")

    @pytest.mark.parametrize("kind", ["GET", "HEAD"])
    def test_what_is_there_and_may_not_be_read_is_denied(self, keys: s3.S3, kind: str) -> None:
        job_dir = JobDir(keys.url)
        job_dir.put("a", b"1")
        keys.fail("GET", status=403, code="AccessDenied")
        keys.fail("HEAD", status=403)
        with pytest.raises(JobDirError) as caught:
            job_dir.get("a") if kind == "GET" else job_dir.size("a")
        assert not isinstance(caught.value, MissingError)

    def test_without_permission_to_list_access_is_denied(self, keys: s3.S3) -> None:
        keys.fail("GET", status=403, code="AccessDenied")
        keys.fail("list", status=403, code="AccessDenied")
        with pytest.raises(JobDirError, match="access denied"):
            JobDir(keys.url).get("a")


class TestCreating:
    def test_a_conflict_with_nothing_there_is_tried_again(self, keys: s3.S3) -> None:
        """S3 answers 409 if another write of the key was in progress, whether that write succeeded or not."""
        keys.fail("PUT", "claim", status=409, code="ConditionalRequestConflict", times=1)
        assert JobDir(keys.url).create("claim", b"mine")
        assert keys.objects["job/claim"] == b"mine"

    def test_a_conflict_that_another_has_won_is_lost(self, keys: s3.S3) -> None:
        keys.objects["job/claim"] = b"another's"
        keys.fail("PUT", "claim", status=409, code="ConditionalRequestConflict", times=1)
        assert not JobDir(keys.url).create("claim", b"mine")

    def test_one_that_never_ends_is_an_error(self, keys: s3.S3) -> None:
        keys.fail("PUT", "claim", status=409, code="ConditionalRequestConflict")
        with pytest.raises(JobDirError, match="creating claim failed") as caught:
            JobDir(keys.url).create("claim", b"mine")
        assert not isinstance(caught.value, MissingError)


class TestLargeFiles:
    def test_they_are_sent_in_parts_with_progress(self, keys: s3.S3, tmp_path: Path) -> None:
        (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 21)
        progress: list[tuple[int, int]] = []
        JobDir(keys.url).upload_file("large", tmp_path / "large", lambda done, total: progress.append((done, total)))
        assert keys.objects["job/large"] == (tmp_path / "large").read_bytes()
        assert keys.count("part") == 3
        assert progress[0] == (0, 21 << 20)
        assert progress[-1] == (21 << 20, 21 << 20)

    def test_parts_of_a_very_large_object_are_larger(self, keys: s3.S3) -> None:
        """S3 limits the number of parts. The declared size decides the part size, so five pieces of data suffice."""
        piece, store = memoryview(bytes(PART)), JobDir(keys.url)
        for size, parts in ((PART * PARTS, 5), (PART * PARTS + 1, 5), (PART * PARTS * 2, 3), (PART * PARTS * 5, 1)):
            before = keys.count("part")
            store.upload("large", iter([piece] * 5), size)
            assert max(1, keys.count("part") - before) == parts
            assert store.size("large") == 5 * PART

    def test_a_copy_is_made_within_the_store(self, keys: s3.S3) -> None:
        job_dir = JobDir(keys.url)
        job_dir.put("a b", b"1")
        job_dir.copy("a b", "c/d")
        assert job_dir.get("c/d") == b"1"
        assert keys.count("GET") == 1
        with pytest.raises(MissingError):
            job_dir.copy("not", "e")
