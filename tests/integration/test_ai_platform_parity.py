"""A job written for `gcloud ai-platform jobs submit training`, its pages' own example, on today's two targets: the
command line with gcloud's flags, a supervisor, 13 machines that really run, a bucket.

A master and 9 workers with 4 T4 each, and 3 parameter servers. The master's program meets every other one at the
address that TF_CONFIG tells of it.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.jobs import Job, get_job
from cloudgpu.tests.standins.cloud_jobs import CloudJobs, agents
from cloudgpu.tests.standins.gcp.jobs import gcp_jobs
from cloudgpu.tests.standins.long_mode import in_long_mode
from cloudgpu.tests.standins.vertex.user_jobs import vertex_jobs

__all__ = ["agents"]

pytestmark = pytest.mark.timeout(1_800)

LIMIT_S = 1_500.0  # 13 machines boot on this computer at once

TASK = """
import json, os, socket, sys, time

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
print("TF_CONFIG", json.dumps(config), flush=True)
print("ARGV", json.dumps(sys.argv[1:]), flush=True)

def greet(address):
    host, _, port = address.rpartition(":")
    until = time.monotonic() + 600
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=180) as peer:
                return peer.makefile().read()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)

if kind != "chief":
    listener = socket.create_server(("", int(config["cluster"][kind][index].rpartition(":")[2])))
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(f"{kind}-{index}".encode())
met = [greet(address) for name in ("worker", "ps") for address in config["cluster"][name]]
print("MET", json.dumps(met), flush=True)
"""

FLAGS = shlex.split("""
--scale-tier custom --region us-central1 --module-name trainer.task --package-path trainer
--master-machine-type n1-highcpu-16 --master-accelerator count=4,type=nvidia-tesla-t4
--worker-count 9 --worker-machine-type n1-highcpu-16 --worker-accelerator count=4,type=nvidia-tesla-t4
--parameter-server-count 3 --parameter-server-machine-type n1-highmem-8
""")

MEMBERS = [*(f"worker-{index}" for index in range(9)), *(f"ps-{index}" for index in range(3))]


@contextlib.contextmanager
def jobs_on(cloud: str, folder: Path, agents: Path) -> Iterator[CloudJobs[Any, Any]]:
    made = gcp_jobs(folder, agents) if cloud == "gcp" else vertex_jobs(folder, agents)
    with made as jobs:
        yield jobs


def submit(jobs: CloudJobs[Any, Any], cloud: str) -> Job:
    """As its user would, but for the target, which the service did not leave open."""
    source = jobs.folder / "source"
    (source / "trainer").mkdir(parents=True)
    (source / "trainer" / "__init__.py").touch()
    (source / "trainer" / "task.py").write_text(TASK)
    command = [sys.executable, "-m", "cloudgpu", "submit", "census", "--detach", "--yes", "--cloud", cloud, *FLAGS]
    command += ["--job-dir", jobs.parent, "--", "--epochs", "10"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return get_job(done.stdout.split()[-1])


def told(jobs: CloudJobs[Any, Any], job: Job, word: str) -> list[Any]:
    """What programs have printed after a word."""
    return [json.loads(line.partition(" ")[2]) for line in jobs.log(job) if line.startswith(f"{word} ")]


@pytest.mark.parametrize("cloud", [pytest.param("gcp", marks=in_long_mode), "vertex"])
def test_the_pages_own_example_runs_with_tf_config_as_the_service_set_it(
    cloud: str, tmp_path: Path, agents: Path
) -> None:
    with jobs_on(cloud, tmp_path, agents) as jobs:
        job = submit(jobs, cloud)
        jobs.finish(job, limit_s=LIMIT_S)
        assert told(jobs, job, "MET") == [MEMBERS], jobs.diagnostics(job)
        configs = told(jobs, job, "TF_CONFIG")
        tasks = {f"{config['task']['type']}-{config['task']['index']}" for config in configs}
        assert tasks == {"chief-0", *MEMBERS}
        assert len(configs) == 13
        for config in configs:
            assert config["cluster"] == configs[0]["cluster"]
            assert {name: len(addresses) for name, addresses in config["cluster"].items()} == {
                "chief": 1,
                "worker": 9,
                "ps": 3,
            }
            assert config["environment"] == "cloud"
            assert config["job"] == {
                "scale_tier": "CUSTOM",
                "region": "us-central1",
                "master_type": "n1-highcpu-16",
                "master_config": {"accelerator_config": {"count": "4", "type": "NVIDIA_TESLA_T4"}},
                "worker_type": "n1-highcpu-16",
                "worker_config": {"accelerator_config": {"count": "4", "type": "NVIDIA_TESLA_T4"}},
                "worker_count": "9",
                "parameter_server_type": "n1-highmem-8",
                "parameter_server_count": "3",
                "python_module": "trainer.task",
                "args": ["--epochs", "10"],
                "job_dir": jobs.parent,
            }
        assert told(jobs, job, "ARGV") == [["--epochs", "10", "--job-dir", jobs.parent]] * 13
