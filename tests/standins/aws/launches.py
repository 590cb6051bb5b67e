"""A launch request for tests of the provisioner, and its boto3 session."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import boto3

from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner

from .control import KEY

NODE = NodeRequest("worker-0.1", "worker", 0, 0, "g4dn.xlarge", "T4", Fraction(1))
REQUEST = LaunchRequest(
    job_id="digits-abc",
    attempt=1,
    token="0" * 32,
    owner=Owner("cloudgpu-tester"),
    job_dir="s3://jobs/digits-abc",
    job_sha256="0" * 64,
    region="us-east-1",
    zone="use1-az1",
    market="on-demand",
    disk_gb=100.0,
    nodes=(NODE,),
    lifetime_s=3_600,
    agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
)


def of_job(number: int) -> LaunchRequest:
    return dataclasses.replace(REQUEST, job_id=f"job-{number}", token=f"{number:032x}")


@functools.cache
def session() -> boto3.Session:
    """Return a session shared by all tests, since reading the SDK's models takes half a second."""
    return boto3.Session(aws_access_key_id=KEY, aws_secret_access_key="secret", region_name="us-east-1")
