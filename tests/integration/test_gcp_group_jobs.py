"""Jobs with `recover: fleet` on Compute Engine from end to end, over the wire: `cloudgpu submit`, a managed instance
group, machines that really boot, and a supervisor that need not be there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job, ensure_supervisor
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import FLEET_KEY, Settings
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.provisioners.stacks.job_groups import FLEET_DIR
from cloudgpu.tests.standins.cloud_jobs import counting, counting_together, total
from cloudgpu.tests.standins.gcp.jobs import GcpJobs, agents, gcp_jobs
from cloudgpu.tests.standins.gcp.stacks import REGION, create_stack
from cloudgpu.tests.standins.local_jobs import stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(900)

TYPE = "n1-standard-4"
LIMIT_S = 400.0
SILENT_S = 40.0
"""The lost machine comes back under its name; the other one must not be missed, however busy this computer is."""
SPOT = f"""
resources: {{cloud: gcp, machine_type: {TYPE}, accelerator: T4, region: {REGION}, market: spot}}
recover: fleet
checkpoint: {{every: 1s, keep: 2}}
"""
TWO = SPOT.replace("{", "{nodes: 2, ", 1) + "launcher: torchrun\n"


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[GcpJobs]:
    with gcp_jobs(tmp_path, agents) as made:
        create_stack(made.control, made.parent)
        yield made


def hurry(jobs: GcpJobs, job: Job) -> str:
    """Machines look often; URL of the folder where they meet."""
    jobs.wait_for(lambda: job.attempts() and job.attempts()[-1].allocation, job, LIMIT_S)
    allocation = job.attempts()[-1].allocation
    assert allocation is not None
    url = allocation.details[FLEET_DIR]
    JobDir(url).put(FLEET_KEY, Settings(None, 0.3, SILENT_S).to_bytes())
    return url


def group(jobs: GcpJobs) -> dict[str, Any]:
    [found] = jobs.control.resources("regionInstanceGroupManagers")
    return found


def begins(log: list[str]) -> list[str]:
    return [line for line in log if "begins at" in line]


@in_long_mode
def test_a_machine_that_is_lost_is_made_anew_while_nobody_looks(jobs: GcpJobs) -> None:
    """By its group, under the same name; the job goes on from the checkpoint, in the same attempt."""
    job = jobs.submit(counting_together(60, lingers=True), python=sys.executable, text=TWO)
    url = hurry(jobs, job)
    jobs.wait_for(lambda: jobs.is_saved(job), job, LIMIT_S)
    stop_supervisor()
    lost = jobs.instances(job, running=True)[0]
    jobs.remains.delete(lost.zone, lost.name)
    jobs.wait_for(lambda: [one.name for one in jobs.instances(job)].count(lost.name) == 2, job, LIMIT_S)
    jobs.wait_for(lambda: group(jobs)["targetSize"] == 0, job, LIMIT_S)
    jobs.wait_for(lambda: not jobs.control.resources("instances"), job, LIMIT_S)
    [order] = Fleet(url).view().orders
    assert order.end is not None and not order.end.unserved
    assert sorted(place.incarnation for place in order.places) == [1, 2]

    ensure_supervisor()
    jobs.finish(job, limit_s=LIMIT_S)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert len(jobs.instances(job)) == 3, jobs.diagnostics(job)
    log = jobs.log(job)
    assert any(not line.endswith(" 0") for line in begins(log)), log
    assert len([line for line in log if line.endswith(f" has {2 * sum(range(60))}")]) == 2, log


@in_long_mode
def test_a_zone_without_room_then_another(jobs: GcpJobs) -> None:
    """The group of the first zone says so, and is gone before the next is made."""
    for zone in (f"{REGION}-a", f"{REGION}-b", f"{REGION}-f"):
        jobs.control.set_capacity(TYPE, zone, "spot", 0)
    job = jobs.submit(counting(5), text=SPOT)
    jobs.finish(job, limit_s=LIMIT_S)
    assert total(5) in jobs.log(job)
    assert [attempt.outcome for attempt in job.attempts()][-1] == "succeeded"
    assert {attempt.outcome for attempt in job.attempts()[:-1]} == {"refused"}, jobs.diagnostics(job)
    assert {one.zone for one in jobs.instances(job)} == {f"{REGION}-c"}


@in_long_mode
def test_a_job_that_is_cancelled_leaves_nothing(jobs: GcpJobs) -> None:
    job = jobs.submit(counting(10_000), text=SPOT)
    jobs.wait_for(lambda: begins(jobs.log(job)), job, LIMIT_S)
    job.cancel()
    jobs.finish(job, "cancelled", LIMIT_S)
