"""Leak tests of jobs on Azure: despite killed supervisors and failed calls, each job ends once and leaves no resource.

An undisturbed run records the calls. Then the stand-in kills the caller (SIGKILL) after each call of a launch and of a
teardown that changes something; then every answer is lost once, each call is throttled twice, and answered with server
errors; operations are slow, lists stale, new principals unknown. All tests run with separate machines and with a scale
set (`recover: fleet`). Machines, disks, interfaces, addresses, networks, identities, role assignments and groups count
as resources.

With CLOUDGPU_LONG=1 (see tests/standins/leaks.py) the caller is killed before and after every call, also those that
only read, and each fault also hits one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import Beat, End, Freed, Holding, member_key, order_key
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.azure import SUBMITTER
from cloudgpu.tests.standins.azure.capacity import HOW
from cloudgpu.tests.standins.azure.jobs import CONTAINER, AzureJobs, azure_jobs
from cloudgpu.tests.standins.azure.stacks import create_stack
from cloudgpu.tests.standins.azurite import ACCOUNT
from cloudgpu.tests.standins.faults import KILL_AFTER, LOSE, Fault, error
from cloudgpu.tests.standins.leaks import CANCELS_IN_THE_LONG_RUN, KILLS, Agents, Leaks, Scene, stage, sweeps
from cloudgpu.tests.standins.long_mode import in_long_mode

pytestmark = pytest.mark.timeout(3_600)

TYPE = "Standard_NC4as_T4_v3"
NODES = 2
FIRST, SECOND = "eastus", "westeurope"
SCENE = Scene(
    "azure",
    f"""
name: leaks
resources: {{cloud: azure, machine_type: {TYPE}, region: [{FIRST}, {SECOND}], market: spot, nodes: {NODES}}}
job_dir: az://{CONTAINER}@{ACCOUNT}/jobs
run: sleep 0.2
launcher: none
""",
    {"caller": SUBMITTER},
    "!*.list|*.read|*.usages|*.instanceView|*.versions",
)
CHANGES = {
    "resourceGroups.write",
    "userAssignedIdentities.write",
    "roleAssignments.write",
    "tags.update",
    "applicationSecurityGroups.write",
    "networkSecurityGroups.write",
    "virtualNetworks.write",
    "publicIPAddresses.write",
    "networkInterfaces.write",
    "virtualMachines.write",
    "roleAssignments.delete",
    "resourceGroups.delete",
}
SCALE_SET = replace(SCENE, job=f"recover: fleet\n{SCENE.job}")
CHANGES_OF_SCALE_SETS = {
    "resourceGroups.write",
    "roleAssignments.write",
    "applicationSecurityGroups.write",
    "networkSecurityGroups.write",
    "proximityPlacementGroups.write",
    "virtualMachineScaleSets.write",
    "resourceGroups.delete",
}
IMPORTS = (
    "azure.identity",
    "azure.mgmt.authorization.v2022_04_01",
    "azure.mgmt.compute",
    "azure.mgmt.msi.v2024_11_30",
    "azure.mgmt.network",
    "azure.mgmt.resource.resources",
    "cloudgpu.provisioners.stacks.fleet_queries",
    "msal_extensions",
    "obstore",
)
"""Modules that are imported once, before the supervisors are forked."""


class AzureAgents(Agents):
    def __init__(self, jobs: AzureJobs) -> None:
        super().__init__(jobs.parent)
        self._jobs = jobs

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        for one in self._jobs.control.instances(running=True):
            yield one.tags[tags.JOB], int(one.tags[tags.ATTEMPT]), one.tags[tags.NODE]


class Members(AzureAgents):
    """Fake machines of scale sets: each claims a node of its job's order and writes its result at once."""

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        """Yield machines as `TOKEN/NAME` instead of nodes."""
        for one in self._jobs.control.instances(running=True):
            yield one.tags[tags.JOB], int(one.tags[tags.ATTEMPT]), f"{one.tags[tags.TOKEN]}/{one.name}"

    def _write(self, one: tuple[str, int, str]) -> None:
        job_id, attempt, (token, _, machine) = one[0], one[1], one[2].partition("/")
        fleet = Fleet(f"{self._parent}/{job_id}/fleets/{token[:16]}")
        fleet.mark(member_key(machine), Beat(time.time()))
        found = fleet.view().wanted(machine)
        if found is not None and self._claim(fleet, found[0].number, found[1].following, machine):
            super()._write((job_id, attempt, found[1].following))
            freed = Freed("succeeded", "", time.time())
            fleet.create(order_key(found[0].number, f"freed/{found[1].following}"), freed)
            self._done.add(one)
        order = fleet.view().of_token(token)
        if order is not None and order.is_over:
            fleet.create(order_key(order.number, "end.json"), End("its nodes have ended", machine, time.time()))

    def _claim(self, fleet: Fleet, number: int, node: str, machine: str) -> bool:
        return fleet.create(order_key(number, f"claims/{node}"), Holding(machine, machine, time.time()))


