"""Jobs on Vertex AI from end to end, over the wire: `cloudgpu submit`, a supervisor, containers that run, a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.vertex.user_jobs import TYPE, agents, jobs, vertex_jobs

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(600)

IMAGE = "example.com/images/training:1"
REGION = "us-central1"
RESOURCES = f"resources: {{cloud: vertex, machine_type: {TYPE}, accelerator: T4, region: {REGION}, market: spot}}\n"
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


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_a_job_runs_in_a_container_and_leaves_nothing(tmp_path: Path, agents: Path, transport: str) -> None:
    with vertex_jobs(tmp_path, agents, transport=transport) as jobs:
        job = jobs.submit(counting(5), text=RESOURCES)
        jobs.finish(job)
        assert total(5) in jobs.log(job)
        (one,) = jobs.custom_jobs(job)
        assert (one.region, one.market, one.state) == (REGION, "spot", "SUCCEEDED"), jobs.story(job)
