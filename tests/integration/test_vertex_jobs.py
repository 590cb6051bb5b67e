"""Jobs on Vertex AI end to end, over the wire: `cloudgpu submit`, a supervisor, containers that run, and a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.tests.standins.cloud_jobs import after, counting, counting_together, total
from cloudgpu.tests.standins.local_jobs import stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode
from cloudgpu.tests.standins.vertex.user_jobs import TYPE, VertexJobs, agents, jobs, vertex_jobs

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

REGION, OTHER = "us-central1", "us-east1"
RESOURCES = f"resources: {{cloud: vertex, machine_type: {TYPE}, accelerator: T4, region: {REGION}, market: spot}}\n"
ANYWHERE = RESOURCES.replace(REGION, f"[{REGION}, {OTHER}]")
GPUS = "aiplatform.googleapis.com/custom_model_training_preemptible_nvidia_t4_gpus"
DONE = ("SUCCEEDED", "CANCELLED")
"""States of custom jobs whose nodes have all succeeded: the supervisor may cancel a job before its containers end."""
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"


@pytest.mark.parametrize("transport", ["rest", pytest.param("grpc", marks=in_long_mode)])
def test_a_job_runs_in_a_container_and_leaves_nothing(tmp_path: Path, agents: Path, transport: str) -> None:
    with vertex_jobs(tmp_path, agents, transport=transport) as jobs:
        job = jobs.submit(counting(5), text=RESOURCES)
        jobs.finish(job)
        assert total(5) in jobs.log(job)
        (one,) = jobs.custom_jobs(job)
        assert (one.region, one.market) == (REGION, "spot"), jobs.diagnostics(job)
        assert one.state in DONE, jobs.diagnostics(job)


def test_no_capacity_is_reported_late_and_the_job_runs_in_another_region(jobs: VertexJobs) -> None:
    jobs.vertex.set_pending(1.0)
    jobs.vertex.set_capacity(TYPE, REGION, "spot", 0)
    job = jobs.submit(counting(5), text=ANYWHERE)
    jobs.finish(job)
    first, second = jobs.custom_jobs(job)
    assert (first.region, first.state) == (REGION, "FAILED")
    assert second.region == OTHER and second.state in DONE
    assert [attempt.outcome for attempt in job.attempts()] == ["refused", "succeeded"], jobs.diagnostics(job)
    assert total(5) in jobs.log(job)


def test_quota_is_never_waited_for(jobs: VertexJobs) -> None:
    jobs.vertex.set_quota(REGION, GPUS, 0)
    job = jobs.submit(counting(5), text=ANYWHERE)
    jobs.finish(job)
    assert [one.region for one in jobs.custom_jobs(job)] == [OTHER]
    refused = next(event for event in job.events() if "refused" in event.message)
    assert GPUS in refused.message


def test_a_preempted_job_is_made_again_and_resumes(jobs: VertexJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    running = jobs.running(job)
    assert running is not None
    jobs.vertex.preempt(running.id, seconds=60.0)
    jobs.finish(job)
    assert jobs.outcomes(job) == ["preempted", "succeeded"], jobs.diagnostics(job)
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert len(begins) == 2 and "begins at 0 " not in begins[1]
    assert total(60) in jobs.log(job)


@in_long_mode
def test_the_service_fails_and_the_job_goes_on_elsewhere(jobs: VertexJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    running = jobs.running(job)
    assert running is not None
    jobs.vertex.fail_inside(running.id)
    jobs.finish(job)
    assert jobs.outcomes(job) == ["lost", "succeeded"], jobs.diagnostics(job)
    begins = [line for line in jobs.log(job) if "begins at" in line]
    assert "begins at 0 " not in begins[-1]
    assert total(60) in jobs.log(job)


def test_a_program_that_fails_is_the_jobs_end(jobs: VertexJobs, tmp_path: Path) -> None:
    job = jobs.submit(after(tmp_path / "off", "raise SystemExit(3)\n"), text=RESOURCES)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()  # it would cancel the job once the node has ended
    (tmp_path / "off").touch()
    jobs.wait_for(lambda: not jobs.custom_jobs(job)[0].alive, job)
    (one,) = jobs.custom_jobs(job)
    assert one.state == "FAILED" and "non-zero status of 3" in one.error
    ensure_supervisor()
    jobs.finish(job, "failed")
    assert [attempt.outcome for attempt in job.attempts()] == ["failed"], jobs.diagnostics(job)


@in_long_mode
def test_a_cancelled_job_ends_and_leaves_nothing(jobs: VertexJobs) -> None:
    job = jobs.submit(counting(10_000), text=RESOURCES)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    job.cancel()
    jobs.finish(job, "cancelled")


def test_the_submitters_computer_may_be_off_meanwhile(jobs: VertexJobs, tmp_path: Path) -> None:
    job = jobs.submit(after(tmp_path / "off", counting(30)), text=RESOURCES + OFTEN)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()
    (tmp_path / "off").touch()
    jobs.wait_for(lambda: [one.state for one in jobs.custom_jobs(job)] == ["SUCCEEDED"], job)
    command = [sys.executable, "-m", "cloudgpu", "logs", job.row.job_dir]
    elsewhere = {**os.environ, "CLOUDGPU_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert total(30) in done.stdout
    ensure_supervisor()
    jobs.finish(job)


# The primary replica is done first, and its end would end the job.
LATER = """
time.sleep(2.0 * int(os.environ["RANK"]))
print(f"{os.environ['CLOUDGPU_NODE']} is done", flush=True)
"""


def test_two_nodes_and_the_preemption_of_one(jobs: VertexJobs) -> None:
    two = RESOURCES.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(counting_together(60, lingers=True) + LATER, python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    running = jobs.running(job)
    assert running is not None
    assert [one.replica for one in running.containers] == ["workerpool0-0", "workerpool1-0"]
    jobs.vertex.preempt(running.id, "workerpool1-0", 60.0)
    jobs.finish(job)
    assert jobs.outcomes(job) == ["preempted", "succeeded"], jobs.diagnostics(job)
    log = jobs.log(job)
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(log)
    assert len([line for line in log if "begins at" in line and not line.endswith(" 0")]) == 2
    assert {f"worker-{node}.1 has {2 * sum(range(60))}" for node in (0, 1)} <= set(log)
    assert {f"worker-{node}.1 is done" for node in (0, 1)} <= set(log)


ROLES = f"""
roles:
  chief: {{machine_type: {TYPE}, accelerator: T4}}
  worker: {{nodes: 2, machine_type: {TYPE}, accelerator: T4}}
  parameter_server: {{nodes: 1, machine_type: n1-highmem-4, accelerator: none}}
  evaluator: {{machine_type: {TYPE}, accelerator: T4}}
