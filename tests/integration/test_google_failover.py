"""From Compute Engine to Vertex AI: two targets with one bucket are two places of a job like any others."""

from __future__ import annotations

import pytest

from cloudgpu.tests.standins.cloud_jobs import counting, total
from cloudgpu.tests.standins.gcp.jobs import GcpJobs, agents, jobs
from cloudgpu.tests.standins.vertex.control import VertexControl

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

TYPE = "n1-standard-8"
EITHER = (
    f"resources: {{cloud: [gcp, vertex], machine_type: {TYPE}, accelerator: T4, region: us-central1, market: spot}}\n"
    "checkpoint: {every: 1s, keep: 2}\n"
)
ZONES = [f"us-central1-{letter}" for letter in "abcf"]


def test_what_compute_engine_has_taken_away_goes_on_at_vertex_ai(jobs: GcpJobs) -> None:
    """The checkpoint of the one is restored by the other, and nothing is left at either."""
    vertex = VertexControl(jobs.control)
    job = jobs.submit(counting(60, lingers=True), text=EITHER)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    for zone in ZONES:
        jobs.control.set_capacity(TYPE, zone, "spot", 0)
    jobs.control.preempt(machine.name, 60.0)
    jobs.finish(job, limit_s=400.0)

    attempts = job.attempts()
    assert [one.outcome for one in (attempts[0], attempts[-1])] == ["preempted", "succeeded"], jobs.diagnostics(job)
    assert [one.offer.cloud for one in (attempts[0], attempts[-1])] == ["gcp", "vertex"], jobs.diagnostics(job)
    between = attempts[1:-1]
    assert {(one.offer.cloud, one.outcome, one.cause) for one in between} <= {("gcp", "refused", "capacity")}
    begun = [line for line in jobs.log(job) if "begins at" in line]
    assert len(begun) == 2 and "begins at 0 " not in begun[1], jobs.diagnostics(job)
    assert total(60) in jobs.log(job)
    assert [one.state for one in vertex.jobs(alive=True)] == []
    assert len(vertex.jobs()) == 1
