"""Jobs on Compute Engine of the Google Cloud stand-in; see cloud_jobs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.gcp.labels import from_labels
from cloudgpu.provisioners.shared import tags

from ..cloud_jobs import CloudJobs, agents, use_state_directory
from ..gce.control import GceControl
from ..gce.machines import InstanceState
from ..gcs.control import GcsControl
from .control import environ as gcp_environ
from .process import Leftovers, gcp_process

__all__ = ["BUCKET", "GcpJobs", "agents", "gcp_jobs", "jobs", "tags_of"]

BUCKET = "jobs-of-tests"


class GcpJobs(CloudJobs[InstanceState, Leftovers]):
    """Jobs in one project and one bucket."""

    cloud = "gcp"

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder, Leftovers(url, folder / "keys"), f"gs://{BUCKET}/jobs")
        self.control = GceControl(url)
        GcsControl(url).make_bucket(BUCKET)

    def instances(self, job: Job, **where: Any) -> list[InstanceState]:
        return [one for one in self.control.instances(**where) if tags_of(one).get(tags.JOB) == job.id]

    def headline(self, machine: InstanceState) -> str:
        return f"{machine.name} {machine.zone} {machine.status} {machine.reason} {machine.trouble}"


def tags_of(machine: InstanceState) -> dict[str, str]:
    """Return the tags that the labels encode."""
    return from_labels(machine.labels)


@contextlib.contextmanager
def gcp_jobs(folder: Path, agents: Path, *, boot: bool = True) -> Iterator[GcpJobs]:
    """Run jobs on a stand-in; all processes are ended on exit. `agents`: folder where agent files are kept from test to
    test."""
    with gcp_process(boot=boot) as control:
        jobs = GcpJobs(control.url, folder)
        with use_state_directory(jobs, agents, gcp_environ(control.url, folder / "keys")):
            yield jobs


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[GcpJobs]:
    with gcp_jobs(tmp_path, agents) as made:
        yield made
