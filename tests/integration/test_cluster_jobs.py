"""Tests of jobs on a cluster, submitted with the command line; only the machines are faked, as local processes."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control.jobs import Job, get_job, list_jobs
from cloudgpu.protocol.fleet.records import Failure, member_key
from cloudgpu.provisioners.boot.agent_file import PYTHONS_VARIABLE
from cloudgpu.provisioners.cluster.provisioner import shared
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.tests.standins import ddp
from cloudgpu.tests.standins.agent_files import OWN_PYTHON
from cloudgpu.tests.standins.fleets import Machines, save_cluster
from cloudgpu.tests.standins.local_jobs import home, stop_supervisor
from cloudgpu.tests.standins.long_mode import in_long_mode

__all__ = ["home"]

WAIT_S = 300.0
# The second half of the first run is slow, so that the interruption hits it even on a busy computer.
TRAIN = """\
import sys, time, torch
from cloudgpu.runtime import Checkpointer
ckpt = Checkpointer(model=torch.nn.Linear(2, 2), every=4)
begun, steps = ckpt.step, int(sys.argv[1])
print("from", begun, flush=True)
for step in ckpt.steps(steps):
    time.sleep(1.0 if begun == 0 and step >= steps // 2 else 0.05)
"""


@pytest.fixture
def machines(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv(PYTHONS_VARIABLE, OWN_PYTHON)  # so that the agent file needs no download
    shared.cache_clear()
    made = Machines(tmp_path)
    save_cluster(made, 2)
    yield made
    made.close()


def cloudgpu(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "cloudgpu", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False)


def write(machines: Machines, run: str, more: str = "") -> Path:
    code = machines.folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAIN)
    file = code / "job.yaml"
    file.write_text(f"name: turn\nresources: {{accelerator: none, nodes: 1}}\nrun: {run}\n{more}")
    return file


def submit(machines: Machines, run: str, *words: str, more: str = "") -> Job:
    done = cloudgpu("submit", str(write(machines, run, more)), "--cluster", "big", "--detach", *words)
    assert done.returncode == 0, done.stderr
    return get_job(done.stdout.strip())


def told(job: Job) -> list[str]:
    return [event.message for event in job.events()]


def lines(job: Job) -> list[str]:
    return [line.text for line in job.logs().read()[0]]


def test_a_job_is_run_by_machines_that_are_there(machines: Machines) -> None:
    for name in "ab":
        machines.start(name)
    file = write(machines, "echo hello from $CLOUDGPU_NODE", "limits: {cost: 5 USD}\n")
    done = cloudgpu("submit", str(file), "--cluster", "big", "--nodes", "2", "--set", "launcher=none")
    assert done.returncode == 0, done.stderr
    assert "cluster big on-demand: 2 × g6.xlarge, 1.6" in done.stderr
    assert {"hello from worker-0.1", "hello from worker-1.1"} <= {line[-21:] for line in done.stdout.splitlines()}
    (job,) = list_jobs()
    (attempt,) = job.attempts()
    assert attempt.cost is not None
    assert attempt.cost > 0
    assert machines.order(1).end is not None
    machines.until_clean()


def test_orders_wait_for_their_turn_and_can_be_cancelled(machines: Machines) -> None:
    going = machines.folder / "going"
    first = submit(machines, f"while [ ! -e {going} ]; do sleep 0.1; done")
    machines.until(
        lambda: machines.view().orders, "the first is not ordered"
    )  # the supervisor orders jobs concurrently
    second = submit(machines, "sleep 600")
    machines.until(lambda: second.refresh().state == "starting", "the second is not ordered")
    machines.start("a")
    machines.until(lambda: first.refresh().state == "running", "the first does not run")
    seen = json.loads(cloudgpu("status", second.id, "--json").stdout)
    assert seen["state"] == "starting"
    going.touch()
    assert first.wait(timeout_s=WAIT_S)
    machines.until(lambda: second.refresh().state == "running", "the second does not run")
    assert cloudgpu("cancel", second.id).returncode == 0
    assert second.wait(timeout_s=WAIT_S)
    assert second.refresh().state == "cancelled"
    assert not machines.jobs("a")


def test_the_queue_is_shown(machines: Machines) -> None:
    first = submit(machines, "sleep 600")
    machines.until(lambda: machines.view().newest == 1, "the first is not ordered")
    second = submit(machines, "true")
    machines.until(lambda: machines.view().newest == 2, "the second is not ordered")
    key = member_key("vm-7", "failed.json")
    machines.fleet.put(key, Failure("the agent file cannot be fetched", time.time()))
    none = cloudgpu("cluster", "status")
    assert none.returncode == 0, none.stderr
    assert "0 of 2" in none.stdout and "waits, after 1 other job\n" in none.stdout
    assert "vm-7 of big could not be used" in none.stderr and "cannot be fetched" in none.stderr
    waits = "waits for a machine of the cluster, after 1 other job; vm-7 could not be used: the agent file cannot be"
    machines.until(lambda: get_job(second.id).reason.startswith(waits), "its turn is not told")
    assert "after 1 other job" in cloudgpu("status", second.id).stdout
    machines.start("a")
    machines.until(lambda: machines.order(1).held, "the first has not begun")
    shown = cloudgpu("cluster", "status", "--json")
    [cluster] = json.loads(shown.stdout)
    now = cluster["now"]
    assert (cluster["name"], now["answering"], now["suspects"]) == ("big", 1, [])
    machines.until(lambda: (get_job(first.id).state, get_job(first.id).reason) == ("running", ""), "it does not run")
    turns = [(one["job_id"], one["machines"], one["nodes"], one["after"]) for one in now["queue"]]
    assert turns == [(first.id, 1, 1, 0), (second.id, 0, 1, 0)]
    assert [one["machine"] for one in now["unusable"]] == ["vm-7"]


def test_a_cluster_whose_folder_cannot_be_read_is_listed(machines: Machines) -> None:
    cluster = clusters.load("big")
    assert cluster is not None
    clusters.save(dataclasses.replace(cluster, fleet_dir="http://nowhere/fleets/big"))
    done = cloudgpu("cluster", "status")
    assert (done.returncode, "? of 2" in done.stdout) == (0, True), done.stderr
    assert "what the machines of big do is not known" in done.stderr


def test_a_lost_machine_is_replaced_while_nobody_looks(machines: Machines) -> None:
    """The supervisor is off meanwhile and records the replacement when it is back."""
    pytest.importorskip("torch")
    machines.shorten_silence()
    machines.start("a")
    job = submit(machines, f"{sys.executable} train.py 100")
    machines.until(lambda: any("COMMIT" in key for key in job.open_dir().list("checkpoints")), "it does not save")
    stop_supervisor(signal.SIGKILL)  # like a closed laptop
    machines.crash("a")
    machines.start("b")
    machines.until(lambda: machines.order(1).end is not None, "it has not ended")
    assert cloudgpu("wait", job.id).returncode == 0
    assert job.refresh().state == "succeeded", told(job)
    (attempt,) = job.attempts()
    assert any("worker-0.2 takes its place" in message for message in told(job))
    assert attempt.generations[-1].interruptions == 1
    assert [int(line.split()[1]) > 0 for line in lines(job) if line.startswith("from ")] == [False, True]


def test_a_lost_machine_is_left_to_the_others_by_who_looks(machines: Machines) -> None:
    """Only the cluster's members replace the machine: the supervisor sees the loss but starts no new attempt."""
    machines.shorten_silence()
    machines.start("a")
    going = machines.folder / "going"
    job = submit(machines, f"echo $CLOUDGPU_NODE began; while [ ! -e {going} ]; do sleep 0.1; done")
    machines.until(lambda: "worker-0.1 began" in lines(job), "it was not begun")
    machines.crash("a")
    machines.until(lambda: machines.order(1).place("worker-0").state == "lost", "nobody misses it")
    machines.start("b")
    machines.until(lambda: "worker-0.2 began" in lines(job), "nobody goes on with it")
    machines.until(lambda: any("worker-0.2 takes its place" in one for one in told(job)), "nobody takes note of it")
    going.touch()
    assert job.wait(timeout_s=WAIT_S)
    assert job.refresh().state == "succeeded", told(job)
    assert len(job.attempts()) == 1, told(job)


def test_a_lost_machine_of_several_is_replaced(machines: Machines) -> None:
    """The error of the other machine, which lost its peer, does not count as a failure; there is one attempt."""
    pytest.importorskip("torch")
    machines.shorten_silence()
    for name in "ab":
        machines.start(name)
    (machines.folder / "ddp.py").write_text(ddp.TRAIN)
    undisturbed = machines.folder / "undisturbed"
    run = f"[{sys.executable}, {machines.folder}/ddp.py, '100', '0.05', {undisturbed}]"
    words = ["--nodes", "2", "--set", "launcher=torchrun"]
    job = submit(machines, run, *words, more="retry: {failure: 0}\n")
    machines.until(lambda: any("COMMIT" in key for key in job.open_dir().list("checkpoints")), "it does not save")
    machines.crash(machines.holder(1, "worker-1"))
    undisturbed.touch()
    machines.start("c")
    assert job.wait(timeout_s=WAIT_S), told(job)
    assert job.refresh().state == "succeeded", told(job)
    (attempt,) = job.attempts()
    newest = attempt.generations[-1]
    assert [newest.kind, newest.failures, newest.interruptions] == ["members", 0, 1]


def test_a_cluster_that_is_taken_down_ends_its_jobs(machines: Machines) -> None:
    machines.start("a")
    job = submit(machines, "echo began; sleep 600")
    machines.until(lambda: "began" in lines(job), "it was not begun")
    clusters.forget("big")
    assert job.wait(timeout_s=WAIT_S), told(job)
    assert job.refresh().state == "failed"
    assert "no cluster big is known here" in job.reason
    assert not machines.jobs("a")


@pytest.mark.parametrize("launcher", ["none", pytest.param("torchrun", marks=in_long_mode)])
def test_a_preempted_machine_is_no_end(machines: Machines, launcher: str) -> None:
    pytest.importorskip("torch")
    for name in "ab":
        machines.start(name)
    job = submit(machines, f"[{sys.executable}, train.py, '100']", "--set", f"launcher={launcher}")
    machines.until(lambda: "from 0" in lines(job), "it does not train")
    machines.until(lambda: job.refresh().state == "running", "the supervisor has not seen that it does")
    assert cloudgpu("preempt", job.id, "--after", "10s").returncode == 0
    assert job.wait(timeout_s=WAIT_S), told(job)
    assert job.refresh().state == "succeeded", told(job)
    assert len(job.attempts()) == 1
    assert machines.order(1).place("worker-0").incarnation == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "3"], "the job needs 3 machines, the cluster has 2"),
        (["--accelerator", "H100:8"], "needs H100:8, the cluster's machines have L4:1"),
        (["--region", "us-west-2"], "the cluster is in us-east-1"),
        (["--job-dir", "s3://elsewhere/jobs"], "may not use s3://elsewhere/jobs"),
    ],
)
def test_what_does_not_fit_is_refused(machines: Machines, words: list[str], why: str) -> None:
    done = cloudgpu("submit", str(write(machines, "true")), "--cluster", "big", *words)
    assert done.returncode == 4
    assert why in done.stderr
    assert list_jobs() == []


