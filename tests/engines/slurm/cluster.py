"""A real Slurm on this machine: slurmctld, one slurmd per node and munged, all below one folder.

Each node is an address of the loopback network, so that its name resolves. Every node has four GPUs, which are devices
that exist everywhere. Needs root, for slurmd does, and the Debian packages of packages.txt. No system service and no
file outside of the folder is touched. Started in about 4 s; version 22.05.8 is what was tried.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.runtime.launchers import free_port

PACKAGES: Final = Path(__file__).with_name("packages.txt").read_text().split()
_PROGRAMS = ("munged", "sbatch", "slurmctld", "slurmd")
_START_S, _STOP_S = 60.0, 60.0
_POLL_S = 0.2

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
NodeName=127.0.0.[1-{nodes}] NodeHostname={host} Port=[{node_ports}] CPUs=16 Gres=gpu:4
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=2
"""
"""cred_expire is also for how long a requeued job waits, in seconds; 120 by default."""
_GPUS = "".join(f"Name=gpu File=/dev/{name}\n" for name in ("full", "null", "random", "zero"))


def missing() -> str | None:
    """Return why no Slurm can be started here, with what to do; None if one can."""
    if os.geteuid() != 0:
        return "a real Slurm needs root"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not found: apt-get install {' '.join(PACKAGES)}" if absent else None


@dataclass(frozen=True, slots=True)
class Job:
    """State of a job as Slurm reports it."""

    state: str
    exit_code: str
    """The batch script's exit code and signal, e.g. "70:0"."""
    restarts: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    environment: Mapping[str, str]
    """Variables by which Slurm's commands find the cluster."""

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """Return what one of Slurm's commands prints. Raises AssertionError with its complaint."""
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path, *options: str, cwd: Path, arguments: Sequence[str] = ()) -> str:
        """Return the id of a new job, whose output is `cwd`/slurm-<id>.out."""
        return self.call("sbatch", "--parsable", *options, str(script), *arguments, cwd=cwd).strip()

    def job(self, job_id: str) -> Job:
        """Return what is known of a job, running or ended."""
        text = self.call("scontrol", "--oneliner", "show", "job", job_id)
        fields = dict(re.findall(r"(\w+)=(\S*)", text))
        return Job(fields["JobState"], fields["ExitCode"], int(fields["Restarts"]))

    def wait(self, job_id: str, limit_s: float = 240.0) -> Job:
        """Return the job when it has ended for good. Raises AssertionError after `limit_s`."""
        end = time.monotonic() + limit_s
        while (job := self.job(job_id)).state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"):
            assert time.monotonic() < end, f"job {job_id} has not ended: {job}"
            time.sleep(_POLL_S)
        return job


@contextmanager
def running_slurm(nodes: int) -> Iterator[Cluster]:
    """Start a cluster, and end it with all of its jobs. Raises AssertionError with the logs if it does not start."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudgpu-slurm-")))
        cluster = Cluster({**os.environ, "SLURM_CONF": str(_configure(folder, nodes))})

        def start(name: str, *command: str) -> None:
            stack.enter_context(_daemon(command, cluster.environment, folder / f"{name}.log"))

        start("munged", "munged", "--foreground", *(f"--{name}={folder / path}" for name, path in _MUNGE.items()))
        start("slurmctld", "slurmctld", "-D", "-c")
        for number in range(1, nodes + 1):
            start(f"slurmd-{number}", "slurmd", "-D", "-N", f"127.0.0.{number}")
        stack.callback(_cancel_all, cluster)
        _wait_until_idle(cluster, nodes, folder)
        yield cluster


_MUNGE = {
    "key-file": "munge.key",
    "log-file": "munge.log",
    "pid-file": "munge.pid",
    "seed-file": "munge.seed",
    "socket": "munge.socket",
}


def _configure(folder: Path, nodes: int) -> Path:
    """Return the path of slurm.conf, written with all that it needs."""
    folder.chmod(0o755)  # munged refuses a socket that others cannot reach
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    (folder / "state").mkdir()
    for number in range(1, nodes + 1):
        (folder / f"spool-127.0.0.{number}").mkdir()
    (folder / "gres.conf").write_text(_GPUS)
    controller_port, *node_ports = (free_port(number, nodes + 1) for number in range(nodes + 1))
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            nodes=nodes,
            controller_port=controller_port,
            node_ports=",".join(map(str, node_ports)),
        )
    )
    return configuration


@contextmanager
def _daemon(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_idle(cluster: Cluster, nodes: int, folder: Path) -> None:
    end = time.monotonic() + _START_S
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--partition=low", "--format=%D %t"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.split() == [str(nodes), "idle"]:
            return
        if time.monotonic() > end:
            logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
            raise AssertionError(f"Slurm has not started: {done.stdout}{done.stderr}\n{logs}")
        time.sleep(_POLL_S)


def _cancel_all(cluster: Cluster) -> None:
    """Kill all jobs, and wait until none is left: slurmd does not take its jobs' processes with it."""
    end = time.monotonic() + _STOP_S
    while cluster.call("squeue", "--noheader").strip() and time.monotonic() < end:
        cluster.call("scancel", "--signal=KILL", "--full", "--user=root")
        cluster.call("scancel", "--user=root")
        time.sleep(_POLL_S)
