"""Jobs on the Vertex AI stand-in; see cloud_jobs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.gcp.labels import from_labels
from cloudgpu.provisioners.shared import tags

from ..cloud_jobs import PATIENT_S, CloudJobs, agents, use_state_directory
from ..gcp.control import GcpControl
from ..gcp.control import environ as gcp_environ
from ..gcp.process import gcp_process
from ..gcp.project import LOOKER, PROJECT
from ..gcp.service import ANY_SCOPE
from ..gcs.control import GcsControl
from .control import ENDED, ContainerState, JobState, VertexControl
from .service import GRPC_ENDPOINT

__all__ = ["BUCKET", "TYPE", "VertexJobs", "agents", "jobs", "tags_of", "vertex_jobs"]

BUCKET = "jobs-of-tests"
TYPE = "n1-standard-8"


class Remains:
    """Finder of running custom jobs, which are billed, through the API as a user would, with a separate account.
    `folder` is for that account's key."""

    def __init__(self, url: str, folder: Path) -> None:
        from google.cloud.aiplatform_v1 import JobServiceClient
        from google.oauth2.service_account import Credentials

        folder.mkdir(parents=True, exist_ok=True)
        key = str(GcpControl(url).key_file(LOOKER, folder / "looker.json"))
        credentials = Credentials.from_service_account_file(key, scopes=[ANY_SCOPE])  # type: ignore[no-untyped-call]
        self._client = JobServiceClient(transport="rest", credentials=credentials, client_options={"api_endpoint": url})
        self._control = VertexControl(GcpControl(url))

    def find(self) -> dict[str, list[str]]:
        """Return names of running jobs by region, for all regions that ever had a job; empty: nothing is billed."""
        live = " AND ".join(f'state!="JOB_STATE_{state}"' for state in ENDED)
        found: dict[str, list[str]] = {}
        for region in sorted({one.region for one in self._control.jobs()}):
            request: dict[str, Any] = {"parent": f"projects/{PROJECT}/locations/{region}", "filter": live}
            if names := [job.name for job in self._client.list_custom_jobs(request=request, timeout=180)]:
                found[region] = names
        return found


class VertexJobs(CloudJobs[ContainerState, Remains]):
    """Jobs in one project and one bucket."""

    cloud = "vertex"

    def __init__(self, control: GcpControl, folder: Path) -> None:
        super().__init__(folder, Remains(control.url, folder / "keys"), f"gs://{BUCKET}/jobs")
        self.control, self.vertex = control, VertexControl(control)
        GcsControl(control.url).make_bucket(BUCKET)

    def custom_jobs(self, job: Job, **where: Any) -> list[JobState]:
        """Return the custom jobs of a job, in order of creation."""
        return [one for one in self.vertex.jobs(**where) if tags_of(one).get(tags.JOB) == job.id]

    def instances(self, job: Job, **where: Any) -> list[ContainerState]:
        """Return the job's containers."""
        return [container for one in self.custom_jobs(job, **where) for container in one.containers]

    def running(self, job: Job) -> JobState | None:
        """Return the job's running custom job, or None."""
        found = self.custom_jobs(job, state="RUNNING")
        assert len(found) < 2, self.diagnostics(job)
        return found[0] if found else None

    def outcomes(self, job: Job) -> list[str | None]:
        """Return the outcomes of the job's attempts, except refused ones."""
        return [attempt.outcome for attempt in job.attempts() if attempt.outcome != "refused"]

    def headline(self, machine: ContainerState) -> str:
        logs = sorted(Path(machine.root, "tmp").glob("cloudgpu-*/agent.log"))
        agent = "".join(f"\n    agent: {line}" for log in logs for line in log.read_text().splitlines()[-20:])
        return f"{machine.replica} ended with {machine.code} {machine.trouble}{agent}"

    def finish(self, job: Job, state: str = "succeeded", limit_s: float = PATIENT_S) -> None:
        super().finish(job, state, limit_s)
        assert [one.trouble for one in self.custom_jobs(job) if one.trouble] == []

    def diagnostics(self, job: Job) -> str:
        jobs = [f"  {one.name} {one.state} {one.error} {one.trouble} {tags_of(one)}" for one in self.custom_jobs(job)]
        return "\n".join([super().diagnostics(job), *jobs])


def tags_of(job: JobState) -> dict[str, str]:
    """Return the tags that the labels encode."""
    return from_labels(job.labels)


def vertex_environ(url: str, folder: Path, transport: str = "rest") -> dict[str, str]:
    """Return the environment that points the target `vertex` to the stand-in, over one of its protocols."""
    found = gcp_environ(url, folder)
    address = found.pop(GRPC_ENDPOINT)
    found["CLOUDGPU_VERTEX_TRANSPORT"] = transport
    if transport == "grpc":
        found["CLOUDGPU_VERTEX_ENDPOINT"] = f"http://{address}"
    return found


@contextlib.contextmanager
def vertex_jobs(folder: Path, agents: Path, *, boot: bool = True, transport: str = "rest") -> Iterator[VertexJobs]:
    """Run jobs on a stand-in; all processes are ended on exit. `agents`: folder where agent files are kept from test to
    test."""
    with gcp_process(boot=boot) as control:
        jobs = VertexJobs(control, folder)
        with use_state_directory(jobs, agents, vertex_environ(control.url, folder / "keys", transport)):
            yield jobs


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[VertexJobs]:
    with vertex_jobs(tmp_path, agents) as made:
        yield made
