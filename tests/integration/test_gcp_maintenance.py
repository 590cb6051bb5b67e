"""Maintenance of one of several machines: the same machines go on together, in the same attempt."""

from __future__ import annotations

import sys

import pytest

from cloudgpu.tests.standins.cloud_jobs import counting_together
from cloudgpu.tests.standins.gcp.jobs import GcpJobs, agents, jobs

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

TWO = (
    "resources: {cloud: gcp, machine_type: n1-standard-4, accelerator: T4, region: us-central1, nodes: 2}\n"
    "checkpoint: {every: 1s, keep: 2}\nretry: {failure: 0, preemption: 1}\n"
)


def test_two_nodes_wait_for_the_one_whose_host_is_maintained(jobs: GcpJobs) -> None:
    """It costs one interruption, which is all that the job allows; no machine is replaced."""
    job = jobs.submit(counting_together(60, lingers=True), python=sys.executable, text=TWO)
    jobs.wait_for(lambda: jobs.is_saved(job), job, limit_s=300.0)
    first, second = jobs.instances(job)
    jobs.control.maintain(second.name, 5.0, repair=2.0)
    jobs.finish(job, limit_s=500.0)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert [one.name for one in jobs.instances(job)] == [first.name, second.name]
    log = jobs.log(job)
    assert [one.generation for one in job.attempts()[0].generations] == [2], jobs.diagnostics(job)
    assert "the machine reboots" in log
    for node in ("worker-0.1", "worker-1.1"):
        first_run, second_run = [line for line in log if line.startswith(f"{node} begins at")]
        assert first_run.endswith(" 0") and not second_run.endswith(" 0"), jobs.diagnostics(job)
        assert f"{node} has {2 * sum(range(60))}" in log