def test_a_cluster_that_is_not_known_is_named(machines: Machines) -> None:
    done = cloudgpu("submit", str(write(machines, "true")), "--cluster", "small")
    assert (done.returncode, "no cluster small is known here" in done.stderr) == (2, True)
    assert "big" in done.stderr


@pytest.mark.parametrize(
    ("left_s", "more", "code", "said"),
    [
        (7_200, "limits: {duration: 1h}\n", 0, ""),
        (7_200, "limits: {duration: 3h}\n", 0, "expires before limits.duration is over"),
        (7_200, "", 0, "the cluster big expires: "),
        (-60, "limits: {duration: 1h}\n", 4, "the cluster big has expired"),
    ],
)
def test_a_job_is_told_when_its_cluster_expires(
    machines: Machines, left_s: float, more: str, code: int, said: str
) -> None:
    cluster = clusters.load("big")
    assert cluster is not None
    clusters.save(dataclasses.replace(cluster, expires=time.time() + left_s))
    done = cloudgpu("submit", str(write(machines, "true", more)), "--cluster", "big", "--dry-run")
    assert done.returncode == code, done.stderr
    assert said in done.stderr and ("cloudgpu cluster extend big 7d" in done.stderr) == bool(said)
    assert ("It would use:" in done.stdout) == (code == 0), "nothing is created"
