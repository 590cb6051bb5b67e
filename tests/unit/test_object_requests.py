"""Requests to an object store: a hanging request is retried after 10 s."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cloudgpu.protocol.jobdir import JobDir

from ..standins import s3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.parametrize("kind", ["GET", "list"])
def test_a_request_that_hangs_is_repeated_after_10_s(store: s3.S3, kind: str) -> None:
    job_dir = JobDir(store.url)
    job_dir.put("folder/key", b"content")
    fault = store.fail(kind, times=1, hang=True)
    begun = time.monotonic()
    if kind == "GET":
        assert job_dir.get("folder/key") == b"content"
    else:
        assert job_dir.list("folder") == ["folder/key"]
    assert fault.met == 1
    assert 9 < time.monotonic() - begun < 20


def test_a_write_that_hangs_is_repeated_after_10_s(store: s3.S3) -> None:
    fault = store.fail("PUT", times=1, hang=True)
    begun = time.monotonic()
    JobDir(store.url).put("key", b"content")
    assert (fault.met, store.objects["job/key"]) == (1, b"content")
    assert 9 < time.monotonic() - begun < 20
