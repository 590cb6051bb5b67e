"""Jobs on the AWS stand-in as a user has them: the command line, a supervisor in the background, a bucket."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cloudgpu.control.jobs import Job, get_job
from cloudgpu.runtime.jobdir import JobDir
from cloudgpu.runtime.logs import LogReader

from ..local_jobs import state_directory
from .account import Told
from .control import KEY, AwsControl
from .control import environ as aws_environ
from .process import Remains, aws_process

BUCKET = "jobs-of-tests"
TYPE = "g4dn.xlarge"
PATIENT_S = 120.0
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_T = TypeVar("_T")


class AwsJobs:
    """A state directory, a bucket, and an account in which nothing is of ours yet."""

    def __init__(self, control: AwsControl, folder: Path) -> None:
        import boto3

        self.control, self.folder, self.home = control, folder, folder / "home"
        self.remains = Remains(control.url)
        session = boto3.session.Session(KEY, "secret", region_name="us-east-1")
        session.client("s3", endpoint_url=control.url).create_bucket(Bucket=BUCKET)
        zones = session.client("ec2", endpoint_url=control.url).describe_availability_zones()["AvailabilityZones"]
        self.zones = {zone["ZoneId"]: zone["ZoneName"] for zone in zones}
        """AZ id, as in plans -> the account's name of it."""

    def submit(self, program: str, *, python: str = "python3", text: str = "") -> Job:
        """`cloudgpu submit --detach` of a job that runs this program; `text` adds to the job file."""
        code = self.folder / f"code-{time.monotonic_ns()}"
        code.mkdir()
        (code / "main.py").write_text(program)
        head = f"name: on-aws\njob_dir: s3://{BUCKET}/jobs\ncode: .\nrun: {python} main.py\n"
        (code / "job.yaml").write_text(head + text)
        command = [sys.executable, "-m", "cloudgpu", "submit", "--detach", "--yes", "job.yaml"]
        done = subprocess.run(command, cwd=code, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return get_job(done.stdout.split()[-1])

    def instances(self, job: Job, **where: Any) -> list[Told]:
        """Of a job, in the order in which they were launched."""
        return [one for one in self.control.instances(**where) if one.tags.get("cloudgpu-job") == job.id]

    def job_dir(self, job: Job) -> JobDir:
        return JobDir(job.row.job_dir)

    def is_saved(self, job: Job) -> bool:
        """Whether a whole checkpoint is in the bucket."""
        return any(key.endswith("/COMMIT.json") for key in self.job_dir(job).list("checkpoints"))

    def log(self, job: Job) -> list[str]:
        return [line.text for line in LogReader(self.job_dir(job)).read()[0]]

    def wait_for(self, what: Callable[[], _T], job: Job, limit_s: float = PATIENT_S) -> _T:
        """Until it is something; fails with all that is known about the job."""
        end = time.monotonic() + limit_s
        while not (found := what()):
            assert time.monotonic() < end, self.story(job)
            assert not job.refresh().done, self.story(job)
            time.sleep(0.05)
        return found

    def finish(self, job: Job, state: str = "succeeded", limit_s: float = PATIENT_S) -> None:
        """It ends so, and leaves nothing; nothing went wrong on its machines."""
        assert job.wait(timeout_s=limit_s), self.story(job)
        assert job.state == state, self.story(job)
        assert self.remains.find() == {}
        assert [one.trouble for one in self.instances(job) if one.trouble] == []

    def story(self, job: Job) -> str:
        """For whoever must find out what went wrong."""
        lines = [f"{job.id} {job.refresh().state}: {job.reason}"]
        lines += [f"  {event.kind}: {event.message}" for event in job.events()]
        for one in self.instances(job):
            lines.append(f"  {one.instance_id} {one.zone} {one.state} {one.reason} {one.trouble}")
            lines += [f"    console: {line}" for line in one.console.splitlines()[-20:]]
            agent = Path(one.root, "var/lib/cloudgpu/agent.log")
            lines += [f"    agent: {line}" for line in (agent.read_text() if agent.exists() else "").splitlines()[-20:]]
        with contextlib.suppress(Exception):
            lines += [f"  log: {line}" for line in self.log(job)[-20:]]
        log = self.home / "supervisor.log"
        lines += [f"  supervisor: {line}" for line in (log.read_text() if log.exists() else "").splitlines()[-30:]]
        return "\n".join(lines)


@contextlib.contextmanager
def aws_jobs(folder: Path, agents: Path, *, boot: bool = True) -> Iterator[AwsJobs]:
    """`agents`: where agent files are kept from test to test. Nothing is left running afterwards."""
    with aws_process(boot=boot) as control, pytest.MonkeyPatch.context() as patch:
        jobs = AwsJobs(control, folder)
        jobs.home.mkdir()
        (jobs.home / "agents").symlink_to(agents)
        for name, value in aws_environ(control.url).items():
            patch.setenv(name, value)
        patch.setenv("CLOUDGPU_AGENT_PYTHONS", OWN_PYTHON)  # nothing is fetched for the machines' Python then
        with state_directory(jobs.home, patch):
            yield jobs


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture
def jobs(tmp_path: Path, agents: Path) -> Iterator[AwsJobs]:
    with aws_jobs(tmp_path, agents) as made:
        yield made
