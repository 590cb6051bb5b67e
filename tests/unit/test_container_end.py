"""The exit of a container of a Vertex AI job: it is delayed, because it would stop containers that still work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from cloudgpu.provisioners.boot.files import boot_files
from cloudgpu.provisioners.boot.record import BootRecord

WORKERS = {"workerpool0": ["worker-0.1"], "workerpool1": ["worker-1.1", "worker-2.1"]}
SERVERS = {
    "workerpool0": ["chief-0.1"],
    "workerpool1": ["worker-0.1"],
    "workerpool2": ["parameter_server-0.1"],
    "workerpool3": ["evaluator-0.1"],
}
PATIENT_S = 180.0
QUIET_S = 1.5
# Each node writes its result to a file in `results` that has the node's name.
PROGRAM = """
import json, pathlib, sys, host_container as host
host.PAUSE_S, host.OTHERS_S = 0.1, float(sys.argv[3])
results = pathlib.Path(sys.argv[1])
print("ready", flush=True)
record = json.loads(pathlib.Path("boot.json").read_text())
host.Host(record).end(False, lambda: int(sys.argv[2]), lambda node: (results / node).exists())
"""


class Node:
    """The end of one container, run in a separate process with the files of the bootstrap."""

    def __init__(self, folder: Path, pools: Mapping[str, Sequence[str]], pool: str, code: int, others_s: float) -> None:
        home, self.results = folder / "home", folder / "results"
        for one in (home, self.results):
            one.mkdir()
        record = BootRecord("gs://b/j", "j", 1, "", "0" * 64, "agent/a", "a" * 64, "us-central1", cloud="vertex")
        for name, data in boot_files(record, pools).items():
            (home / name).write_bytes(data)
        (home / "program.py").write_text(PROGRAM)
        cluster = json.dumps({"task": {"type": pool, "index": 0}})
        line = [sys.executable, "program.py", str(self.results), str(code), str(others_s)]
        self.process = subprocess.Popen(
            line, cwd=home, env={**os.environ, "CLUSTER_SPEC": cluster}, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def waits(self) -> bool:
        """Return True if the process still runs after QUIET_S seconds."""
        time.sleep(QUIET_S)
        return self.process.poll() is None

    def write(self, *nodes: str) -> None:
        for node in nodes:
            (self.results / node).touch()

    def code(self) -> int:
        return self.process.wait(PATIENT_S)


Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda pools, pool, code, others_s=PATIENT_S: Node(tmp_path, pools, pool, code, others_s)


def test_the_primary_replica_waits_for_the_others_to_succeed(make: Make) -> None:
    node = make(WORKERS, "workerpool0", 0)
    node.write("worker-1.1")
    assert node.waits()
    node.write("worker-2.1")
    assert node.code() == 0


def test_other_replicas_do_not_wait(make: Make) -> None:
    assert make(WORKERS, "workerpool1", 0).code() == 0


def test_what_serves_never_ends_by_itself_and_is_not_waited_for(make: Make) -> None:
    node = make(SERVERS, "workerpool0", 0)
    assert node.waits()
    node.write("evaluator-0.1")
    assert node.code() == 0


def test_a_failure_waits_until_all_have_stopped(make: Make) -> None:
    node = make(SERVERS, "workerpool1", 3)
    node.write("chief-0.1", "evaluator-0.1")
    assert node.waits()
    node.write("parameter_server-0.1")
    assert node.code() == 3


def test_a_failure_does_not_wait_for_ever(make: Make) -> None:
    assert make(WORKERS, "workerpool1", 3, 0.5).code() == 3


def test_sigterm_ends_the_waiting(make: Make) -> None:
    node = make(WORKERS, "workerpool0", 0)
    assert node.waits()
    node.process.send_signal(signal.SIGTERM)
    assert node.code() == 0


def test_a_node_alone_waits_for_nobody(make: Make) -> None:
    assert make({"workerpool0": ["worker-0.1"]}, "workerpool0", 3).code() == 3
