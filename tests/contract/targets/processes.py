"""Stand-ins for the targets `local` and `shed`
(docs/guides/adding-a-target.md): agents as processes on this computer."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from cloudgpu.jobspecs import targets
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobRecord, NodeRecord, attempt_key, local_url
from cloudgpu.provisioners import LaunchRequest, Provisioner
from cloudgpu.provisioners.local.machine import kill_marked, marked
from cloudgpu.provisioners.local.provisioner import LocalProvisioner
from cloudgpu.tests.standins.clocks import FastClock

from .standin import TIMEOUT_S, Standin, until

OUTSIDE = Path(__file__).parent.parent / "outside"
MODULE = "cloudgpu.runtime.agent"


class LocalStandin(Standin):
    target, region = "local", "local"
    machine_type, accelerator, job_dir = "local", None, ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "home" / self.target
        self.tokens: list[str] = []
        self.environ["CLOUDGPU_LOCAL_SLOTS"] = "64"
        self.stack.callback(self.clear)

    def reset(self, patch: pytest.MonkeyPatch) -> None:
        self.clear()
        super().reset(patch)

    def clear(self) -> None:
        """Kill all agents and their programs, and delete their folders."""
        for token in self.tokens:
            for pid in self.agents(token):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
            kill_marked(f"{token}/", TIMEOUT_S)
        self.tokens.clear()
        shutil.rmtree(self.root, ignore_errors=True)

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return LocalProvisioner(self.root)

    def request(self, *names: str, **changes: Any) -> LaunchRequest:
        asked = super().request(*names, **{"zone": None, "lifetime_s": None, "agent": None, **changes})
        job_dir = JobDir(local_url(self.folder / asked.job_id))
        record = JobRecord(asked.job_id, "job", "sleep 300").to_bytes()
        nodes = [dataclasses.asdict(NodeRecord(one.node, one.role, one.index, one.rank, 0)) for one in asked.nodes]
        job_dir.put(JOB_KEY, record)
        job_dir.put(attempt_key(1), AttemptRecord(1, {}, nodes).to_bytes())
        self.tokens.append(asked.token)
        return dataclasses.replace(asked, job_dir=job_dir.url, job_sha256=hashlib.sha256(record).hexdigest())

    def agents(self, token: str) -> list[int]:
        return [pid for pid in marked(f"{token}/") if MODULE in psutil.Process(pid).cmdline()]

    def alive(self) -> int:
        return sum(len(self.agents(token)) for token in self.tokens)

    def started(self) -> int:
        return len([1 for token in self.tokens for _ in (self.root / token).glob("*/agent.log")])

    def left(self) -> object:
        return [pid for token in self.tokens for pid in marked(f"{token}/")]

    def crash(self, machine: str) -> None:
        until((self.root / machine / "started").exists)  # an agent that has not started yet would be started again
        for pid in marked(machine):
            if MODULE in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)


class ShedStandin(LocalStandin):
    target, region = "shed", "garden"

    def __enter__(self) -> Self:
        self.environ |= {"PYTHONPATH": str(OUTSIDE), "SHED_KEY": "under the mat"}
        sys.path.insert(0, str(OUTSIDE))
        self.stack.callback(sys.path.remove, str(OUTSIDE))
        _forget_entry_points()  # another test of this process may have read them before
        self.stack.callback(_forget_entry_points)
        return self

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        made: Provisioner = importlib.import_module("shed.provisioner").Shed()
        return made

    def agents(self, token: str) -> list[int]:
        found = []
        for path in (self.root / token).glob("*/pid"):
            pid = int(path.read_text() or "0")
            if pid and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        return found

    def started(self) -> int:
        return len([1 for token in self.tokens for _ in (self.root / token).glob("*/pid")])

    def left(self) -> object:
        return [pid for token in self.tokens for pid in self.agents(token)]

    def crash(self, machine: str) -> None:
        os.kill(int((self.root / machine / "pid").read_text()), signal.SIGKILL)


def _forget_entry_points() -> None:
    targets._entries.cache_clear()
    targets._from_entry_point.cache_clear()
