"""Jobs on AWS from end to end, over the wire: `cloudgpu submit`, a supervisor, machines that really boot, a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, agents, jobs
from cloudgpu.tests.standins.cloud_jobs import counting, counting_together, total
from cloudgpu.tests.standins.local_jobs import stop_supervisor

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(600)

RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"


def test_a_job_runs_on_a_machine_and_leaves_nothing(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(5), text=RESOURCES)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
    assert len(jobs.instances(job)) == 1


def test_no_capacity_then_a_spot_notice_then_resumed_elsewhere(jobs: AwsJobs) -> None:
    first, second = jobs.zones["use1-az1"], jobs.zones["use1-az2"]
    jobs.control.set_capacity(TYPE, first, "spot", 0)
    job = jobs.submit(counting(150), text=RESOURCES + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    assert (machine.zone, machine.market) == (second, "spot")
    jobs.wait_for(lambda: jobs.is_saved(job), job)

    jobs.control.set_capacity(TYPE, second, "spot", 0)
    jobs.control.interrupt(machine.instance_id, 20.0)
    jobs.finish(job)

    outcomes = [attempt.outcome for attempt in job.attempts() if attempt.outcome != "refused"]
    assert outcomes == ["preempted", "succeeded"], jobs.story(job)
    log = jobs.log(job)
    begins = [line for line in log if "begins at" in line]
    assert len(begins) == 2 and "begins at 0 " not in begins[1]
    assert total(150) in log
    assert jobs.instances(job)[-1].zone not in (first, second)


def test_a_reboot_resumes_in_place(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(100), text=RESOURCES + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.reboot(machine.instance_id)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.story(job)
    assert len(jobs.instances(job)) == 1
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert len(begins) == 2 and "begins at 0 " not in begins[1], jobs.story(job)
    assert total(100) in jobs.log(job)


def test_the_submitters_computer_may_be_off_meanwhile(jobs: AwsJobs, tmp_path: Path) -> None:
    job = jobs.submit(counting(30), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()
    jobs.wait_for(lambda: not jobs.instances(job, running=True), job)
    assert [one.reason for one in jobs.instances(job)] == ["Client.InstanceInitiatedShutdown"]

    command = [sys.executable, "-m", "cloudgpu", "logs", job.row.job_dir]
    elsewhere = {**os.environ, "CLOUDGPU_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert total(30) in done.stdout

    ensure_supervisor()
    jobs.finish(job)


def test_a_machine_that_fails_is_replaced_by_another(jobs: AwsJobs) -> None:
    job = jobs.submit(counting(60), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.crash(jobs.instances(job)[0].instance_id)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["lost", "succeeded"], jobs.story(job)
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert "begins at 0 " not in begins[-1]
    assert total(60) in jobs.log(job)


def test_only_the_interrupted_machine_of_two_is_replaced(jobs: AwsJobs) -> None:
    two = RESOURCES.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(counting_together(150), python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    lost = next(one for one in jobs.instances(job) if one.tags["cloudgpu-node"] == "worker-1.1")
    jobs.control.interrupt(lost.instance_id, 15.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.story(job)
    nodes = [one.tags["cloudgpu-node"] for one in jobs.instances(job)]
    assert nodes == ["worker-0.1", "worker-1.1", "worker-1.2"], jobs.story(job)
    log = jobs.log(job)
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(log)
    again = [line for line in log if "begins at" in line and not line.endswith(" 0")]
    assert {line.split()[0] for line in again} == {"worker-0.1", "worker-1.2"}
    assert {f"worker-0.1 has {2 * sum(range(150))}", f"worker-1.2 has {2 * sum(range(150))}"} <= set(log)
