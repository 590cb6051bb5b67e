"""Real agent processes that work on job dirs in folders with unusual names, without a supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloudgpu.protocol.jobdir import (
    JOB_KEY,
    AttemptRecord,
    Heartbeat,
    JobDir,
    JobRecord,
    NodeRecord,
    Notice,
    Result,
    Stop,
    attempt_key,
    code_key,
    local_url,
    node_key,
)
from cloudgpu.protocol.logs.format import LogLine
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.runtime.archive import pack

MARKER = "CLOUDGPU_MACHINE"


class World:
    """A job dir, and the agents that run its job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dir = JobDir(local_url(folder / "job dir"))
        self.token = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.agents: list[subprocess.Popen[bytes]] = []
        self.sha256 = ""
        self.records: list[dict[str, Any]] = []

    def job(
        self,
        run: str | list[str],
        *,
        code: dict[str, str] | None = None,
        nodes: int = 1,
        gpus: int = 0,
        failures_left: int = 0,
        interruptions_left: int | None = 0,
        heals: bool = False,
        earlier: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Write job.json, the packed code and the record of the first attempt to the job dir."""
        if code is not None:
            source = self.folder / "source"
            for name, text in code.items():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_text(text)
            packed = pack(source)
            self.dir.put(code_key(packed.sha256), packed.path)
            packed.path.unlink()
            more["code"] = packed.sha256
        data = JobRecord("job-1", "job", run, **more).to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.dir.put(JOB_KEY, data)
        self.records = [dataclasses.asdict(NodeRecord(f"worker-{i}.1", "worker", i, i, gpus)) for i in range(nodes)]
        self.attempt(1, failures_left, interruptions_left, heals=heals, earlier=earlier)

    def attempt(
        self,
        number: int,
        failures_left: int = 0,
        interruptions_left: int | None = 0,
        *,
        heals: bool = False,
        earlier: dict[str, Any] | None = None,
    ) -> None:
        """Write the record of an attempt to the job dir, where the attempt's agents read it."""
        offer = {"market": "spot", "cloud": "local"}
        record = AttemptRecord(
            number, offer, self.records, failures_left, interruptions_left, heals, earlier=earlier or {}
        )
        self.dir.put(attempt_key(number), record.to_bytes())

    def home(self, index: int = 0) -> Path:
        return self.folder / "homes" / str(index)

    def start(
        self,
        index: int = 0,
        *options: str,
        home: Path | None = None,
        attempt: int = 1,
        machine: str | None = None,
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        """Start an agent for one node."""
        command = [sys.executable, "-P", "-m", "cloudgpu.runtime.agent", "--job-dir", self.dir.url]
        command += [
            "--attempt",
            str(attempt),
            "--node",
            f"worker-{index}.1",
            "--job-sha256",
            self.sha256,
            "--host",
            "127.0.0.1",
        ]
        home = home or self.home(index)
        home.mkdir(parents=True, exist_ok=True)
        command += ["--home", str(home), *options]
        machine = machine or (f"{index}" if attempt == 1 else f"{index}-attempt-{attempt}")
        marker = f"{self.token}/{machine}"
        env = {**os.environ, MARKER: marker, "CLOUDGPU_DATABASE_URL": "postgresql://secret"}
        with (home / "agent.log").open("ab") as log:
            started = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **popen
            )
        self.agents.append(started)
        return started

    def run(self, *options: str, **popen: Any) -> Result:
        assert self.start(0, *options, **popen).wait(180) == agent_module.DONE, self.agent_log()
        return self.result()

    def result(self, index: int = 0) -> Result:
        return Result.from_bytes(self.dir.get(node_key(1, f"worker-{index}.1", "result.json")))

    def heartbeat(self, index: int = 0) -> Heartbeat | None:
        data = self.dir.find(node_key(1, f"worker-{index}.1", "heartbeat.json"))
        return None if data is None else Heartbeat.from_bytes(data)

    def has_result(self, index: int = 0) -> bool:
        return self.dir.exists(node_key(1, f"worker-{index}.1", "result.json"))

    def lines(self, **filters: Any) -> list[LogLine]:
        found: list[LogLine] = []
        cursor = None
        while True:
            lines, cursor = LogReader(self.dir).read(cursor, **filters)
            if not lines:
                return found
            found += lines

    def texts(self, stream: str = "stdout") -> list[str]:
        return [line.text for line in self.lines() if line.stream == stream]

    def agent_log(self, index: int = 0) -> str:
        return (self.home(index) / "agent.log").read_text()

    def processes(self) -> list[psutil.Process]:
        """Return the running processes that belong to this world, except zombies."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER, "").startswith(self.token) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def lose_power(self, index: int) -> None:
        """Kill all processes of a node at once, as a power failure does; its files stay."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                # The environment of a process that has just ended is empty.
                if process.environ().get(MARKER) == f"{self.token}/{index}":
                    process.kill()
        self.agents[index].wait()

    def notice(self, after_s: float) -> None:
        notice = Notice("preempt", time.time() + after_s, "test")
        self.dir.put(node_key(1, "worker-0.1", "notice.json"), notice.to_bytes())

    def stop(self, after_s: float, reason: Any = "cancel") -> None:
        self.dir.put(attempt_key(1, "stop.json"), Stop(reason, time.time() + after_s).to_bytes())


def until(condition: Callable[[], object], limit_s: float = 180.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / 'it\'s; "odd" $(x) ünï☃ %41#?'
    folder.mkdir()
    made = World(folder)
    yield made
    while left := made.processes():  # more processes may have been started meanwhile
        for process in left:
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                process.kill()
    for agent in made.agents:
        agent.wait(180)