class AzureLeaks(Leaks[AzureJobs]):
    @property
    def is_grouped(self) -> bool:
        return "recover: fleet" in self.scene.job

    def check_machines(self, job: Job) -> None:
        """Check that no rank had two machines at a time, and that each node had one machine.

        A refused attempt may start a node twice: if its supervisor is killed during cleanup, the next one may repeat
        the launch. A scale set must never have more machines at a time than requested.
        """
        found = self.jobs.instances(job)
        assert all(one.gone is not None for one in found), self.jobs.diagnostics(job)
        if self.is_grouped:
            for one in found:
                there = [other for other in found if other.launched <= one.launched < (other.gone or 0.0)]
                assert len(there) <= NODES, self.jobs.diagnostics(job)
            return
        refused = {str(attempt.number) for attempt in job.attempts() if attempt.outcome == "refused"}
        ranks: dict[str, float] = {}
        nodes: list[tuple[str, str]] = []
        for one in found:
            assert one.launched >= ranks.get(one.tags[tags.RANK], 0.0), self.jobs.diagnostics(job)
            ranks[one.tags[tags.RANK]] = one.gone or 0.0
            if one.tags[tags.ATTEMPT] not in refused:
                nodes.append((one.tags[tags.ATTEMPT], one.tags[tags.NODE]))
        assert len(nodes) == len(set(nodes)), self.jobs.diagnostics(job)


@pytest.fixture(scope="module", params=["machines", "scale set"])
def leaks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureLeaks]:
    grouped = request.param == "scale set"
    with (
        stage(tmp_path_factory.mktemp("leaks"), "azure", IMPORTS) as (folder, agents, zygote),
        azure_jobs(folder, agents, boot=False) as jobs,
        (Members if grouped else AzureAgents)(jobs),
    ):
        if grouped:
            for region in (SECOND, *(first for _, _, first in REFUSALS), FIRST):
                create_stack(jobs.control, region, jobs.parent)
            jobs.remains.ignore_existing()
        yield AzureLeaks(jobs, jobs.control, SCALE_SET if grouped else SCENE, zygote)


def test_undisturbed(leaks: AzureLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == (CHANGES_OF_SCALE_SETS if leaks.is_grouped else CHANGES)


@KILLS
@CANCELS_IN_THE_LONG_RUN
def test_killed_at_every_call(leaks: AzureLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


SWEEPS = sweeps(
    error("TooManyRequests", 429, "The request is being throttled.", **{"Retry-After": "1"}),
    error("InternalServerError", 500),
)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_call_goes_wrong(leaks: AzureLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@in_long_mode
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_call_goes_wrong(leaks: AzureLeaks, sweep: str) -> None:
    leaks.fail_one_call(SWEEPS[sweep])


REFUSALS: list[tuple[Fault, HOW, str]] = [
    (LOSE, "allocation", "eastus2"),
    (LOSE, "constraints", "swedencentral"),
    (LOSE, "sku", "northeurope"),
    (KILL_AFTER, "allocation", "centralus"),
    (KILL_AFTER, "constraints", "uksouth"),
    (KILL_AFTER, "sku", "southcentralus"),
]
"""Fault during the cleanup of a refused launch, kind of refusal, and region."""


@pytest.mark.parametrize("fault", [LOSE, KILL_AFTER], ids=lambda fault: fault.kind)
def test_machines_in_a_subscription_that_is_slow(leaks: AzureLeaks, fault: Fault) -> None:
    """A repeated launch adopts the machine whose operation still runs and whose group no list shows yet."""
    leaks.jobs.control.set_times(operation=0.3, group=0.5, lag=0.5, roles=0.5)
    try:
        job = leaks.submit()
        if leaks.is_grouped:
            leaks.control.fail("virtualMachineScaleSets.write", fault, where=SCENE.calls, times=1)
        else:
            leaks.control.fail("virtualMachines.write", fault, where=SCENE.calls, times=1, skip=1)
        leaks.run(job)
        leaks.check_whole(job)
    finally:
        leaks.jobs.control.set_times(operation=0.02, group=0.0, lag=0.0, roles=0.0)


@pytest.mark.parametrize(
    ("fault", "how", "first"), REFUSALS, ids=lambda one: one.kind if isinstance(one, Fault) else one
)
def test_a_refused_launch_leaves_nothing(leaks: AzureLeaks, fault: Fault, how: HOW, first: str) -> None:
    """Each zone has capacity for one machine of two; both the started and the unplaced one must be deleted.

    Each case uses a different region, because the supervisor remembers that a region was full.
    """
    for zone in ("1", "2", "3"):
        leaks.jobs.control.set_capacity(TYPE, first, zone, "spot", 1, how=how)
    usual = leaks.scene
    leaks.scene = replace(usual, job=usual.job.replace(FIRST, first))
    try:
        job = leaks.submit()
    finally:
        leaks.scene = usual
    deletion = "virtualMachineScaleSets.delete" if leaks.is_grouped else "virtualMachines.delete"
    leaks.control.fail(deletion, fault, where=SCENE.calls)
    leaks.run(job)
    assert job.state == "succeeded", leaks.jobs.diagnostics(job)
    assert [call.fault for call in leaks.called(deletion) if call.fault] == [fault.kind]
    places = [one.region for one in leaks.jobs.instances(job)]
    assert places[-NODES:] == [SECOND] * NODES, leaks.jobs.diagnostics(job)
    assert places[0] == first, leaks.jobs.diagnostics(job)
