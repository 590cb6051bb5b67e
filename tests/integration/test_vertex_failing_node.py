"""Two nodes on Vertex AI, one of which fails: the service then ends the other, which must not count as preempted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.tests.standins.vertex.user_jobs import TYPE, VertexJobs, agents, jobs

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

TWO = f"""
resources: {{nodes: 2, cloud: vertex, machine_type: {TYPE}, accelerator: T4, region: us-central1, market: spot}}
launcher: none
retry: {{failure: 0, preemption: unlimited}}
"""
# One node fails once both run; the other keeps working, as if it waited for its peer.
PROGRAM = """
import os, pathlib, sys, time
other = pathlib.Path("OTHER")
print(f"{os.environ['CLOUDGPU_NODE']} runs", flush=True)
if os.environ["CLOUDGPU_NODE"].startswith("FAILING"):
    while not other.exists():
        time.sleep(0.1)
    sys.exit(3)
other.touch()
time.sleep(600.0)
"""


@pytest.mark.parametrize("node", ["worker-0", "worker-1"])
def test_a_program_that_fails_on_one_node_is_a_failure(jobs: VertexJobs, tmp_path: Path, node: str) -> None:
    job = jobs.submit(PROGRAM.replace("FAILING", node).replace("OTHER", str(tmp_path / "other")), text=TWO)
    jobs.finish(job, "failed", limit_s=300.0)
    assert {"worker-0.1 runs", "worker-1.1 runs"} <= set(jobs.log(job)), jobs.diagnostics(job)
    [attempt] = job.attempts()
    assert (attempt.outcome, attempt.exit_code) == ("failed", 3), jobs.diagnostics(job)
    assert node in attempt.reason
    assert len(jobs.custom_jobs(job)) == 1
