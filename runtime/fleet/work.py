"""One node of one order on a fleet's machine: the agent as a child process, in a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol.fleet.records import Freed, Holding, Order
from ...protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, JobDirError, Record, Result, Stop, attempt_key, node_key
from ...storage import durable
from ..agent.agent import CLAIMED, DONE, JOB_DIR_LOST, REBOOTING, STAYED, SUPERSEDED, VANISHED
from ..processes.program import MARKER, kill_leftovers
from .contact import boottime

LOST = "lost"
TRIES = 3
"""An agent that dies goes on where it was."""
PEER_S = 30.0
"""What the other nodes have to save and end, when one has ended and they are of no more use."""
_SERVERS = "parameter_server"
_FOLDER = "work"


class WorkError(Exception):
    """The node cannot be run on any machine; the message is its result's reason."""


@dataclass(frozen=True, slots=True)
class Task(Record):
    """What this machine has undertaken, as it remembers it on its disk from boot to boot."""

    number: int
    node: str
    nonce: str
    time: float

    def holding(self, machine: str) -> Holding:
        """The same whenever it is repeated."""
        return Holding(machine, self.nonce, self.time)


class Work:
    """A node of an order, from the fetching of its agent to its end. For one thread, which waits for no answer but the
    job dir's."""

    def __init__(
        self, home: Path, machine: str, task: Task, order: Order, *, options: Sequence[str], ends: float | None
    ) -> None:
        """`ends`: when the order's life does, on the clock of boottime(); None: it is not limited."""
        self._ends = ends
        self._folder = home / _FOLDER
        self._home, self._task, self._order, self._options = home, task, order, options
        self._marker = f"{machine}/{task.number:08d}/{task.node}"
        self._agent: subprocess.Popen[bytes] | None = None
        self._deaths = 0

    @property
    def task(self) -> Task:
        return self._task

    @property
    def is_on(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def start(self) -> None:
        """Raises WorkError, JobDirError, OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / REBOOTING).unlink()
        order = self._order
        line = [*self._program(), "--home", str(self._folder), "--of-fleet", *self._options]
        line += ["--job-dir", order.job_dir, "--job-sha256", order.job_sha256]
        line += ["--attempt", str(order.attempt), "--node", self._task.node]
        line += [] if self._ends is None else ["--lifetime-s", str(max(1.0, self._ends - boottime()))]
        environment = {**without(os.environ, self._home), MARKER: self._marker}
        with (self._home / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def go_down(self, *, comes_back: bool) -> None:
        """The machine goes: so the agent is told, which lets the program save."""
        if comes_back:
            (self._folder / REBOOTING).touch()
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Everything of it on this machine, at once."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        kill_leftovers(self._marker)

    def ended(self) -> Freed | None:
        """How the node has ended, now that its agent has; None: the agent is to be started again.

        Raises JobDirError.
        """
        code = self._agent.poll() if self._agent is not None else DONE
        kill_leftovers(self._marker)
        job_dir = JobDir(self._order.job_dir, make=False)
        result = Result.read(job_dir, self._key("result.json"))
        if result is not None:
            return _freed(LOST if result.outcome == "preempted" else result.outcome, result.reason)
        if code == SUPERSEDED:
            return _freed("superseded", "a newer attempt has begun")
        if code in (CLAIMED, VANISHED):
            return _freed(LOST, f"the agent has ended with exit code {code}")
        if code == JOB_DIR_LOST:
            there = job_dir.exists(JOB_KEY)
            return _freed(LOST if there else "error", f"the job dir {'could not be reached' if there else 'is gone'}")
        self._deaths += code != STAYED
        if self._deaths < TRIES:
            return None
        return self.give_up(f"the agent died {TRIES} times, at last with exit code {code}")

    def give_up(self, reason: str) -> Freed:
        """Say in the job dir that the node has ended, where the agent could not. Raises JobDirError."""
        now = time.time()
        result = Result("error", None, reason, now, now)
        JobDir(self._order.job_dir, make=False).create(self._key("result.json"), result.to_bytes())
        return _freed("error", reason)

    def dismiss_peers(self, freed: Freed) -> None:
        """Tell the other nodes to end, where this one's end leaves them nothing to do. Raises JobDirError."""
        order = self._order
        job_dir = JobDir(order.job_dir, make=False)
        key = attempt_key(order.attempt, "stop.json")
        if len(order.nodes) == 1 or freed.outcome in (LOST, "stopped", "superseded") or job_dir.exists(key):
            return
        if freed.outcome == "succeeded" and not self._only_servers_left(job_dir):
            return
        job_dir.put(key, Stop("peer", time.time() + PEER_S, PEER_S).to_bytes())

    def _only_servers_left(self, job_dir: JobDir) -> bool:
        """Those that never end by themselves."""
        attempt = AttemptRecord.read(job_dir, attempt_key(self._order.attempt))
        nodes = [] if attempt is None else attempt.nodes
        roles = {node["role"] for node in nodes}
        serving = {_SERVERS, "worker"} if "chief" in roles else {_SERVERS}
        if _SERVERS not in roles:
            return False
        ended = [
            node["node"] for node in nodes if job_dir.exists(node_key(self._order.attempt, node["node"], "result.json"))
        ]
        return all(node["node"] in ended for node in nodes if node["role"] not in serving)

    def _key(self, name: str) -> str:
        return node_key(self._order.attempt, self._task.node, name)

    def _program(self) -> Sequence[str]:
        """What is run: the agent that came with the job, or, if none did, the member's own."""
        order = self._order
        if not order.agent_key:
            return [sys.executable, "-P", "-m", "cloudgpu.runtime.agent"]
        file = self._folder / "agent.pyz"
        if not file.exists():
            partial = self._folder / "agent.partial"
            JobDir(order.job_dir, make=False).download(order.agent_key, partial)
            found = hashlib.sha256(partial.read_bytes()).hexdigest()
            if found != order.agent_sha256:
                raise WorkError(f"the agent file {order.agent_key} is not the one that was sent: its sha256 is {found}")
            partial.replace(file)
        return [sys.executable, "-I", str(file)]


def clean(home: Path) -> None:
    """Nothing of a job stays behind. Raises OSError."""
    if (home / _FOLDER).exists():
        shutil.rmtree(home / _FOLDER)


def without(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment as it was before this machine's own agent file put itself into it: jobs bring their own."""
    kept = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
    for name in ("PATH", "PYTHONPATH"):
        parts = [part for part in kept.pop(name, "").split(os.pathsep) if part and not Path(part).is_relative_to(home)]
        if parts:
            kept[name] = os.pathsep.join(parts)
    return kept


def remembered(path: Path) -> Task | None:
    """What this machine had undertaken before it went down."""
    try:
        return Task.from_bytes(path.read_bytes())
    except (FileNotFoundError, JobDirError):  # none, or cut off: then it had not been begun
        return None


def remember(path: Path, task: Task) -> None:
    """It is on disk before it is anywhere else. Raises OSError."""
    durable.create(path, task.to_bytes(), replace=True)


def _freed(outcome: str, reason: str) -> Freed:
    return Freed(outcome, reason, time.time())
