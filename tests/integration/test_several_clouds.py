"""One job file for three clouds, each with its own store, from end to end: what one has not, or takes away, is had in
another, and the job goes on from its checkpoint. Whoever looks at it need not know where it has been."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.cli.shared.job.job_view import node_views
from cloudgpu.control.jobs import Job
from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.tests.standins.cloud_jobs import agents, counting, total
from cloudgpu.tests.standins.long_mode import in_long_mode
from cloudgpu.tests.standins.several_clouds import SeveralClouds, several_clouds

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(900)

ANYWHERE = (
    "resources: {cloud: [aws, gcp, azure], accelerator: T4, market: spot, region: [us-east-1, us-central1, eastus]}\n"
    "checkpoint: {every: 1s, keep: 2}\n"
)
GOOGLES = "n1-standard-4"
AMAZONS = "g4dn.xlarge"
SPOT_QUOTA = "L-3819A6DF"
STEPS = 60


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[SeveralClouds]:
    with several_clouds(tmp_path, agents) as made:
        yield made


def logging(steps: int) -> str:
    """The program that counts, and logs each step."""
    return counting(steps, lingers=True).replace("total.value += step\n", "total.value += step; ckpt.log(done=step)\n")


def dry_at_google(jobs: SeveralClouds) -> None:
    for letter in "abcf":
        jobs.gcp.control.set_capacity(GOOGLES, f"us-central1-{letter}", "spot", 0)


def dry_at_amazon(jobs: SeveralClouds) -> None:
    for zone in jobs.aws.zones.values():
        jobs.aws.control.set_capacity(AMAZONS, zone, "spot", 0)


def cli(*arguments: str) -> tuple[str, str]:
    """What it prints: to stdout, to stderr."""
    command = [sys.executable, "-m", "cloudgpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def told(job: Job, kind: str) -> list[str]:
    return [event.message for event in job.events() if event.kind == kind]


@in_long_mode
def test_what_is_dry_or_not_allowed_elsewhere_is_had_in_the_third_cloud(jobs: SeveralClouds) -> None:
    dry_at_google(jobs)
    jobs.aws.control.set_quota("us-east-1", SPOT_QUOTA, 0)
    data = {cloud: f"{one.parent.rpartition('/')[0]}/data" for cloud, one in jobs.all.items()}
    for cloud, url in data.items():
        JobDir(url).put("name", f"data of {cloud}".encode())
    inputs = f"inputs: {{data: {json.dumps(data)}}}\n"
    job = jobs.submit(f'print(open("data/name").read())\n{counting(5)}', text=ANYWHERE + inputs)
    assert job.offer.cloud == "gcp", "the cheapest by the tables"
    jobs.finish(job)
    *refused, last = job.attempts()
    asked = {(one.offer.cloud, one.outcome, one.cause) for one in refused}
    assert asked == {("gcp", "refused", "capacity"), ("aws", "refused", "quota")}, jobs.diagnostics(job)
    assert [len(one.instances(job)) for one in (jobs.aws, jobs.gcp, jobs.azure)] == [0, 0, 1]
    assert job.job_dir == f"{jobs.azure.parent}/{job.id}" != job.row.job_dir == f"{jobs.gcp.parent}/{job.id}"

    assert "data of azure" in jobs.log(job)
    assert total(5) in cli("logs", job.id)[0] and total(5) in cli("logs", job.job_dir)[0]
    status = json.loads(cli("status", job.id, "--json")[0])
    assert (status["state"], status["job_dir"]) == ("succeeded", job.job_dir)
    assert status["attempts"][-1]["job_dir"] == job.job_dir
    cost = json.loads(cli("cost", job.id, "--json")[0])
    assert len(cost["attempts"]) == len(refused) + 1
    assert [one["cost_usd"] for one in cost["attempts"][:-1]] == ["0"] * len(refused) and last.launched is not None
    assert json.loads(cli("gc", "--json")[0])["leftovers"] == []

    (folder,) = jobs.folder.glob("code-*")
    nowhere = ["--set", "job_dir.azure=az://nowhere@jobsoftests/jobs"]
    command = [sys.executable, "-m", "cloudgpu", "submit", "--detach", "--yes", "job.yaml", *nowhere]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "there is no container of this name" in done.stderr
    assert list(JobDir(jobs.gcp.parent).folders("")) == [job.id, "shared"], "nothing was written for it"


def test_what_one_cloud_takes_away_goes_on_in_another_from_its_checkpoint(jobs: SeveralClouds) -> None:
    job = jobs.submit(logging(STEPS), text=ANYWHERE)
    machine = jobs.wait_for(lambda: jobs.gcp.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    dry_at_google(jobs)
    dry_at_amazon(jobs)
    jobs.gcp.control.preempt(machine.name, 60.0)
    jobs.wait_for(lambda: jobs.azure.instances(job, running=True), job)
    printed, remarked = cli("gc", "--yes")
    assert printed == "" and "nothing to do: no leftovers were found" in remarked, jobs.diagnostics(job)
    jobs.finish(job)

    first, second = (one for one in job.attempts() if one.outcome != "refused")
    assert [one.offer.cloud for one in (first, second)] == ["gcp", "azure"], jobs.diagnostics(job)
    assert [one.outcome for one in (first, second)] == ["preempted", "succeeded"], jobs.diagnostics(job)
    assert [node.phase for one in (first, second) for node in node_views(job, one)] == ["preempted", "succeeded"]
    assert first.progress is not None and first.progress.saved_step is not None
    log, saved = jobs.log(job), first.progress.saved_step
    begins = [line for line in log if "begins at" in line]
    again = f"attempt {second.number} begins at {saved} with {sum(range(saved))}"
    assert begins == ["attempt 1 begins at 0 with 0", again], jobs.diagnostics(job)
    assert total(STEPS) in log, jobs.diagnostics(job)
    left, here = f"{jobs.gcp.parent}/{job.id}", f"{jobs.azure.parent}/{job.id}"
    assert told(job, "moved")[-1].startswith(f"checkpoint of step {saved} copied from {left} to {here}, ")
    rows = [json.loads(line) for line in cli("metrics", job.id, "--json")[0].splitlines()]
    assert [row["values"]["done"] for row in rows] == list(range(STEPS)), "each step once"
    goodput = json.loads(cli("goodput", job.id, "--json")[0])
    assert (goodput["steps"], goodput["redone"]) == (STEPS, first.progress.step - saved)

    assert [name for name in JobDir(left).folders("attempts") if JobDir(left).list(f"attempts/{name}/nodes")] == [
        "0001"
    ]
    printed, remarked = cli("logs", left, "--follow")
    assert begins[0] in printed and again not in printed
    assert f"cloudgpu logs {here}" in remarked
