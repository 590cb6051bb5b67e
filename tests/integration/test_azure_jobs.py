"""Jobs on Azure from end to end, over the wire: `cloudgpu submit`, a supervisor, machines that really boot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.control.jobs import ensure_supervisor
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.azure.capacity import HOW
from cloudgpu.tests.standins.azure.jobs import AzureJobs, agents, jobs
from cloudgpu.tests.standins.cloud_jobs import after, console_of, counting, counting_together, total
from cloudgpu.tests.standins.local_jobs import stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(900)

TYPE = "Standard_NC4as_T4_v3"
SPOT = f"resources: {{cloud: azure, machine_type: {TYPE}, region: eastus, market: spot}}\n"
ON_DEMAND = SPOT.replace("spot", "on-demand")
OFTEN = "checkpoint: {every: 1s, keep: 2}\n"
RARELY = "checkpoint: {every: 1h, keep: 2}\n"


def begins(log: list[str]) -> list[str]:
    return [line for line in log if "begins at" in line]


def check_resumed(jobs: AzureJobs, log: list[str], story: str, *, steps: int) -> None:
    """It began twice, the second time not at the beginning, and counted right."""
    assert len(begins(log)) == 2 and "begins at 0 " not in begins(log)[1], story
    assert total(steps) in log, story


def test_a_job_runs_on_a_machine_and_leaves_nothing(jobs: AzureJobs) -> None:
    job = jobs.submit(counting(5), text=SPOT)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
    (machine,) = jobs.instances(job)
    assert (machine.market, machine.size, machine.region) == ("spot", TYPE, "eastus")
    assert machine.external and machine.open == []


def test_no_capacity_then_an_eviction_then_resumed_elsewhere(jobs: AzureJobs) -> None:
    """Each zone that has none says so in another way; then the other region has it; then the notice, and on in another
    of its zones. Each attempt begins with another zone."""
    ways: dict[str, HOW] = {"1": "allocation", "2": "constraints", "3": "sku"}
    for zone, how in ways.items():
        jobs.control.set_capacity(TYPE, "eastus", zone, "spot", 0, how=how)
    job = jobs.submit(counting(60, lingers=True), text=SPOT.replace("eastus", "[eastus, westeurope]") + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    assert (machine.region, machine.market) == ("westeurope", "spot")
    asked = [(call.region, call.zone) for call in jobs.control.calls("virtualMachines.write")]
    assert asked[:4] == [("eastus", "1"), ("eastus", "2"), ("eastus", "3"), ("westeurope", "2")], jobs.diagnostics(job)
    jobs.wait_for(lambda: jobs.is_saved(job), job)

    jobs.control.set_capacity(TYPE, "westeurope", "2", "spot", 0)
    jobs.control.evict(machine.name, 60.0)
    jobs.finish(job)

    outcomes = [attempt.outcome for attempt in job.attempts() if attempt.outcome != "refused"]
    assert outcomes == ["preempted", "succeeded"], jobs.diagnostics(job)
    assert [one.zone for one in jobs.instances(job)] == ["2", "3"], jobs.diagnostics(job)
    check_resumed(jobs, jobs.log(job), jobs.diagnostics(job), steps=60)


@in_long_mode
def test_a_reboot_is_let_begin_once_all_is_saved_and_survived_in_place(jobs: AzureJobs) -> None:
    """Announced a quarter of an hour ahead, which nobody waits for."""
    job = jobs.submit(counting(60, lingers=True), text=ON_DEMAND + RARELY)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: begins(jobs.log(job)), job)
    assert not jobs.is_saved(job)
    assert console_of(job).splitlines()[-1] in jobs.instances(job)[0].console, jobs.diagnostics(job)
    jobs.control.maintain(machine.name, "Reboot", 900.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    (machine,) = jobs.instances(job)
    assert len(machine.events) == 1, jobs.diagnostics(job)
    check_resumed(jobs, jobs.log(job), jobs.diagnostics(job), steps=60)


@in_long_mode
def test_a_freeze_does_not_stop_a_job(jobs: AzureJobs) -> None:
    job = jobs.submit(counting(60), text=ON_DEMAND + RARELY)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: begins(jobs.log(job)), job)
    jobs.control.maintain(machine.name, "Freeze", 3.0)
    jobs.finish(job)
    assert len(begins(jobs.log(job))) == 1, jobs.diagnostics(job)
    assert total(60) in jobs.log(job)


@in_long_mode
def test_a_host_that_fails_is_replaced_by_azure(jobs: AzureJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=ON_DEMAND + OFTEN)
    machine = jobs.wait_for(lambda: jobs.instances(job, running=True), job)[0]
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    jobs.control.crash(machine.name)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    assert len(jobs.instances(job)) == 1
    check_resumed(jobs, jobs.log(job), jobs.diagnostics(job), steps=60)


@in_long_mode
def test_a_machine_that_somebody_deletes_is_replaced(jobs: AzureJobs) -> None:
    job = jobs.submit(counting(60, lingers=True), text=ON_DEMAND + OFTEN)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    machine = jobs.instances(job)[0]
    jobs.remains.delete(machine.group, machine.name)
    jobs.finish(job)
    assert [attempt.outcome for attempt in job.attempts()] == ["lost", "succeeded"], jobs.diagnostics(job)
    assert "begins at 0 " not in begins(jobs.log(job))[-1]
    assert total(60) in jobs.log(job)


def test_the_submitters_computer_may_be_off_meanwhile(jobs: AzureJobs, tmp_path: Path) -> None:
    """The machine has itself deallocated, for one that is only off is paid for. Its disk waits for the supervisor."""
    job = jobs.submit(after(tmp_path / "off", counting(30)), text=SPOT + OFTEN)
    jobs.wait_for(lambda: job.refresh().state == "running", job)
    stop_supervisor()
    (tmp_path / "off").touch()
    jobs.wait_for(lambda: not jobs.instances(job, running=True), job)
    jobs.wait_for(lambda: jobs.instances(job)[0].status == "deallocated", job)
    assert [one.reason for one in jobs.instances(job)] == ["deallocate"], jobs.diagnostics(job)

    command = [sys.executable, "-m", "cloudgpu", "logs", job.row.job_dir]
    elsewhere = {**os.environ, "CLOUDGPU_HOME": str(tmp_path / "elsewhere")}
    done = subprocess.run(command, env=elsewhere, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert total(30) in done.stdout

    ensure_supervisor()
    jobs.finish(job)


@in_long_mode
def test_only_the_evicted_machine_of_two_is_replaced(jobs: AzureJobs) -> None:
    two = SPOT.replace("{", "{nodes: 2, ", 1) + OFTEN + "launcher: torchrun\n"
    job = jobs.submit(counting_together(60, lingers=True), python=sys.executable, text=two)
    jobs.wait_for(lambda: jobs.is_saved(job), job)
    lost = next(one for one in jobs.instances(job) if one.tags[tags.NODE] == "worker-1.1")
    jobs.control.evict(lost.name, 60.0)
    jobs.finish(job)

    assert [attempt.outcome for attempt in job.attempts()] == ["succeeded"], jobs.diagnostics(job)
    nodes = [one.tags[tags.NODE] for one in jobs.instances(job)]
    assert nodes == ["worker-0.1", "worker-1.1", "worker-1.2"], jobs.diagnostics(job)
    log = jobs.log(job)
    assert {"worker-0.1 begins at 0", "worker-1.1 begins at 0"} <= set(log)
    again = [line for line in begins(log) if not line.endswith(" 0")]
    assert {line.split()[0] for line in again} == {"worker-0.1", "worker-1.2"}
    assert {f"worker-0.1 has {2 * sum(range(60))}", f"worker-1.2 has {2 * sum(range(60))}"} <= set(log)


def test_a_machine_that_azure_gave_up_on_and_runs_goes_on(jobs: AzureJobs) -> None:
    """Its system has not reported in time: its agent has the last word, and the job ends well."""
    machines = "Microsoft.Compute/virtualMachines"
    jobs.control.fail_operation(machines, "provision", "OSProvisioningTimedOut", "It did not report.")
    job = jobs.submit(counting(5), text=SPOT)
    jobs.finish(job)
    assert total(5) in jobs.log(job)
