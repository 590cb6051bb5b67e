"""A job on Vertex AI ends once and leaves nothing, whatever happens to its supervisor and its API calls.

An undisturbed run records the mutating calls of a launch and of a teardown. Then the stand-in kills the caller with
SIGKILL after each of these calls, loses every answer once, throttles each call twice, and answers with server errors.
CreateCustomJob takes no request id, so lists that lag are tested as well.

With CLOUDGPU_LONG=1 (see tests/standins/leaks.py), kills fall before and after every call, including reads, and each
fault also hits one call at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.shared import tags
from cloudgpu.provisioners.vertex.worker_pools import from_labels as nodes_of
from cloudgpu.tests.standins.faults import KILL_AFTER, LOSE, Fault, error
from cloudgpu.tests.standins.gcp import SUBMITTER
from cloudgpu.tests.standins.leaks import (
    CANCELS_IN_THE_LONG_RUN,
    END_S,
    KILLS,
    Agents,
    Leaks,
    Scene,
    stage,
    sweeps,
)
from cloudgpu.tests.standins.long_mode import LONG, in_long_mode
from cloudgpu.tests.standins.vertex.service import JOBS
from cloudgpu.tests.standins.vertex.user_jobs import BUCKET, TYPE, VertexJobs, tags_of, vertex_jobs

pytestmark = pytest.mark.timeout(3_600)

NODES = 2
CREATE, CANCEL = f"{JOBS}.create", f"{JOBS}.cancel"
SCENE = Scene(
    "vertex",
    f"""
name: leaks
resources: {{cloud: vertex, machine_type: {TYPE}, accelerator: T4, region: us-central1, market: spot, nodes: {NODES}}}
job_dir: gs://{BUCKET}/jobs
run: sleep 0.2
launcher: none
""",
    {"caller": SUBMITTER, "service": "aiplatform"},
    "!*.list|*.get",
)
IMPORTS = ("google.cloud.aiplatform_v1", "google.oauth2.credentials", "obstore")
"""Modules that each supervisor inherits, already imported, from the process it is forked from."""


class VertexAgents(Agents):
    def __init__(self, jobs: VertexJobs) -> None:
        super().__init__(f"gs://{BUCKET}/jobs")
        self._jobs = jobs
        self.busy = False
        """If true, programs do not end."""

    def nodes(self) -> Iterator[tuple[str, int, str]]:
        for one in [] if self.busy else self._jobs.vertex.jobs(state="RUNNING"):
            known = tags_of(one)
            for node in nodes_of(one.labels):
                yield known[tags.JOB], int(known[tags.ATTEMPT]), node


class VertexLeaks(Leaks[VertexJobs]):
    agents: VertexAgents
    twins = False
    """Return True if a second custom job may have been created and ended."""

    def check_machines(self, job: Job) -> None:
        found = self.jobs.custom_jobs(job)
        assert all(one.ended is not None for one in found), self.jobs.diagnostics(job)
        assert len(found) == 1 or self.twins or job.state == "cancelled", self.jobs.diagnostics(job)
        assert all(one.replicas == NODES for one in found)

    def check_whole(self, job: Job) -> None:
        """Check only that the job succeeded: the service itself starts all containers of a custom job."""
        assert job.state == "succeeded", self.jobs.diagnostics(job)


@contextlib.contextmanager
def leaking(folder: Path, transport: str) -> Iterator[VertexLeaks]:
    with (
        stage(folder, "vertex", IMPORTS) as (_, agents, zygote),
        vertex_jobs(folder, agents, boot=False, transport=transport) as jobs,
        VertexAgents(jobs) as writers,
    ):
        made = VertexLeaks(jobs, jobs.control, SCENE, zygote)
        made.agents = writers
        yield made


@pytest.fixture(scope="module", params=["rest", "grpc"])
def leaks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexLeaks]:
    with leaking(tmp_path_factory.mktemp("leaks"), request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def calm(leaks: VertexLeaks) -> Iterator[None]:
    yield
    leaks.twins = leaks.agents.busy = False
    leaks.jobs.vertex.set_lag(0.0)


def test_undisturbed(leaks: VertexLeaks) -> None:
    leaks.undisturbed()
    assert leaks.changes == {CREATE, CANCEL}


@KILLS
@CANCELS_IN_THE_LONG_RUN
def test_killed_at_every_call(leaks: VertexLeaks, fault: Fault, cancel: bool) -> None:
    leaks.kill_at_every_call(fault, cancel=cancel)


SWEEPS = sweeps(error("RATE_LIMIT_EXCEEDED", 429, "Quota exceeded for quota metric 'Requests'"), error("INTERNAL", 500))


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_call_goes_wrong(leaks: VertexLeaks, sweep: str) -> None:
    leaks.fail_every_call(SWEEPS[sweep])


@in_long_mode
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_call_goes_wrong(leaks: VertexLeaks, sweep: str) -> None:
    leaks.fail_one_call(SWEEPS[sweep])


def test_a_job_whose_answer_was_lost_is_found_in_a_list_that_is_late(leaks: VertexLeaks) -> None:
    leaks.jobs.vertex.set_lag(5.0 if LONG else 0.15)  # less than the supervisor searches for the job, by its clock
    job = leaks.submit()
    leaks.control.fail(CREATE, LOSE, where=SCENE.calls)
    leaks.run(job)
    assert job.state == "succeeded"
    assert len(leaks.called(CREATE)) == 1


@pytest.mark.parametrize("fault", [LOSE, KILL_AFTER], ids=lambda fault: fault.kind)
def test_one_of_two_jobs_is_ended(leaks: VertexLeaks, fault: Fault) -> None:
    """Lists show the first one too late, so a second one is created: the older one continues."""
    leaks.twins = leaks.agents.busy = True
    leaks.jobs.vertex.set_lag(1_000.0)
    job = leaks.submit()
    leaks.control.fail(CREATE, fault, where=SCENE.calls)
    showing = threading.Thread(target=show_late, args=(leaks, job))
    showing.start()
    leaks.run(job)
    showing.join()
    assert job.state == "succeeded", leaks.jobs.diagnostics(job)
    assert len(leaks.called(CREATE)) == 2
    assert len(job.attempts()) == 1, leaks.jobs.diagnostics(job)
    older, newer = leaks.jobs.custom_jobs(job)
    assert older.ended is not None and newer.ended is not None
    assert older.ended > newer.ended, leaks.jobs.diagnostics(job)


def show_late(leaks: VertexLeaks, job: Job) -> None:
    """Let lists show both jobs once both exist, and let programs end once one of the jobs has."""
    end = time.monotonic() + END_S / 2
    while len(leaks.jobs.custom_jobs(job)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    leaks.jobs.vertex.set_lag(0.0)
    while all(one.alive for one in leaks.jobs.custom_jobs(job)) and time.monotonic() < end:
        time.sleep(0.05)
    leaks.agents.busy = False
