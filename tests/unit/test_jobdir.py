"""The job dir on a local folder: atomic creation, odd names, and a folder that is not, or no longer, there."""

from __future__ import annotations

import json
import shutil
import threading
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


def test_put_replaces(job_dir: JobDir) -> None:
    job_dir.put("x", b"1")
    job_dir.put("x", b"2")
    assert job_dir.get("x") == b"2"


def test_put_and_download_of_a_file(tmp_path: Path, job_dir: JobDir) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(bytes(range(256)) * 50_000)
    job_dir.put("code/big", source)
    job_dir.download("code/big", copy)
    assert copy.read_bytes() == source.read_bytes()
    with pytest.raises(MissingError):
        job_dir.download("code/none", copy)


def test_get_range(job_dir: JobDir) -> None:
    job_dir.put("x", b"0123456789")
    assert job_dir.get_range("x", 3, 6) == b"345"
    with pytest.raises(JobDirError):
        job_dir.get_range("x", 10, 12)


def test_create_is_won_once(job_dir: JobDir) -> None:
    assert job_dir.create("claim", b"first")
    assert not job_dir.create("claim", b"second")
    assert job_dir.create("claim", b"first"), "a repeated write whose answer was lost finds its own object"
    assert job_dir.get("claim") == b"first"


def test_create_has_one_winner_of_many(job_dir: JobDir) -> None:
    job_dir.put("job.json", b"{}")
    for turn in range(20):
        won: list[int] = []
        start = threading.Barrier(8)

        def race(number: int, turn: int = turn, won: list[int] = won, start: threading.Barrier = start) -> None:
            start.wait()
            if job_dir.create(f"claim-{turn}", str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert job_dir.get(f"claim-{turn}") == str(won[0]).encode()


def test_listing(job_dir: JobDir) -> None:
    for key in ("log/00000002.gz", "log/00000010.gz", "log/00000001.gz", "logs/other", "log/deeper/x"):
        job_dir.put(key, b"abc")
    assert job_dir.list("log") == ["log/00000001.gz", "log/00000002.gz", "log/00000010.gz", "log/deeper/x"]
    assert [entry.key for entry in job_dir.entries("log", after="log/00000002.gz")] == [
        "log/00000010.gz",
        "log/deeper/x",
    ]
    assert {entry.size for entry in job_dir.entries("log")} == {3}
    assert job_dir.folders("log") == ["deeper"]


@pytest.mark.parametrize("url", ["", "/plain/path", "ftp://host/x", "file://relative/x", "s3:/x", "file:///x\0y"])
def test_what_is_no_job_dir(url: str) -> None:
    with pytest.raises(JobDirError):
        JobDir(url).put("x", b"")


@pytest.mark.parametrize("key", ["../escape", "/absolute/../..", "a/../../b"])
def test_keys_stay_inside(tmp_path: Path, job_dir: JobDir, key: str) -> None:
    with pytest.raises(JobDirError):
        job_dir.put(key, b"")
    assert not (tmp_path / "escape").exists()


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