resources: {{cloud: vertex, region: {REGION}, market: on-demand}}
launcher: tensorflow
"""
ROLE = """
import json, os, sys, time
from cloudgpu.runtime import write_output
print("CONFIG " + os.environ["TF_CONFIG"], flush=True)
print("DIRS " + os.environ["AIP_CHECKPOINT_DIR"], flush=True)
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "ps":
    time.sleep(600)  # as a parameter server does, until it is told to end
time.sleep(1.0)
"""


def test_four_roles_are_worker_pools_with_tf_config(jobs: VertexJobs) -> None:
    job = jobs.submit(ROLE, text=ROLES)
    jobs.finish(job)
    (one,) = jobs.custom_jobs(job)
    assert [container.replica for container in one.containers] == [
        "workerpool0-0", "workerpool1-0", "workerpool1-1", "workerpool2-0", "workerpool3-0",
    ]  # fmt: skip
    log = jobs.log(job)
    configs = [json.loads(line.removeprefix("CONFIG ")) for line in log if line.startswith("CONFIG ")]
    tasks = sorted((config["task"]["type"], config["task"]["index"]) for config in configs)
    assert tasks == [("chief", 0), ("evaluator", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    assert {name: len(at) for name, at in configs[0]["cluster"].items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert f"DIRS {job.row.job_dir.rstrip('/')}/checkpoints/" in log
