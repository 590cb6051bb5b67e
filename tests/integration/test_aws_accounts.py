"""Tests of a supervisor on AWS whose credentials belong to another account, expire or are replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control import paths
from cloudgpu.control.jobs import Job
from cloudgpu.control.supervisor import supervisor_lock
from cloudgpu.tests.standins.aws.control import KEY
from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, agents, aws_jobs
from cloudgpu.tests.standins.local_jobs import stop_supervisor

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(300)

RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"
OTHER, OTHERS_KEY, NEW_KEY = "222222222222", "AKIACLOUDGPUSTRANGER", "AKIACLOUDGPUNEWLOGIN"


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AwsJobs]:
    """Yield AWS jobs whose machines do not boot: only the supervisor is tested."""
    with aws_jobs(tmp_path, agents, boot=False) as made:
        yield made


def cloudgpu(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cloudgpu", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def launched(jobs: AwsJobs) -> Job:
    job = jobs.submit("print(1)\n", text=RESOURCES)
    jobs.wait_for(lambda: job.attempts() and job.attempts()[-1].state == "running", job)
    return job


def test_with_another_account_s_credentials_nothing_changes_until_the_first_ones_return(
    jobs: AwsJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = launched(jobs)
    [attempt] = job.attempts()
    assert attempt.account == "123456789012" and attempt.allocation is not None
    assert attempt.allocation.account == attempt.account
    stop_supervisor()

    jobs.control.assign_key(OTHERS_KEY, OTHER)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OTHERS_KEY)
    assert cloudgpu("cancel", job.id).returncode == 0
    jobs.wait_for(lambda: "not supervised" in job.refresh().reason, job)
    shown = " ".join(cloudgpu("status", job.id).stdout.split())
    assert f"its machines are in AWS account 123456789012, these credentials are of {OTHER}" in shown, shown
    assert "cancel and limits do not act on its machines" in shown
    assert job.attempts() == [attempt], jobs.diagnostics(job)
    assert [one.running for one in jobs.instances(job)] == [True]

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)  # any command replaces the supervisor
    assert cloudgpu("status", job.id).returncode == 0
    jobs.finish(job, "cancelled")
    assert [one.running for one in jobs.instances(job)] == [False]


def test_new_credentials_reach_the_supervisor_whose_own_have_expired(
    jobs: AwsJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = launched(jobs)
    first = supervisor_lock.running()
    jobs.control.revoke(KEY)
    jobs.wait_for(lambda: "waiting for credentials" in job.refresh().reason, job)
    assert first is not None and f"The supervisor (process {first.pid}) has AWS_ACCESS_KEY_ID" in job.reason
    assert KEY not in paths.supervisor_lock().read_text()

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW_KEY)
    assert cloudgpu("cancel", job.id).returncode == 0
    jobs.wait_for(lambda: (supervisor_lock.running() or first).pid not in (None, first.pid), job)
    jobs.finish(job, "cancelled", limit_s=90.0)
