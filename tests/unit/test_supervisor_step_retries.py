"""Timeouts of the supervisor for a bucket that does not answer."""

from __future__ import annotations

import pytest

from cloudgpu.control.supervisor.supervisor import RETRY_TIMEOUT_S, TRAINING_RETRY_TIMEOUT_S
from cloudgpu.protocol.jobdir import JobDirError
from cloudgpu.runtime.agent.agent import retry_timeout_s
from cloudgpu.tests.standins import s3
from cloudgpu.tests.standins.cloud import SUCCEED, VANISH, lives
from cloudgpu.tests.standins.control import World


class Bucket:
    """Job dir whose every request fails for a while."""

    def __init__(self, real: object, down: list[bool]) -> None:
        self._real, self._down = real, down

    def __getattr__(self, name: str) -> object:
        if self._down and name != "renew":
            raise JobDirError("s3://bucket/job: it does not answer")
        return getattr(self._real, name)


@pytest.mark.parametrize("down_s", [600.0, None], ids=["ten minutes", "for good"])
def test_machines_that_end_while_the_bucket_is_out_of_reach_do_not_fail_the_job(
    down_s: float | None, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    down: list[bool] = []
    with s3.running() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        world.wrap = lambda what, it: Bucket(it, down) if what == "dir" else it
        world.cloud.script = lives(VANISH, SUCCEED)
        job_id, supervisor = world.submit(job_dir=store.url), world.supervisor()
        world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
        down.append(True)
        begun = world.clock.monotonic()
        if down_s is not None:
            world.drive(supervisor, until=lambda: world.clock.monotonic() > begun + down_s)
            down.clear()
        world.drive(supervisor, for_s=2 * TRAINING_RETRY_TIMEOUT_S)
        world.check_clean()
        job = world.job(job_id)
        if down_s is not None:
            assert (job.state, len(world.attempts(job_id))) == ("succeeded", 2)
        else:
            assert job.reason == f"given up after {TRAINING_RETRY_TIMEOUT_S:.0f} s: s3://bucket/job: it does not answer"


def test_machines_bear_what_the_supervisor_bears_but_on_clusters() -> None:
    assert retry_timeout_s(is_fenced=False, has_begun=True) == TRAINING_RETRY_TIMEOUT_S
    assert 300.0 <= retry_timeout_s(is_fenced=False, has_begun=False) < RETRY_TIMEOUT_S
    assert {retry_timeout_s(is_fenced=True, has_begun=begun) for begun in (True, False)} == {
        60.0
    }  # before 80 s have passed
