"""A job on Compute Engine ends once and leaves nothing, whatever happens to its supervisor and its API calls.

An undisturbed run records the mutating calls of a launch and of a teardown. Then the stand-in kills the caller with
SIGKILL after each of these calls, loses every answer once, throttles each call twice, and answers with server errors.
Operations are slow, and lists lag.

With CLOUDGPU_LONG=1 (see tests/standins/leaks.py), kills fall before and after every call, including reads, and each
fault also hits one call at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.faults import KILL_AFTER, LOSE, Fault, error
from cloudgpu.tests.standins.gcp import SUBMITTER
from cloudgpu.tests.standins.gcp.jobs import BUCKET, GcpJobs, gcp_jobs, tags_of
from cloudgpu.tests.standins.leaks import CANCELS_IN_THE_LONG_RUN, KILLS, Agents, Leaks, Scene, stage, sweeps
from cloudgpu.tests.standins.long_mode import in_long_mode

pytestmark = pytest.mark.timeout(3_600)

TYPE = "n1-standard-4"
NODES = 2
SCENE = Scene(
    "gcp",
    f"""
name: leaks
resources: {{cloud: gcp, machine_type: {TYPE}, accelerator: T4, region: us-central1, market: spot, nodes: {NODES}}}
job_dir: gs://{BUCKET}/jobs
run: sleep 0.2
launcher: none
""",
    {"caller": SUBMITTER, "service": "compute"},
    "!*.list|*.get|*.aggregatedList|*.getFromFamily|*.wait",
)
CHANGES = {"firewalls.insert", "instances.insert", "instances.delete", "firewalls.delete"}
IMPORTS = ("google.cloud.compute_v1", "google.auth.transport.requests", "google.oauth2.credentials", "obstore")
"""Modules that each supervisor inherits, already imported, from the process it is forked from."""


class GcpAgents(Agents):
    def __init__(self, jobs: GcpJobs) -> None:
        super().__init__(jobs.parent)
        self._jobs = jobs

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        for one in self._jobs.control.instances(running=True):
            known = tags_of(one)
            yield known[tags.JOB], int(known[tags.ATTEMPT]), known[tags.NODE]


class GcpLeaks(Leaks[GcpJobs]):
    def submit(self) -> Job:
        """Submit a job after deleting the network's shared firewall rule, so that each job has to create it."""
        self.jobs.control.remove("firewalls", "cloudgpu-closed-default")
        return super().submit()

    def check_machines(self, job: Job) -> None:
        """Check that machines of one rank do not overlap in time, and that an attempt launches each node once. Attempts
        that ended `refused` are exempt: a supervisor that was killed while undoing the launch launches again."""
        undone = {str(attempt.number) for attempt in job.attempts() if attempt.outcome == "refused"}
        ranks: dict[str, float] = {}
        nodes: list[tuple[str, str]] = []
        for one in self.jobs.instances(job):
            known = tags_of(one)
            assert one.gone is not None, self.jobs.diagnostics(job)
            assert one.launched >= ranks.get(known[tags.RANK], 0.0), self.jobs.diagnostics(job)
            ranks[known[tags.RANK]] = one.gone
            if known[tags.ATTEMPT] not in undone:
                nodes.append((known[tags.ATTEMPT], known[tags.NODE]))
        assert len(nodes) == len(set(nodes)), self.jobs.diagnostics(job)


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpLeaks]:
    with (
        stage(tmp_path_factory.mktemp("leaks"), "gcp", IMPORTS) as (folder, agents, zygote),
        gcp_jobs(folder, agents, boot=False) as jobs,
        GcpAgents(jobs),
    ):
        yield GcpLeaks(jobs, jobs.control, SCENE, zygote)


def test_undisturbed(leaks: GcpLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == CHANGES


@KILLS
@CANCELS_IN_THE_LONG_RUN
def test_killed_at_every_call(leaks: GcpLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


SWEEPS = sweeps(error("rateLimitExceeded", 403, "Rate Limit Exceeded"), error("backendError", 503))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_call_goes_wrong(leaks: GcpLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@in_long_mode
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_call_goes_wrong(leaks: GcpLeaks, sweep: str) -> None:
    leaks.fail_one_call(SWEEPS[sweep])


@pytest.mark.parametrize("fault", [LOSE, KILL_AFTER], ids=lambda fault: fault.kind)
def test_insertions_in_a_project_that_is_slow(leaks: GcpLeaks, fault: Fault) -> None:
    """While an operation runs and lists do not show its instance yet, a retry gets the same instance."""
    leaks.jobs.control.set_times(operation=0.3, stopping=0.3, lag=0.5)
    try:
        job = leaks.submit()
        leaks.control.fail("instances.insert", fault, where=SCENE.calls, times=1, skip=1)
        leaks.run(job)
        leaks.check_whole(job)
    finally:
        leaks.jobs.control.set_times(operation=0.02, stopping=0.0, lag=0.0)


@pytest.mark.parametrize(
    ("fault", "machine_type"), [(LOSE, "n1-standard-8"), (KILL_AFTER, "n1-standard-16")], ids=["lose", "kill-after"]
)
def test_a_refused_launch_leaves_nothing(leaks: GcpLeaks, fault: Fault, machine_type: str) -> None:
    """A zone has capacity for one of two machines: the one that started is deleted, even if that call's answer is lost
    or the supervisor is killed.

    Full zones are remembered by machine type, so each case uses another type.
    """
    tight = ("us-central1-a", "us-central1-b", "us-central1-c")
    for zone in tight:
        leaks.jobs.control.set_capacity(machine_type, zone, "spot", 1)
    leaks.scene = dataclasses.replace(SCENE, job=SCENE.job.replace(TYPE, machine_type))
    try:
        job = leaks.submit()
        leaks.control.fail("instances.delete", fault, where=SCENE.calls)
        leaks.run(job)
        assert job.state == "succeeded", leaks.jobs.diagnostics(job)
        assert [call.fault for call in leaks.called("instances.delete") if call.fault] == [fault.kind]
        zones = [one.zone for one in leaks.jobs.instances(job)]
        assert zones[-NODES:] == ["us-central1-f"] * NODES, leaks.jobs.diagnostics(job)
        assert zones[0] in tight, leaks.jobs.diagnostics(job)
    finally:
        leaks.scene = SCENE
