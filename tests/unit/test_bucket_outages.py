"""Jobs whose bucket fails during the submit, and during the launch by the supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job, list_jobs
from cloudgpu.protocol.jobdir import JobDirError
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.cloud import SUCCEED, lives
from cloudgpu.tests.standins.control import World
from cloudgpu.tests.standins.local_jobs import home, submit_text

__all__ = ["home"]

SLOW_DOWN = {"status": 503, "code": "SlowDown"}
LOST = {"lose_answer": True}
SUBMIT = [("HEAD", "shared/"), ("start", "shared/"), ("copy", ""), ("PUT", "job.json")]
"""Requests of a submit: kind, and part of the key."""
AT_ONCE = 4
"""Number of times a failing request is sent before the caller gets the error."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3]:
    with s3.running() as standin:
        for name, value in standin.environment.items():
            monkeypatch.setenv(name, value)
        yield standin


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('hello')\n")
    return tmp_path


def submitted(folder: Path) -> Job:
    return submit_text("name: digits\njob_dir: s3://bucket/jobs\ncode: code\nrun: 'true'\n", folder, supervise=False)


@pytest.mark.parametrize("fault", [SLOW_DOWN, LOST], ids=["503", "lost"])
@pytest.mark.parametrize(
    ("kind", "name"), [("HEAD", "shared/"), ("start", "shared/"), ("copy", ""), ("PUT", "job.json")]
)
def test_a_submit_goes_on_after_moments(  # noqa: PLR0917
    home: Path, store: s3.S3, code: Path, kind: str, name: str, fault: dict[str, Any]
) -> None:
    met = store.fail(kind, name, times=2, **fault)
    job = submitted(code)
    assert [one.id for one in list_jobs()] == [job.id]
    assert met.met == 2
    assert len([key for key in store.objects if key.endswith("job.json")]) == 1


@pytest.mark.parametrize(
    ("kind", "name"), [("HEAD", "shared/"), ("start", "shared/"), ("copy", ""), ("PUT", "job.json")]
)
def test_a_submit_that_fails_leaves_no_job_and_the_next_one_is_none_the_worse(
    home: Path, store: s3.S3, code: Path, kind: str, name: str
) -> None:
    store.fail(kind, name, times=AT_ONCE, **SLOW_DOWN)
    with pytest.raises(JobDirError, match=r"S3 throttles requests|503"):
        submitted(code)
    assert list_jobs() == []
    job = submitted(code)
    assert [one.id for one in list_jobs()] == [job.id]


@pytest.mark.parametrize("fault", [SLOW_DOWN, LOST], ids=["503", "lost"])
@pytest.mark.parametrize(("kind", "name"), [("GET", "job.json"), ("PUT", "attempt.json")])
def test_a_launch_waits_for_its_bucket(world: World, store: s3.S3, kind: str, name: str, fault: dict[str, Any]) -> None:
    """Several steps fail. The job has one event for all of them, and one attempt."""
    world.cloud.script = lives(SUCCEED)
    job_id = world.submit(job_dir=store.url)
    met = store.fail(kind, name, times=3 * AT_ONCE, **fault)
    world.drive(world.supervisor())
    world.check_clean()
    assert (world.job(job_id).state, len(world.attempts(job_id))) == ("succeeded", 1)
    troubles = [event.message for event in world.store.events(job_id) if event.kind == "trouble"]
    is_found = kind == "PUT" and fault is LOST  # the write succeeded although the response was lost
    assert len(troubles) == (0 if is_found else 1), troubles
    assert met.met <= AT_ONCE if is_found else met.met == 3 * AT_ONCE
