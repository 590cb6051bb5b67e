"""Jobs on AWS from end to end, over the wire: `cloudgpu submit`, a supervisor, machines that really boot, a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.tests.standins.aws.jobs import TYPE, AwsJobs, aws_jobs

pytestmark = pytest.mark.timeout(180)

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


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AwsJobs]:
    with aws_jobs(tmp_path, agents) as made:
        yield made


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
