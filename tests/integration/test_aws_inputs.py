"""Inputs and outputs of a job on AWS: the machine's role reads what the job file names, and nothing beside it."""

from __future__ import annotations

import json

import boto3
import pytest

from cloudgpu.protocol.jobdir import JobDir
from cloudgpu.tests.standins.aws.jobs import BUCKET, TYPE, AwsJobs, agents, jobs
from cloudgpu.tests.standins.cloud_jobs import PATIENT_S

__all__ = ["agents", "jobs"]

pytestmark = pytest.mark.timeout(600)

RESOURCES = f"resources: {{cloud: aws, machine_type: {TYPE}, accelerator: T4, region: us-east-1, market: spot}}\n"
PROGRAM = """
import pathlib
from cloudgpu.protocol.jobdir import JobDir, JobDirError

print(pathlib.Path("data/train/a").read_text(), pathlib.Path("weights.pt").read_text())
pathlib.Path("results").mkdir()
pathlib.Path("results/loss.txt").write_text("0.1")
try:
    print("beside it:", JobDir("s3://jobs-of-tests/secret").get("key"))
except JobDirError as error:
    print(error)
"""


def become_somebody(jobs: AwsJobs, patch: pytest.MonkeyPatch) -> None:
    """Who submits has a user of IAM's, for policies hold for those only; the machine has its role."""
    iam = boto3.client("iam", region_name="us-east-1", endpoint_url=jobs.control.url)
    iam.create_user(UserName="submitter")
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="submitter", PolicyName="all", PolicyDocument=json.dumps(everything))
    key = iam.create_access_key(UserName="submitter")["AccessKey"]
    patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    jobs.control.enforce(True)


def test_a_machine_reads_its_inputs_and_nothing_beside_them(jobs: AwsJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    JobDir(f"s3://{BUCKET}/data/digits").put("train/a", b"seven")
    JobDir(f"s3://{BUCKET}/models").put("first.pt", b"weights")
    JobDir(f"s3://{BUCKET}/secret").put("key", b"of others")
    become_somebody(jobs, monkeypatch)
    inputs = f"inputs: {{data: s3://{BUCKET}/data/digits, weights.pt: s3://{BUCKET}/models/first.pt}}\n"
    job = jobs.submit(PROGRAM, text=f"{RESOURCES}{inputs}outputs: [results]\n")
    assert job.wait(timeout_s=PATIENT_S), jobs.diagnostics(job)
    jobs.control.enforce(False)
    jobs.finish(job)
    log = jobs.log(job)
    assert "seven weights" in log
    assert any("s3://jobs-of-tests/secret: reading key failed: access denied" in line for line in log), (
        jobs.diagnostics(job)
    )
    assert jobs.job_dir(job).get("outputs/results/loss.txt") == b"0.1"
