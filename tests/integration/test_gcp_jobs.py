"""Jobs on Compute Engine from end to end, over the wire: `cloudgpu submit`, a supervisor, machines that really boot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.cloud_jobs import after, console_of, counting, counting_together, total
from cloudgpu.tests.standins.gcp.jobs import GcpJobs, agents, jobs, tags_of
from cloudgpu.tests.standins.local_jobs import stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

TYPE = "n1-standard-4"
SPOT = f"resources: {{cloud: gcp, machine_type: {TYPE}, accelerator: T4, region: us-central1, market: spot}}\n"
ON_DEMAND = SPOT.replace("spot", "on-demand")
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"


def begins(log: list[str]) -> list[str]:
    return [line for line in log if "begins at" in line]


def test_a_job_runs_on_a_machine_and_leaves_nothing(jobs: GcpJobs) -> None:
    job = jobs.submit(counting(5), text=SPOT)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
    (machine,) = jobs.instances(job)
    assert (machine.market, machine.accelerator, machine.count) == ("spot", "nvidia-tesla-t4", 1)


def test_no_capacity_then_a_preemption_then_resumed_elsewhere(jobs: GcpJobs) -> None:
    """Both times the zone that has room is asked next, for Compute Engine names it."""
    for zone in ("us-central1-a", "us-central1-b", "us-central1-f"):
        jobs.control.set_capacity(TYPE, zone, "spot", 0)
    job = jobs.submit(counting(60, lingers=True), text=SPOT + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    assert (machine.zone, machine.market) == ("us-central1-c", "spot")
    jobs.wait_for(lambda: jobs.is_saved(job), job)

    jobs.control.set_capacity(TYPE, "us-central1-c", "spot", 0)
    jobs.control.set_capacity(TYPE, "us-central1-f", "spot", None)
    jobs.control.preempt(machine.name, 60.0)
    jobs.finish(job)

    outcomes = [attempt.outcome for attempt in job.attempts() if attempt.outcome != "refused"]
    assert outcomes == ["preempted", "succeeded"], jobs.diagnostics(job)
    asked = [call.zone.rpartition("-")[2] for call in jobs.control.calls("instances.insert")]
    assert asked == ["a", "c", "c", "f"], jobs.diagnostics(job)
    log = jobs.log(job)
    assert len(begins(log)) == 2 and "begins at 0 " not in begins(log)[1]
    assert total(60) in log


def test_maintenance_is_survived_in_place(jobs: GcpJobs) -> None:
    """Announced, saved before it, the host is away, the same machine goes on."""
    job = jobs.submit(counting(60, lingers=True), text=ON_DEMAND + "checkpoint: {every: 1h, keep: 2}\n")
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: begins(jobs.log(job)), job)
    assert not jobs.is_saved(job)
    assert console_of(job).splitlines()[-1] in jobs.instances(job)[0].console, jobs.diagnostics(job)
    jobs.control.maintain(machine.name, 5.0, repair=1.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert [one.name for one in jobs.instances(job)] == [machine.name]
    log = jobs.log(job)
    (saved,) = (found[1] for line in log if (found := re.search(r"stopped at step (\d+), saved", line)))
    assert len(begins(log)) == 2 and f"begins at {saved} " in begins(log)[1], jobs.diagnostics(job)
    assert total(60) in log


@in_long_mode
def test_a_host_that_fails_is_replaced_by_compute_engine(jobs: GcpJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=ON_DEMAND + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.crash(machine.name, repair=1.0)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert len(jobs.instances(job)) == 1
    log = jobs.log(job)
    assert len(begins(log)) == 2 and "begins at 0 " not in begins(log)[1], jobs.diagnostics(job)
    assert total(60) in log


@in_long_mode
def test_a_machine_that_somebody_deletes_is_replaced(jobs: GcpJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=SPOT + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    machine = jobs.instances(job)[0]
    jobs.remains.delete(machine.zone, machine.name)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["lost", "succeeded"], jobs.diagnostics(job)
    assert "begins at 0 " not in begins(jobs.log(job))[-1]
    assert total(60) in jobs.log(job)


@in_long_mode
def test_a_spot_machine_whose_host_fails_is_replaced_by_another(jobs: GcpJobs) -> None:
    """It is stopped and does not come back, but is not gone: that it is silent tells."""
    job = jobs.submit(counting(60, lingers=True), text=SPOT + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.crash(jobs.instances(job)[0].name)
    jobs.finish(job, limit_s=500.0)
    assert [attempt.outcome for attempt in job.attempts()] == ["lost", "succeeded"], jobs.diagnostics(job)
    assert "begins at 0 " not in begins(jobs.log(job))[-1]
    assert total(60) in jobs.log(job)
    assert len(jobs.instances(job)) == 2


def test_the_submitters_computer_may_be_off_meanwhile(jobs: GcpJobs, tmp_path: Path) -> None:
    job = jobs.submit(after(tmp_path / "off", counting(30)), text=SPOT + OFTEN)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()
    (tmp_path / "off").touch()
    jobs.wait_for(lambda: not jobs.instances(job, running=True), job)
    assert [one.reason for one in jobs.instances(job)] == ["delete"], jobs.diagnostics(job)
    jobs.wait_for(lambda: jobs.remains.find() == {}, job)

    command = [sys.executable, "-m", "cloudgpu", "logs", job.row.job_dir]
    elsewhere = {**os.environ, "CLOUDGPU_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert total(30) in done.stdout

    ensure_supervisor()
    jobs.finish(job)


@in_long_mode
def test_only_the_preempted_machine_of_two_is_replaced(jobs: GcpJobs) -> None:
    two = SPOT.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(counting_together(60, lingers=True), python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    lost = next(one for one in jobs.instances(job) if tags_of(one)[tags.NODE] == "worker-1.1")
    jobs.control.preempt(lost.name, 60.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    nodes = [tags_of(one)[tags.NODE] for one in jobs.instances(job)]
    assert nodes == ["worker-0.1", "worker-1.1", "worker-1.2"], jobs.diagnostics(job)
    log = jobs.log(job)
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(log)
    again = [line for line in begins(log) if not line.endswith(" 0")]
    assert {line.split()[0] for line in again} == {"worker-0.1", "worker-1.2"}
    assert {f"worker-0.1 has {2 * sum(range(60))}", f"worker-1.2 has {2 * sum(range(60))}"} <= set(log)
