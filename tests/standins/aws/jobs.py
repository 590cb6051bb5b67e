"""Jobs on the AWS stand-in; see cloud_jobs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job

from ..cloud_jobs import CloudJobs, agents, use_state_directory
from .account import InstanceState
from .control import KEY, AwsControl
from .control import environ as aws_environ
from .process import Leftovers, aws_process

__all__ = ["BUCKET", "TYPE", "AwsJobs", "agents", "aws_jobs", "jobs"]

BUCKET = "jobs-of-tests"
TYPE = "g4dn.xlarge"


class AwsJobs(CloudJobs[InstanceState, Leftovers]):
    """Jobs in one account and one bucket."""

    cloud = "aws"

    def __init__(self, control: AwsControl, folder: Path) -> None:
        import boto3

        super().__init__(folder, Leftovers(control.url), f"s3://{BUCKET}/jobs")
        self.control = control
        self.session = boto3.session.Session(KEY, "secret", region_name="us-east-1")
        """The submitter's session; its clients use the endpoint from the environment."""
        self.session.client("s3", endpoint_url=control.url).create_bucket(Bucket=BUCKET)
        zones = self.session.client("ec2", endpoint_url=control.url).describe_availability_zones()["AvailabilityZones"]
        self.zones = {zone["ZoneId"]: zone["ZoneName"] for zone in zones}
        """AZ id, as in plans -> the account's zone name."""

    def instances(self, job: Job, **where: Any) -> list[InstanceState]:
        return [one for one in self.control.instances(**where) if one.tags.get("cloudgpu-job") == job.id]

    def headline(self, machine: InstanceState) -> str:
        return f"{machine.instance_id} {machine.zone} {machine.state} {machine.reason} {machine.trouble}"


@contextlib.contextmanager
def aws_jobs(folder: Path, agents: Path, *, boot: bool = True) -> Iterator[AwsJobs]:
    """Run jobs on a stand-in; all processes are ended on exit. `agents`: folder where agent files are kept from test to
    test."""
    with aws_process(boot=boot) as control:
        jobs = AwsJobs(control, folder)
        with use_state_directory(jobs, agents, aws_environ(control.url)):
            yield jobs


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AwsJobs]:
    with aws_jobs(tmp_path, agents) as made:
        yield made
