"""Our variables against those of the real torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Address, JobRecord, NodeRecord
from cloudgpu.runtime.launchers import ProgramContext, processes

DUMP = """
import json, os, sys
names = [name for name in os.environ if name not in json.loads(sys.argv[1])]
with open(f"{sys.argv[2]}/{os.environ['RANK']}.json", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""
NOT_OURS = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # to torchrun's own agent
}
OTHERWISE = {
    "MASTER_ADDR",
    "MASTER_PORT",  # a place to meet
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",  # torchrun's agent holds the store; ours leaves that to rank 0
    "ROLE_NAME",  # torchrun's is --role, one for all
}


def place(tmp_path: Path, *gpus: int, own: int = 0, roles: tuple[str, ...] = (), **more: int) -> ProgramContext:
    roles = roles or ("worker",) * len(gpus)
    nodes = [NodeRecord(f"{roles[rank]}-{rank}.1", roles[rank], rank, rank, count) for rank, count in enumerate(gpus)]
    return ProgramContext(JobRecord("job-1", "job", "train"), "file:///d", 2, nodes[own], nodes, tmp_path, **more)  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is missing: pip install torch")
def test_the_same_as_torchrun_sets(tmp_path: Path) -> None:
    program = tmp_path / "dump.py"
    program.write_text(DUMP)
    inherited = [name for name in os.environ if name not in ("RANK", "OMP_NUM_THREADS")]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    env = {name: os.environ[name] for name in inherited}
    subprocess.run([*command, program, json.dumps(inherited), tmp_path], env=env, check=True, timeout=120)
    theirs = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    address = {"worker-0.1": Address("127.0.0.1", 1)}
    ours = [process.env for process in processes("torchrun", place(tmp_path, 2), {}, address)]
    assert len(theirs[0]) > 15
    for their, our in zip(theirs, ours, strict=True):
        assert set(their) - set(our) == NOT_OURS
        compared = set(their) - NOT_OURS - OTHERWISE
        assert {name: our[name] for name in compared} == {name: their[name] for name in compared}
        assert all(our[name] for name in OTHERWISE)


def test_ranks_within_a_role(tmp_path: Path) -> None:
    roles = ("chief", "worker", "worker")
    address = {"chief-0.1": Address("10.0.0.1", 1)}
    rows = [
        [process.env[name] for name in ("RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")]
        for own in range(3)
        for process in processes("torchrun", place(tmp_path, 1, 2, 1, own=own, roles=roles), {}, address)
    ]
    assert rows == [
        ["0", "chief", "0", "1"],
        ["1", "worker", "0", "3"],
        ["2", "worker", "1", "3"],
        ["3", "worker", "2", "3"],
    ]


def test_restarts_are_counted(tmp_path: Path) -> None:
    where = place(tmp_path, 0, generation=3, failures=1, max_failures=5)
    (process,) = processes("torchrun", where, {}, {"worker-0.1": Address("127.0.0.1", 1)})
    names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "CLOUDGPU_GENERATION")
    assert [process.env[name] for name in names] == ["1", "5", "3"]


def test_the_machine_and_the_job_decide_on_what_is_only_a_default(tmp_path: Path) -> None:
    address = {"worker-0.1": Address("127.0.0.1", 1)}
    machine = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "OMP_NUM_THREADS": "8"}
    for process in processes("torchrun", place(tmp_path, 2), machine, address):
        assert (process.env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], process.env["OMP_NUM_THREADS"]) == ("0", "8")
