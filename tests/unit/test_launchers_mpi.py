"""Arguments of mpirun, and environment variables of a rank besides those of Open MPI. Runs no MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Address, JobDir, JobRecord, NodeRecord, local_url, node_key
from cloudgpu.runtime.launchers import ProgramContext, mpi, mpi_daemon, mpi_rsh, processes
from cloudgpu.runtime.processes.program import Process

ADDRESS = {"worker-0.1": Address("10.0.0.1", 20_123)}


def place(*gpus: int, own: int = 0, **job: object) -> ProgramContext:
    nodes = [NodeRecord(f"worker-{rank}.1", "worker", rank, rank, count) for rank, count in enumerate(gpus)]
    record = JobRecord("job-1", "job", "train", **job)  # type: ignore[arg-type]
    return ProgramContext(record, "file:///d", 2, nodes[own], nodes, Path("/home/state"))


def ranks(launcher: str, where: ProgramContext) -> list[Process]:
    return [process for process in processes(launcher, where, {}, ADDRESS) if process.rank is not None]


def test_each_node_has_a_daemon_and_its_ranks() -> None:
    for own, role in ((0, "mpirun"), (1, "orted")):
        daemon, *others = processes("mpi", place(2, 1, own=own), {}, ADDRESS)
        assert (daemon.rank, daemon.command[-1]) == (None, role)
        assert [process.rank for process in others] == ([0, 1] if own == 0 else [2])


def test_hosts_are_named_by_rank_for_several_may_have_one_address() -> None:
    assert mpi.hostfile(place(2, 0, 4).nodes) == (
        "localhost slots=2\ncloudgpu-node-1 slots=1\ncloudgpu-node-2 slots=4\n"
    )


def test_a_rank_has_the_variables_of_torchrun() -> None:
    (first, second) = ranks("mpi", place(0, 2, own=1))
    assert [first.env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")] == [
        *("1", "0", "3", "2", "1")
    ]
    assert (second.env["MASTER_ADDR"], second.env["MASTER_PORT"]) == ("10.0.0.1", "20123")
    assert "TORCHELASTIC_RUN_ID" not in first.env


def test_horovods_variables() -> None:
    names = [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")]
    rows = [
        [process.env[name] for name in names]
        for own in range(3)
        for process in ranks("horovod", place(2, 1, 2, own=own))
    ]
    assert rows == [
        ["0", "5", "0", "2", "0", "3"],
        ["1", "5", "1", "2", "0", "2"],
        ["2", "5", "0", "1", "1", "3"],
        ["3", "5", "0", "2", "2", "3"],
        ["4", "5", "1", "2", "1", "2"],
    ]
    (own_choice,) = ranks("horovod", place(0, env={"HOROVOD_CPU_OPERATIONS": "gloo"}))
    assert (own_choice.env["HOROVOD_CONTROLLER"], own_choice.env["HOROVOD_CPU_OPERATIONS"]) == ("mpi", "gloo")


def test_the_job_may_change_open_mpis_settings() -> None:
    env = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_hwloc_base_binding_policy": "core"}
    daemon, rank = processes("mpi", place(0, env=env), {"OMPI_MCA_btl": "machine"}, ADDRESS)
    for process in (daemon, rank):
        assert (process.env["OMPI_MCA_btl"], process.env["OMPI_MCA_hwloc_base_binding_policy"]) == ("self,tcp", "core")


def test_the_loopback_alone_is_used_on_one_machine() -> None:
    here = {"worker-0.1": Address("127.0.0.1", 1)}
    names = {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"}
    assert names <= set(processes("mpi", place(0, 0), {}, here)[0].env)
    assert not names & set(processes("mpi", place(0, 0), {}, ADDRESS)[0].env)


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """Return a job dir, and set the variables that lead a daemon's process to it."""
    made = JobDir(local_url(tmp_path / "job dir"))
    made.put("job.json", b"{}")
    variables = {
        "CLOUDGPU_JOB_DIR": made.url,
        "CLOUDGPU_ATTEMPT": "1",
        "CLOUDGPU_GENERATION": "2",
        "CLOUDGPU_MPI_NODES": '{"cloudgpu-node-1": "worker-1.1"}',
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return made


def test_the_remote_shell_leaves_the_command_in_the_job_dir(job_dir: JobDir) -> None:
    quoted = [" orted", "-mca", "ess", '"env"', "-mca", "orte_hnp_uri", '"1.0;tcp://10.0.0.1:4"']
    assert mpi_rsh.main(["cloudgpu-node-1", *quoted]) == 0
    written = json.loads(job_dir.get(node_key(1, "worker-1.1", "mpi-2.json")))
    assert written == ["orted", "-mca", "ess", "env", "-mca", "orte_hnp_uri", "1.0;tcp://10.0.0.1:4"]


def test_the_remote_shell_knows_this_jobs_nodes_only(job_dir: JobDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert mpi_rsh.main(["example.com", "orted"]) == 1
    assert "example.com, which is no node of this job" in capsys.readouterr().err
    assert job_dir.list("attempts") == []


@pytest.mark.parametrize(
    ("written", "reason"),
    [(b'["sh", "-c", "x"]', "mpirun asked for ['sh'], expected orted"), (b"[", "is no command: Expecting value")],
)
def test_nothing_but_a_daemon_is_started(job_dir: JobDir, tmp_path: Path, written: bytes, reason: str) -> None:
    job_dir.put(node_key(1, "worker-1.1", "mpi-2.json"), written)
    program = tmp_path / "bin" / "orted"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "CLOUDGPU_NODE": "worker-1.1",
        "CLOUDGPU_MPI_FOLDER": str(tmp_path / "meeting"),
        "CLOUDGPU_MPI_RANKS": "1",
    }
    command = [sys.executable, "-P", "-m", mpi_daemon.__name__, "orted"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
