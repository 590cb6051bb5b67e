"""Jobs that may run on the AWS, Google Cloud and Azure stand-ins, each with its own store; see cloud_jobs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudgpu.control.jobs import Job

from .aws.control import environ as aws_environ
from .aws.jobs import AwsJobs
from .aws.process import aws_process
from .azure.jobs import AzureJobs, azure_with_blobs
from .cloud_jobs import CloudJobs, use_state_directory
from .gcp.control import environ as gcp_environ
from .gcp.jobs import GcpJobs
from .gcp.process import gcp_process

__all__ = ["SeveralClouds", "several_clouds"]


class _AllRemains:
    """Finder of leftovers on all clouds."""

    def __init__(self, of: Mapping[str, CloudJobs[Any, Any]]) -> None:
        self._of = of

    def find(self) -> dict[str, Sequence[str]]:
        left = {cloud: jobs.remains.find() for cloud, jobs in self._of.items()}
        return {f"{cloud} {kind}": names for cloud, found in left.items() for kind, names in found.items()}


class SeveralClouds(CloudJobs[Any, _AllRemains]):
    """An account on each cloud. Jobs have a job dir in each."""

    cloud = "several"

    def __init__(self, aws: AwsJobs, gcp: GcpJobs, azure: AzureJobs, folder: Path) -> None:
        self.aws, self.gcp, self.azure = aws, gcp, azure
        self.all: dict[str, CloudJobs[Any, Any]] = {"aws": aws, "gcp": gcp, "azure": azure}
        parents = ", ".join(f"{cloud}: {jobs.parent}" for cloud, jobs in self.all.items())
        super().__init__(folder, _AllRemains(self.all), f"{{{parents}}}")

    def instances(self, job: Job, **where: Any) -> list[Any]:
        return [one for jobs in self.all.values() for one in jobs.instances(job, **where)]

    def headline(self, machine: Any) -> str:
        return f"{type(machine).__module__}: {machine.trouble} {machine.root}"


@contextlib.contextmanager
def several_clouds(folder: Path, agents: Path) -> Iterator[SeveralClouds]:
    """Run all three stand-ins with machines that boot. `agents`: folder where agent files are kept from test to
    test."""
    with aws_process() as aws, gcp_process() as gcp, azure_with_blobs(folder) as (azure, environ):
        jobs = SeveralClouds(AwsJobs(aws, folder), GcpJobs(gcp.url, folder), AzureJobs(azure, folder), folder)
        result = {**aws_environ(aws.url), **gcp_environ(gcp.url, folder / "keys"), **environ}
        # The variables that keep Google's SDK off the internet must not block the other SDKs from their stand-ins.
        with use_state_directory(jobs, agents, {**result, "no_proxy": "127.0.0.1,localhost"}):
            yield jobs
