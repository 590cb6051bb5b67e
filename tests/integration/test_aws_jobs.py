"""Jobs on AWS from end to end, over the wire: `cloudgpu submit`, a supervisor, machines that really boot, a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, agents, jobs
from cloudgpu.tests.standins.local_jobs import stop_supervisor

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(600)

RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"

# Counts up, as long as it takes; nothing but the standard library and what the agent file brings.
COUNTING = """
import os, pathlib, time
from cloudgpu.runtime import Checkpointer

class Total:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

total = Total()
ckpt = Checkpointer(total=total)
print(f"attempt {os.environ['CLOUDGPU_ATTEMPT']} begins at {ckpt.step} with {total.value}", flush=True)
for step in ckpt.steps(STEPS):
    total.value += step
    time.sleep(0.1)
print(f"sum {total.value}", flush=True)
"""


def counting(steps: int) -> str:
    return COUNTING.replace("STEPS", str(steps))


def total(steps: int) -> str:
    """What the program prints if no step was left out or done twice."""
    return f"sum {sum(range(steps))}"


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


# On several machines: every rank counts what all of them have. Its Python is the tests' own, which has torch.
TOGETHER = """
import os, time
import torch
import torch.distributed as dist
from cloudgpu.runtime import Checkpointer

class Total:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

torch.set_num_threads(1)
dist.init_process_group("gloo")
total = Total()
ckpt = Checkpointer(total=total)
print(f"{os.environ['CLOUDGPU_NODE']} begins at {ckpt.step}", flush=True)
for step in ckpt.steps(STEPS):
    both = torch.tensor([float(step)])
    dist.all_reduce(both)
    total.value += int(both.item())
    time.sleep(0.1)
print(f"{os.environ['CLOUDGPU_NODE']} has {total.value}", flush=True)
dist.destroy_process_group()
"""


def test_only_the_interrupted_machine_of_two_is_replaced(jobs: AwsJobs) -> None:
    two = RESOURCES.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(TOGETHER.replace("STEPS", "150"), python=sys.executable, text=two)
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
