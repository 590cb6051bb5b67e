"""limits.gpu_idle on target `local`, with a stand-in for NVIDIA's driver: agents, heartbeats, supervisor, end of
job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.control import paths
from cloudgpu.control.jobs import Job, submit
from cloudgpu.control.store.store import Store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.plan import LocalGpu, Plan
from cloudgpu.provisioners.local.gpus import find_gpus
from cloudgpu.tests.standins.control import make_offer
from cloudgpu.tests.standins.nvidia import install_driver

WAIT_S = 180.0
GPUS = [LocalGpu("GPU-aa1", "NVIDIA L4", 24.0), LocalGpu("GPU-ab2", "NVIDIA L4", 24.0)]

pytestmark = pytest.mark.skipif(bool(find_gpus()), reason="this machine has GPUs: the stand-ins would not be asked")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a driver with two L4s; return a function that writes the nvidia-smi script, which is first in PATH."""
    install_driver(GPUS, monkeypatch)
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")

    def write(text: str) -> None:
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)

    return write


def answer(*percents: int) -> str:
    return "\n".join(f"echo '{gpu.uuid}, {percent}'" for gpu, percent in zip(GPUS, percents, strict=True))


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """Run the supervisor in this process, where the driver's stand-in is installed."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    store = Store.open(paths.database_url())
    supervisor = Supervisor(store)
    yield supervisor
    for row in store.active_jobs():
        store.set_goal(row.id, "cancel", "cancel", time.time())
    end = time.monotonic() + WAIT_S
    while supervisor.tick().active:
        assert time.monotonic() < end
        time.sleep(0.05)
    store.close()


def submit_job(folder: Path, run: str, *, nodes: int = 1) -> Job:
    text = (
        f"name: idler\ncode: null\nresources: {{accelerator: L4, cloud: local}}\nlimits: {{gpu_idle: 2s}}\nrun: {run}\n"
    )
    loaded = load_text(text, base=folder)
    return submit(loaded, Plan((make_offer(nodes=nodes, gpus=1),)), supervise=False)


def drive(
    supervisor: Supervisor, job: Job, until: Callable[[], object] = lambda: False, limit_s: float = WAIT_S
) -> None:
    """Run the supervisor until the job has ended or `until` holds."""
    end = time.monotonic() + limit_s
    while not job.refresh().done and not until():
        assert time.monotonic() < end, [event.message for event in job.events()]
        supervisor.tick()
        time.sleep(0.05)


def agent_lines(job: Job) -> list[str]:
    return [line.text for line in job.logs().read()[0] if line.stream == "agent"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_whose_gpus_idle_is_stopped(
    supervisor: Supervisor, nvidia_smi: Callable[[str], None], tmp_path: Path, nodes: int
) -> None:
    nvidia_smi(answer(0, 1))
    job = submit_job(tmp_path, "exec sleep 1000", nodes=nodes)
    drive(supervisor, job)
    assert (job.state, job.cause) == ("stopped", "gpu_idle"), job.reason
    assert job.reason == "limits.gpu_idle reached: no GPU did anything for 2s"
    assert [attempt.outcome for attempt in job.attempts()] == ["stopped"]
    assert sum("limits.gpu_idle is reached; " in line for line in agent_lines(job)) == nodes


def test_one_busy_gpu_of_the_job_keeps_it(
    supervisor: Supervisor, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(answer(0, 90))
    job = submit_job(tmp_path, "exec sleep 6", nodes=2)
    drive(supervisor, job)
    assert job.state == "succeeded", job.reason


def test_a_busy_gpu_of_another_job_does_not_keep_it(
    supervisor: Supervisor, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(answer(0, 90))
    job = submit_job(tmp_path, "exec sleep 1000")
    drive(supervisor, job)
    assert (job.state, job.cause) == ("stopped", "gpu_idle")


def test_a_driver_that_fails_is_said_once_and_stops_nothing(
    supervisor: Supervisor, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi("echo 'NVIDIA-SMI has failed'; exit 9")
    job = submit_job(tmp_path, "exec sleep 5")
    drive(supervisor, job)
    assert job.state == "succeeded", job.reason
    said = [line for line in agent_lines(job) if "idle" in line]
    assert len(said) == 1
    assert said[0].endswith("limits.gpu_idle has no effect: nvidia-smi says: NVIDIA-SMI has failed")
