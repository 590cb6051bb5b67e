"""Jobs on the Azure stand-in; see cloud_jobs.py. Their job dirs are in Azurite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.provisioners.shared import tags

from .. import azurite
from ..azurite import ACCOUNT
from ..cloud_jobs import CloudJobs, agents, use_state_directory
from .control import AzureControl
from .control import environ as azure_environ
from .machines import InstanceState
from .process import Leftovers, azure_process

__all__ = ["CONTAINER", "AzureJobs", "agents", "azure_jobs", "jobs"]

CONTAINER = "jobs-of-tests"


class AzureJobs(CloudJobs[InstanceState, Leftovers]):
    """Jobs in one subscription and one container."""

    cloud = "azure"

    def __init__(self, control: AzureControl, folder: Path) -> None:
        super().__init__(folder, Leftovers(control.url), f"az://{CONTAINER}@{ACCOUNT}/jobs")
        self.control = control

    def instances(self, job: Job, **where: Any) -> list[InstanceState]:
        """Return the job's machines that were allocated."""
        found = [one for one in self.control.instances(**where) if one.tags.get(tags.JOB) == job.id]
        return [one for one in found if one.status not in ("creating", "failed") and one.ran]

    def headline(self, machine: InstanceState) -> str:
        place = f"{machine.region} {machine.zone}"
        return f"{machine.name} {place} {machine.status} {machine.reason} {machine.events} {machine.trouble}"


@contextlib.contextmanager
def azure_jobs(folder: Path, agents: Path, *, boot: bool = True) -> Iterator[AzureJobs]:
    """Run jobs on a stand-in; all processes are ended on exit. `agents`: folder where agent files are kept from test to
    test."""
    with azure_with_blobs(folder, boot=boot) as (control, environ):
        jobs = AzureJobs(control, folder)
        with use_state_directory(jobs, agents, environ):
            yield jobs


@contextlib.contextmanager
def azure_with_blobs(folder: Path, *, boot: bool = True) -> Iterator[tuple[AzureControl, Mapping[str, str]]]:
    """Run the stand-in and Azurite; yield its control and the environment that points clients to both. They share a
    certificate, since only one variable names it."""
    with azurite.shared(CONTAINER) as blobs, azure_process(boot=boot, certificate=blobs.certificate) as control:
        control.add_storage(ACCOUNT)
        yield control, azure_environ(control.url, folder / "az") | blobs.environ()


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AzureJobs]:
    with azure_jobs(tmp_path, agents) as made:
        yield made
