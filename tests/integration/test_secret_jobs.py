"""Jobs whose machines read a secret from their cloud's manager: it reaches the program, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from cloudgpu.control.jobs import Job
from cloudgpu.tests.standins.aws.jobs import AwsJobs, aws_jobs
from cloudgpu.tests.standins.azure.jobs import AzureJobs, azure_jobs
from cloudgpu.tests.standins.canary import new_canary, places, places_in_folder, watched_command_lines
from cloudgpu.tests.standins.cloud_jobs import CloudJobs, agents
from cloudgpu.tests.standins.gcp.jobs import GcpJobs, gcp_jobs
from cloudgpu.tests.standins.processes import processes_of
from cloudgpu.tests.standins.vertex.user_jobs import VertexJobs, vertex_jobs

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(900)

VALUE = new_canary()
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
# Says what it has, and waits in its first run until it is killed.
PROGRAM = """
import hashlib, os, pathlib, sys, time
from cloudgpu.runtime import Checkpointer

class Count:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

token = os.environ["TOKEN"]
assert os.environ["MINE"] == token
print("has", hashlib.sha256(token.encode()).hexdigest(), flush=True)
print("printed:", token, file=sys.stderr, flush=True)
count = Count()
ckpt = Checkpointer(count=count)
begun = ckpt.step
for step in ckpt.steps(6):
    count.value += step
    time.sleep(600.0 if begun == 0 and step == 5 else 0.4)
print("sum", count.value, flush=True)
"""


class Case(NamedTuple):
    """A cloud, and how a secret gets into its manager."""

    start: Callable[..., contextlib.AbstractContextManager[Any]]
    resources: str
    reference: str
    add: Callable[[Any], None]


def add_to_aws(jobs: AwsJobs) -> None:
    client = jobs.session.client("secretsmanager", endpoint_url=jobs.control.url)
    client.create_secret(Name="team/token", SecretString=VALUE)


def add_to_gcp(jobs: GcpJobs | VertexJobs) -> None:
    jobs.control.do("secretmanager/put", secret="token", value=VALUE)


def add_to_azure(jobs: AzureJobs) -> None:
    jobs.control.add_secret("team-vault", "token", VALUE)


CASES = {
    "aws": Case(
        aws_jobs,
        "{cloud: aws, machine_type: g4dn.xlarge, region: us-east-1}",
        "aws-secretsmanager://team/token",
        add_to_aws,
    ),
    "gcp": Case(
        gcp_jobs,
        "{cloud: gcp, machine_type: n1-standard-4, accelerator: T4, region: us-central1}",
        "gcp-secretmanager://token",
        add_to_gcp,
    ),
    "vertex": Case(
        vertex_jobs,
        "{cloud: vertex, machine_type: n1-standard-4, accelerator: T4, region: us-central1}",
        "gcp-secretmanager://token",
        add_to_gcp,
    ),
    "azure": Case(
        azure_jobs,
        "{cloud: azure, machine_type: Standard_NC4as_T4_v3, region: eastus}",
        "azure-keyvault://team-vault/token",
        add_to_azure,
    ),
}


@pytest.mark.parametrize("cloud", CASES)
def test_a_secret_reaches_the_program_and_nothing_else(
    tmp_path: Path, agents: Path, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One comes from the cloud's manager, one from the submitter. The agent is killed once (SIGKILL) while the program
    has them."""
    case = CASES[cloud]
    monkeypatch.setenv("MINE", VALUE)
    with case.start(tmp_path, agents) as jobs, watched_command_lines(VALUE, 0.2) as command_lines:
        case.add(jobs)
        jobs.control.forget()
        text = (
            f"resources: {case.resources}\nsecrets: {{TOKEN: '{case.reference}', MINE: env:MINE}}\n"
            "checkpoint: {every: 1s}\n"
        )
        job = jobs.submit(PROGRAM, text=text)
        jobs.wait_for(lambda: jobs.is_saved(job), job)
        assert has_it(jobs, job), jobs.diagnostics(job)
        roots = [Path(one.root) for one in jobs.instances(job)]
        assert_nowhere(jobs, job, roots)
        kill_agent(roots)
        jobs.finish(job)
        log = jobs.log(job)
        assert log.count(f"has {DIGEST}") == 2 and "sum 15" in log, jobs.diagnostics(job)
        assert [line for line in log if line.startswith("printed:")] == ["printed: ***"] * 2
        assert_nowhere(jobs, job, roots)
        assert len([event for event in job.events() if event.kind == "secrets"]) == 2
        assert command_lines == []


def has_it(jobs: CloudJobs[Any, Any], job: Job) -> bool:
    end = time.monotonic() + 60.0
    while f"has {DIGEST}" not in jobs.log(job) and time.monotonic() < end:
        time.sleep(0.1)
    return f"has {DIGEST}" in jobs.log(job)


def kill_agent(roots: list[Path]) -> None:
    agents = [one for root in roots for one in processes_of(root) if is_agent(one)]
    assert agents
    for one in agents:
        with contextlib.suppress(psutil.Error):
            one.kill()


def is_agent(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "cloudgpu.runtime.agent" in process.cmdline()
    return False


def assert_nowhere(jobs: Any, job: Job, roots: list[Path]) -> None:
    """Assert that the value is in no file of either side, object, event, or call to the cloud."""
    assert places_in_folder(VALUE, jobs.folder, *roots) == []
    folder = jobs.job_dir(job)
    objects = {key: folder.get(key) for key in folder.list("")}
    calls = {call.action: repr(call.params).encode() for call in jobs.control.calls()}
    events = {"events": repr([job.refresh().reason, *(one.message for one in job.events())]).encode()}
    assert len(objects) > 5 and len(calls) > 5
    assert places(VALUE, objects | calls | events) == []
