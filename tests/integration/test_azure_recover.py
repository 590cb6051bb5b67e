"""Jobs with `recover: fleet` on Azure from end to end, over the wire: `cloudgpu submit`, a supervisor that may be off,
machines of a scale set that really boot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job, ensure_supervisor
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.azure.jobs import AzureJobs, agents, azure_jobs
from cloudgpu.tests.standins.azure.machines import InstanceState
from cloudgpu.tests.standins.azure.stacks import create_stack
from cloudgpu.tests.standins.cloud_jobs import counting, counting_together, total
from cloudgpu.tests.standins.local_jobs import stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode
from cloudgpu.tests.standins.pulumi.azure import Cloud

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(900)

TYPE = "Standard_NC4as_T4_v3"
SETS = "Microsoft.Compute/virtualMachineScaleSets"
FLEET = f"""
recover: fleet
resources: {{cloud: azure, machine_type: {TYPE}, region: [eastus, westeurope], market: spot, nodes: 1}}
checkpoint: {{every: 1s, keep: 2}}
"""
TWO = FLEET.replace("nodes: 1", "nodes: 2") + "launcher: torchrun\n"
PATIENT_S = 400.0
"""A machine that was lost is missed after two minutes, by the store's clock."""


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AzureJobs]:
    with azure_jobs(tmp_path, agents) as made:
        for region in ("eastus", "westeurope"):
            create_stack(made.control, region, made.parent)
        made.remains.ignore_existing()
        yield made


def running(jobs: AzureJobs, job: Job) -> list[InstanceState]:
    return jobs.instances(job, running=True)


def capacity(jobs: AzureJobs) -> int:
    """Of the job's scale set, as Resource Manager tells it."""
    [made] = jobs.control.resources(SETS)
    return int((Cloud().get(made["id"], "2024-07-01") or {})["sku"]["capacity"])


def begins(log: list[str], node: str = "") -> list[str]:
    return [line for line in log if "begins at" in line and line.startswith(node)]


@in_long_mode
def test_a_lost_machine_of_two_is_replaced_while_nobody_is_there(jobs: AzureJobs) -> None:
    """The supervisor is stopped before, and started when all machines have left: one attempt, and nothing is left."""
    job = jobs.submit(counting_together(300, lingers=True), python=sys.executable, text=TWO)
    jobs.wait_for(lambda: jobs.is_saved(job), job, PATIENT_S)
    stop_supervisor()
    first = running(jobs, job)
    assert len(first) == 2 and capacity(jobs) == 2
    jobs.control.evict(first[0].name, 25.0)
    jobs.wait_for(lambda: len(jobs.instances(job)) == 3, job, PATIENT_S)
    jobs.wait_for(lambda: not running(jobs, job), job, PATIENT_S)
    jobs.wait_for(lambda: capacity(jobs) == 0, job)
    assert jobs.remains.find().get("virtualMachines", []) == []

    ensure_supervisor()
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    again = [line for line in begins(jobs.log(job)) if not line.endswith(" 0")]
    assert len(begins(jobs.log(job))) == 4 and len(again) == 2, jobs.diagnostics(job)
    expected = 2 * sum(range(300))
    assert len([line for line in jobs.log(job) if line.endswith(f" has {expected}")]) == 2, jobs.diagnostics(job)


def test_a_machine_that_does_not_answer_is_replaced_by_azure(jobs: AzureJobs) -> None:
    job = jobs.submit(counting(200, lingers=True), text=FLEET.replace("spot", "on-demand"))
    jobs.wait_for(lambda: jobs.is_saved(job), job, PATIENT_S)
    jobs.control.fail_health(running(jobs, job)[0].name)
    jobs.finish(job, limit_s=PATIENT_S)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    first, second = begins(jobs.log(job))
    assert " begins at 0 " in first and " begins at 0 " not in second, jobs.diagnostics(job)
    assert total(200) in jobs.log(job)
    assert len(jobs.instances(job)) == 2


def test_where_one_region_has_none_the_job_runs_in_the_other(jobs: AzureJobs) -> None:
    for zone in ("1", "2", "3"):
        jobs.control.set_capacity(TYPE, "eastus", zone, "spot", 0)
    job = jobs.submit(counting(5), text=FLEET)
    jobs.finish(job, limit_s=PATIENT_S)
    assert total(5) in jobs.log(job)
    [machine] = jobs.instances(job)
    assert (machine.region, machine.tags[tags.JOB]) == ("westeurope", job.id)
    assert [attempt.outcome for attempt in job.attempts()] == ["refused", "succeeded"], jobs.diagnostics(job)
