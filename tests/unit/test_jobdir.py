"""Job dir in a local folder: atomic creation, unusual names, and a missing or removed folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import (
    Claim,
    JobDir,
    JobDirError,
    JobRecord,
    MissingError,
    attempt_key,
    code_key,
    local_url,
    node_key,
)

ODD_NAMES = [
    "plain",
    "with space",
    "semi;colon",
    'it\'s "quoted"',
    "ünï-☃",
    "per%41cent",
    "hash#mark?",
    "$(touch x)",
    "-rf",
]


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    return JobDir(local_url(tmp_path / "job"))


def test_keys() -> None:
    assert code_key("ab") == "code/ab.tar.gz"
    assert attempt_key(3) == "attempts/0003/attempt.json"
    assert node_key(12, "worker-0.1", "claim") == "attempts/0012/nodes/worker-0.1/claim"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_folder_with_an_odd_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "job"
    JobDir(local_url(folder)).put("a/b.json", b"x")
    assert (folder / "a" / "b.json").read_bytes() == b"x"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert JobDir(local_url(folder)).get("a/b.json") == b"x"


def test_opening_and_reading_make_nothing(tmp_path: Path, job_dir: JobDir) -> None:
    assert job_dir.find("job.json") is None
    assert not job_dir.exists("job.json")
    assert job_dir.list("attempts") == []
    assert job_dir.folders("attempts") == []
    job_dir.delete("job.json")
    with pytest.raises(MissingError):
        job_dir.get("job.json")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_after_opening_is_seen(job_dir: JobDir) -> None:
    JobDir(job_dir.url).put("x", b"1")
    assert job_dir.get("x") == b"1"


def test_a_deleted_folder_is_not_made_again(tmp_path: Path, job_dir: JobDir) -> None:
    job_dir.put("x", b"1")
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(JobDirError, match="has been deleted"):
        job_dir.put("x", b"2")
    with pytest.raises(JobDirError, match="has been deleted"):
        job_dir.create("y", b"2")
    assert job_dir.find("x") is None
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("url", ["", "/plain/path", "ftp://host/x", "file://relative/x", "s3:/x", "file:///x\0y"])
def test_what_is_no_job_dir(url: str) -> None:
    with pytest.raises(JobDirError):
        JobDir(url).put("x", b"")


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("")
    with pytest.raises(JobDirError):
        JobDir(local_url(tmp_path / "job")).put("x", b"")


def test_records_are_read_leniently() -> None:
    claim = Claim("machine", "nonce", 1.5)
    assert Claim.from_bytes(claim.to_bytes()) == claim
    assert Claim.from_bytes(json.dumps({"machine": "m", "nonce": "n", "time": 1, "later": 2}).encode()).nonce == "n"
    assert JobRecord.from_bytes(b'{"job_id":"a","name":"a","run":"true"}').args == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"null", b'"text"'])
def test_broken_records_are_said_to_be_so(data: bytes) -> None:
    with pytest.raises(JobDirError, match="not a Claim"):
        Claim.from_bytes(data)
