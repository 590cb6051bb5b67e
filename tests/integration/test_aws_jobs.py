"""End-to-end tests of jobs on AWS: `cloudgpu submit`, a supervisor, machines that really boot, a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.protocol.jobdir import run_key
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, agents, jobs
from cloudgpu.tests.standins.aws.stacks import create_stack
from cloudgpu.tests.standins.cloud_jobs import after, console_of, counting, counting_together, total
from cloudgpu.tests.standins.local_jobs import stop_supervisor

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"
LATE_S = 240.0
"""Time limit in seconds: a machine without heartbeats counts as lost after two minutes."""


def test_a_job_runs_on_a_machine_and_leaves_nothing(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(5), text=RESOURCES)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
    assert len(jobs.instances(job)) == 1


def test_no_capacity_then_a_spot_notice_then_resumed_elsewhere(jobs: AwsJobs) -> None:
    first, second = jobs.zones["use1-az1"], jobs.zones["use1-az2"]
    jobs.control.set_capacity(TYPE, first, "spot", 0)
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    assert (machine.zone, machine.market) == (second, "spot")
    jobs.wait_for(lambda: jobs.is_saved(job), job)

    jobs.control.set_capacity(TYPE, second, "spot", 0)
    jobs.control.interrupt(machine.instance_id, 60.0)
    jobs.finish(job)

    outcomes = [attempt.outcome for attempt in job.attempts() if attempt.outcome != "refused"]
    assert outcomes == ["preempted", "succeeded"], jobs.diagnostics(job)
    log = jobs.log(job)
    begins = [line for line in log if "begins at" in line]
    assert len(begins) == 2 and "begins at 0 " not in begins[1]
    assert total(60) in log
    assert jobs.instances(job)[-1].zone not in (first, second)


def test_a_cancelled_job_is_resumed_with_a_change_on_another_machine(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: jobs.instances(job, running=True), job)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    job.cancel()
    jobs.finish(job, "cancelled")
    first = job.job_dir
    job.resume({"env": {"LR": "0.5"}, "resources.market": "on-demand"})
    jobs.finish(job)
    assert job.job_dir == first
    assert [attempt.outcome for attempt in job.attempts()] == ["stopped", "succeeded"], jobs.diagnostics(job)
    log = jobs.log(job)
    begins = [line for line in log if "begins at" in line]
    assert len(begins) == 2 and begins[1].startswith("attempt 2") and "begins at 0 " not in begins[1]
    assert total(60) in log
    assert [machine.market for machine in jobs.instances(job)] == ["spot", "on-demand"]
    assert jobs.job_dir(job).exists(run_key(job.row.job_sha256))


def test_a_reboot_resumes_in_place(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    assert console_of(job).splitlines()[-1] in jobs.instances(job)[0].console, jobs.diagnostics(job)
    jobs.control.reboot(machine.instance_id)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert len(jobs.instances(job)) == 1
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert len(begins) == 2 and "begins at 0 " not in begins[1], jobs.diagnostics(job)
    assert total(60) in jobs.log(job)


def test_the_submitters_computer_may_be_off_meanwhile(jobs: AwsJobs, tmp_path: Path) -> None:
    job = jobs.submit(after(tmp_path / "off", counting(30)), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()
    (tmp_path / "off").touch()
    jobs.wait_for(lambda: not jobs.instances(job, running=True), job)
    assert [one.reason for one in jobs.instances(job)] == ["Client.InstanceInitiatedShutdown"]

    command = [sys.executable, "-m", "cloudgpu", "logs", job.row.job_dir]
    elsewhere = {**os.environ, "CLOUDGPU_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert total(30) in done.stdout

    ensure_supervisor()
    jobs.finish(job)


def test_a_machine_that_fails_is_replaced_by_another(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.crash(jobs.instances(job)[0].instance_id)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["lost", "succeeded"], jobs.diagnostics(job)
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert "begins at 0 " not in begins[-1]
    assert total(60) in jobs.log(job)


def test_only_the_interrupted_machine_of_two_is_replaced(jobs: AwsJobs) -> None:
    two = RESOURCES.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(counting_together(60, lingers=True), python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    lost = next(one for one in jobs.instances(job) if one.tags["cloudgpu-node"] == "worker-1.1")
    jobs.control.interrupt(lost.instance_id, 60.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    nodes = [one.tags["cloudgpu-node"] for one in jobs.instances(job)]
    assert nodes == ["worker-0.1", "worker-1.1", "worker-1.2"], jobs.diagnostics(job)
    log = jobs.log(job)
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(log)
    again = [line for line in log if "begins at" in line and not line.endswith(" 0")]
    assert {line.split()[0] for line in again} == {"worker-0.1", "worker-1.2"}
    assert {f"worker-0.1 has {2 * sum(range(60))}", f"worker-1.2 has {2 * sum(range(60))}"} <= set(log)


# --- recover: fleet ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stack(jobs: AwsJobs) -> Infrastructure:
    """Create an infra stack in two zones, which the check for leaks leaves out."""
    stands = create_stack(jobs.session, "us-east-1", jobs.parent)
    jobs.remains.ignore_existing()
    return stands


FLEET = RESOURCES + OFTEN + "recover: fleet\n"


def groups(jobs: AwsJobs) -> list[Any]:
    client: Any = jobs.session.client("autoscaling", endpoint_url=jobs.control.url)
    return list(client.describe_auto_scaling_groups()["AutoScalingGroups"])


def test_a_group_of_the_job_s_own_heals_and_ends_itself_with_the_submitters_computer_off(
    jobs: AwsJobs, stack: Infrastructure
) -> None:
    two = FLEET.replace("{", "{nodes: 2, ", 1) + "launcher: torchrun\n"
    job = jobs.submit(counting_together(200, lingers=True), python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job, LATE_S)
    stop_supervisor()
    first = jobs.instances(job)
    assert len(first) == 2 and {one.market for one in first} == {"spot"}
    jobs.control.interrupt(first[1].instance_id, 60.0)
    jobs.wait_for(lambda: len(jobs.instances(job)) == 3, job, LATE_S)
    jobs.wait_for(lambda: not jobs.instances(job, running=True), job, LATE_S)
    [group] = groups(jobs)
    assert group["DesiredCapacity"] == 0, jobs.diagnostics(job)

    ensure_supervisor()
    jobs.finish(job, limit_s=LATE_S)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert len(jobs.instances(job)) == 3
    log = jobs.log(job)
    begins = [line for line in log if "begins at" in line]
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(begins)
    again = {line.split()[0] for line in begins if not line.endswith(" 0")}
    assert again and any(line.endswith(f" has {2 * sum(range(200))}") for line in log), jobs.diagnostics(job)
    assert groups(jobs) == []


def test_a_group_without_capacity_makes_way_for_the_next_zone(jobs: AwsJobs, stack: Infrastructure) -> None:
    first, second = (jobs.zones[zone] for zone in ("use1-az1", "use1-az2"))
    jobs.control.set_capacity(TYPE, first, "spot", 0)
    zones = FLEET.replace("{", "{zone: [use1-az1, use1-az2], ", 1)
    job = jobs.submit(counting(5), text=zones)
    jobs.finish(job, limit_s=LATE_S)
    assert {one.zone for one in jobs.instances(job)} == {second}, jobs.diagnostics(job)
    tries = [attempt.offer.zone for attempt in job.attempts()]
    assert tries[-1] in (None, "use1-az2"), jobs.diagnostics(job)


def test_a_group_of_one_s_own_is_cancelled(jobs: AwsJobs, stack: Infrastructure) -> None:
    job = jobs.submit(counting(6_000), text=FLEET)
    jobs.wait_for(lambda: any("begins at" in line for line in jobs.log(job)), job, LATE_S)
    job.cancel()
    jobs.finish(job, "cancelled", LATE_S)
    assert groups(jobs) == []
