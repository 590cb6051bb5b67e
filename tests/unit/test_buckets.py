"""Connection sharing: job dirs in one bucket use the same connections."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from cloudgpu.control.supervisor.supervisor import _opener
from cloudgpu.protocol.jobdir import JobDir, JobDirError
from cloudgpu.storage.stores import Buckets

from ..standins import s3

JOBS = 40


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


def sockets(store: s3.S3) -> int:
    """Return the number of connections from this process to the store."""
    return sum(bool(one.raddr) and one.raddr.port == store.port for one in psutil.Process().net_connections("tcp"))


def key_of(request: s3.Request) -> str:
    """Return the access key that a request was signed with."""
    return str(request.headers["Authorization"]).partition("Credential=")[2].partition("/")[0]


def test_the_jobs_of_a_supervisor_need_one_socket_each_thread_not_each_job(store: s3.S3) -> None:
    open_dir = _opener()
    job_dirs = [open_dir(f"s3://bucket/jobs/digits-{number}") for number in range(JOBS)]
    for job_dir in job_dirs:
        assert job_dir.find("heartbeat.json") is None
    assert 1 <= sockets(store) <= 4
    assert {request.key for request in store.requests} == {
        f"jobs/digits-{number}/heartbeat.json" for number in range(JOBS)
    }


def test_folders_of_a_bucket_are_apart(store: s3.S3) -> None:
    bucket = Buckets().of("s3://bucket/jobs/a")
    first, second, odd = (JobDir(f"s3://bucket/{path}", bucket=bucket) for path in ("jobs/a", "jobs/a-2", "j%20b/ü"))
    for job_dir in (first, second, odd):
        job_dir.put("code/x y.txt", b"1")
        job_dir.put("log.txt", b"22")
        job_dir.copy("log.txt", "logs/log.txt")
    assert set(store.objects) == {
        f"{folder}/{key}"
        for folder in ("jobs/a", "jobs/a-2", "j b/ü")
        for key in ("code/x y.txt", "log.txt", "logs/log.txt")
    }
    for job_dir in (first, second, odd):
        assert job_dir.list("") == ["code/x y.txt", "log.txt", "logs/log.txt"]
        assert [entry.key for entry in job_dir.entries("", after="code/x y.txt")] == ["log.txt", "logs/log.txt"]
        assert job_dir.folders("") == ["code", "logs"]
        assert job_dir.files("logs") == {"log.txt": 2}
        entry = job_dir.entry("log.txt")
        assert entry is not None and (entry.key, entry.size) == ("log.txt", 2)
        assert job_dir.get_range("log.txt", 0, 1) == b"2"
    first.delete("log.txt")
    assert first.find("log.txt") is None and second.get("log.txt") == b"22"
    assert not second.create("log.txt", b"333")


def test_credentials_are_read_anew_once_for_all_that_fail_at_the_same_time(
    store: s3.S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Buckets().of("s3://bucket/jobs")
    assert bucket is not None
    job_dirs = [JobDir(f"s3://bucket/jobs/{number}", bucket=bucket) for number in range(2)]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    for job_dir in job_dirs:
        job_dir.renew()
        job_dir.find("job.json")
    assert [key_of(request) for request in store.requests] == ["id", "id"], "they were read a moment ago"
    bucket.reconnect()
    for job_dir in job_dirs:
        job_dir.find("job.json")
    assert [key_of(request) for request in store.requests[2:]] == ["renewed", "renewed"]


@pytest.mark.parametrize("path", ["jobs//a", "jobs/../a", "jobs/./a"])
def test_a_folder_that_no_key_can_be_in_is_refused(store: s3.S3, path: str) -> None:
    with pytest.raises(JobDirError, match="cannot be used as a job dir: a part of its path is empty"):
        JobDir(f"s3://bucket/{path}")
