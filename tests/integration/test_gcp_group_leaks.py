"""A job with `recover: fleet` on Compute Engine ends once and leaves nothing of its group, whatever happens to its
supervisor and its API calls. test_gcp_leaks.py tests launches without a group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.integration.test_gcp_leaks import IMPORTS, SWEEPS, GcpAgents
from cloudgpu.tests.standins.faults import KILL_AFTER, LOSE, Fault
from cloudgpu.tests.standins.gcp import SUBMITTER
from cloudgpu.tests.standins.gcp.jobs import BUCKET, GcpJobs, gcp_jobs, tags_of
from cloudgpu.tests.standins.gcp.stacks import NETWORK, REGION, create_stack
from cloudgpu.tests.standins.leaks import CANCELS_IN_THE_LONG_RUN, KILLS, Leaks, Scene, stage
from cloudgpu.tests.standins.long_mode import LONG

pytestmark = pytest.mark.timeout(3_600)

TYPE = "a2-highgpu-1g"
"""A placement policy puts several machines of this type close together."""
NODES = 2
SCENE = Scene(
    "gcp",
    f"""
name: leaks
resources: {{cloud: gcp, machine_type: {TYPE}, accelerator: A100-40GB, region: {REGION}, market: spot, nodes: {NODES}}}
job_dir: gs://{BUCKET}/jobs
recover: fleet
run: sleep 0.2
launcher: none
""",
    {"caller": SUBMITTER, "service": "compute"},
    "!*.list|*.get|*.aggregatedList|*.getFromFamily|*.listErrors",
)
OF_A_GROUP = ("resourcePolicies", "instanceTemplates", "regionInstanceGroupManagers", "firewalls")
CHANGES = {f"{kind}.{verb}" for kind in OF_A_GROUP for verb in ("insert", "delete")}


class GroupAgents(GcpAgents):
    def nodes(self) -> Iterator[tuple[str, int, str]]:
        """Assign a node to each machine of a group, in any order, once the group has all its machines."""
        running: dict[tuple[str, int], int] = {}
        for one in self._jobs.control.instances(running=True):
            known = tags_of(one)
            key = (known[tags.JOB], int(known[tags.ATTEMPT]))
            running[key] = running.get(key, 0) + 1
        for (job_id, attempt), number in running.items():
            if number == NODES:
                yield from ((job_id, attempt, f"worker-{index}.1") for index in range(NODES))


class GroupLeaks(Leaks[GcpJobs]):
    def submit(self) -> Job:
        """Submit a job after deleting the network's shared firewall rule, so that each job has to create it."""
        self.jobs.control.remove("firewalls", f"cloudgpu-closed-{NETWORK}")
        return super().submit()

    def check_machines(self, job: Job) -> None:
        """Check that the machines are those of one group, which created each of them once."""
        found = self.jobs.instances(job)
        assert all(one.gone is not None for one in found), self.jobs.diagnostics(job)
        assert len({one.name for one in found}) == len(found) <= NODES, self.jobs.diagnostics(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupLeaks]:
    with (
        stage(tmp_path_factory.mktemp("leaks"), "gcp", IMPORTS) as (folder, agents, zygote),
        gcp_jobs(folder, agents, boot=False) as jobs,
        GroupAgents(jobs),
    ):
        create_stack(jobs.control, jobs.parent)
        yield GroupLeaks(jobs, jobs.control, SCENE, zygote)


def test_undisturbed(leaks: GroupLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == CHANGES


@KILLS
@CANCELS_IN_THE_LONG_RUN
def test_killed_at_every_call(leaks: GroupLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


@pytest.mark.parametrize("sweep", SWEEPS if LONG else ["answer lost"])
def test_every_call_goes_wrong(leaks: GroupLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@pytest.mark.parametrize("fault", [LOSE, KILL_AFTER], ids=lambda fault: fault.kind)
@pytest.mark.parametrize("action", sorted(one for one in CHANGES if "Group" in one))
def test_a_group_in_a_project_that_is_slow(leaks: GroupLeaks, fault: Fault, action: str) -> None:
    """While an operation runs and lists do not show the group's machines yet, a retry gets the same group or deletes
    all of it."""
    leaks.jobs.control.set_times(operation=0.3, stopping=0.3, lag=0.5)
    try:
        job = leaks.submit()
        leaks.control.fail(action, fault, where=SCENE.calls, times=1)
        leaks.run(job)
        leaks.check_whole(job)
    finally:
        leaks.jobs.control.set_times(operation=0.02, stopping=0.0, lag=0.0)
