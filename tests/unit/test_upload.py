"""What a job's machines need, on its way into an object store: each content is sent once, then copied there."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from cloudgpu.control.errors import SubmitError
from cloudgpu.control.submit.upload import Uploader, agent_for, architectures
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.protocol.jobdir import JobDir, JobDirError, agent_key, code_key, local_url
from cloudgpu.provisioners.boot.agent_file import PYTHONS_VARIABLE

from ..standins import s3
from ..standins.gcp import Gcp
from ..standins.gcs import GcsControl

JOBS = "s3://bucket/jobs"


def offer(machine_type: str = "g4dn.xlarge", cloud: str = "aws") -> Offer:
    role = RoleOffer("worker", 1, machine_type, "T4", Fraction(1), 4, 16.0, Decimal(1))
    return Offer(cloud, "us-east-1", "us-east-1a", "spot", (role,), 100.0, Decimal(0), Decimal(1), "2026-01-01")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


@pytest.fixture
def told() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('hello')\n")
    return tmp_path / "code"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps the agent file from test to test: compressing it takes a second."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_python(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(home))
    monkeypatch.setenv(PYTHONS_VARIABLE, f"{sys.version_info.major}.{sys.version_info.minor}")


def shipper(job: str, told: list[tuple[str, int, int]]) -> Uploader:
    return Uploader(f"{JOBS}/{job}", lambda what, done, total: told.append((what, done, total)))


def sent(store: s3.S3) -> list[str]:
    """Keys that content was sent to, not copied."""
    return [request.key for request in store.requests if request.kind in ("PUT", "start")]


def test_the_second_job_sends_nothing(store: s3.S3, code: Path, told: list[tuple[str, int, int]]) -> None:
    first = shipper("a-1", told).code(code)
    shipper("a-1", told).agents([offer()])
    assert len(sent(store)) == 2
    second = shipper("b-2", told).code(code)
    shipper("b-2", told).agents([offer()])
    assert first == second
    assert len(sent(store)) == 2
    assert JobDir(f"{JOBS}/a-1").get(code_key(first)) == JobDir(f"{JOBS}/b-2").get(code_key(first))


def test_what_is_there_by_half_is_sent_again(store: s3.S3, code: Path, told: list[tuple[str, int, int]]) -> None:
    sha256 = shipper("a-1", told).code(code)
    store.objects[f"jobs/shared/{code_key(sha256)}"] = b"half"
    shipper("b-2", told).code(code)
    assert hashlib.sha256(JobDir(f"{JOBS}/b-2").get(code_key(sha256))).hexdigest() == sha256


def test_what_another_has_put_in_its_place_is_not_used(
    store: s3.S3, code: Path, told: list[tuple[str, int, int]]
) -> None:
    """A machine that may write the shared folder, with as many bytes as there were."""
    sha256 = shipper("a-1", told).code(code)
    shared = f"jobs/shared/{code_key(sha256)}"
    JobDir("s3://bucket").put(shared, b"x" * len(store.objects[shared]))
    for job in ("b-2", "c-3"):
        shipper(job, told).code(code)
        assert hashlib.sha256(JobDir(f"{JOBS}/{job}").get(code_key(sha256))).hexdigest() == sha256


def test_what_this_computer_has_not_sent_is_sent(
    store: s3.S3, code: Path, told: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipper("a-1", told).code(code)
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "another"))
    for job in ("b-2", "c-3"):
        shipper(job, told).code(code)
    assert len(sent(store)) == 2, "once by each"
    (tmp_path / "another" / "uploads.json").write_text("[" * 100_000)
    shipper("d-4", told).code(code)
    assert len(sent(store)) == 3


def test_sending_is_told_of(store: s3.S3, code: Path, told: list[tuple[str, int, int]]) -> None:
    shipper("a-1", told).code(code)
    uploading = [(done, total) for what, done, total in told if what == "uploading"]
    assert uploading[0][0] == 0
    assert uploading[-1][0] == uploading[-1][1] > 0


def test_a_bucket_that_is_not_there_is_said(store: s3.S3, code: Path, told: list[tuple[str, int, int]]) -> None:
    for kind in ("PUT", "HEAD", "copy"):
        store.fail(kind, status=404, code="NoSuchBucket")
    with pytest.raises(JobDirError, match="there is no bucket of this name"):
        shipper("a-1", told).code(code)


def test_a_local_folder_shares_nothing(tmp_path: Path, code: Path, told: list[tuple[str, int, int]]) -> None:
    url = local_url(tmp_path / "jobs/a-1")
    sha256 = Uploader(url, lambda *_: None).code(code)
    assert JobDir(url).exists(code_key(sha256))
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["a-1"]


def test_cloud_storage_is_sent_each_content_once(
    tmp_path: Path, code: Path, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path / "settings").items():
            monkeypatch.setenv(name, value)
        GcsControl(gcp.url).make_bucket("bucket")
        for job in ("a-1", "b-2"):
            sha256 = Uploader(f"gs://bucket/jobs/{job}", lambda *_: None).code(code)
        assert len(gcp.control.calls("multipartUploads.complete")) == 1
        assert len(gcp.control.calls("objects.copy")) == 2
        assert JobDir("gs://bucket/jobs/a-1").get(code_key(sha256)) == JobDir("gs://bucket/jobs/b-2").get(
            code_key(sha256)
        )


class TestAgents:
    def test_only_clouds_need_one(self, store: s3.S3, told: list[tuple[str, int, int]]) -> None:
        assert shipper("a-1", told).agents([offer("local", "local")]) == {}
        assert not store.requests
        assert agent_for(offer("local", "local"), {}) is None

    def test_the_offer_says_which(self, store: s3.S3, told: list[tuple[str, int, int]]) -> None:
        shipped = shipper("a-1", told).agents([offer(), offer("g5.xlarge")])
        assert list(shipped) == ["x86_64"]
        found = agent_for(offer(), shipped)
        assert found is not None
        assert (found.key, found.architecture) == (agent_key(shipped["x86_64"]), "x86_64")
        data = JobDir(f"{JOBS}/a-1").get(found.key)
        assert hashlib.sha256(data).hexdigest() == found.sha256

    @pytest.mark.parametrize(
        ("cloud", "machine_type", "architecture"),
        [
            ("aws", "g4dn.xlarge", "x86_64"),
            ("aws", "g5g.xlarge", "arm64"),
            ("gcp", "n1-standard-4", "x86_64"),
            ("gcp", "a4x-highgpu-4g", "arm64"),
            ("gcp", "c4a-standard-4", "arm64"),  # without GPU: the tables do not know it
            ("vertex", "n1-standard-4", "x86_64"),
            ("vertex", "a3-highgpu-8g", "x86_64"),
        ],
    )
    def test_each_target_says_what_its_machines_are(self, cloud: str, machine_type: str, architecture: str) -> None:
        assert list(architectures(offer(machine_type, cloud))) == [architecture]

    def test_a_python_that_cannot_be_served_is_said(
        self, store: s3.S3, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(PYTHONS_VARIABLE, "3.10")
        with pytest.raises(SubmitError, match=r"CLOUDGPU_AGENT_PYTHONS=3.10: expected versions from 3.11 on"):
            shipper("a-1", told).agents([offer()])

    def test_a_wheel_that_cannot_be_had_is_said(
        self, store: s3.S3, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """pip is really asked, for a Python there is not."""
        monkeypatch.setenv(PYTHONS_VARIABLE, "3.97")
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        with pytest.raises(SubmitError, match=r"needs xxhash .* for Python 3.97, and pip cannot get it: ERROR"):
            shipper("a-1", told).agents([offer()])
