"""Run one node of an order on a fleet's machine: start the agent as a child process, in a temporary folder."""

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
"""Number of agent crashes after which a node fails; after fewer, the agent is restarted and resumes the node."""
PEER_S = 30.0
"""Seconds that the other nodes have to save and end when they are no longer needed, because this node has ended."""
_SERVERS = "parameter_server"
_FOLDER = "work"


class WorkError(Exception):
    """The node cannot be run on any machine; the message is the reason for the node's result."""


@dataclass(frozen=True, slots=True)
class Task(Record):
    """The node that this machine has taken, stored on its disk across reboots."""

    number: int
    node: str
    nonce: str
    time: float

    def holding(self, machine: str) -> Holding:
        """Return the record for the claim, the same at each call, so that a retry of the claim is idempotent."""
        return Holding(machine, self.nonce, self.time)


class Work:
    """A node of an order, from the download of its agent to its end. Not thread-safe; blocks only on the job dir."""

    def __init__(
        self, home: Path, machine: str, task: Task, order: Order, *, options: Sequence[str], ends: float | None
    ) -> None:
        """Prepare the work. `ends`: end of the order's lifetime, on the clock of boottime(); None: unlimited."""
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
        """Start the agent. Raises WorkError if its file is not the expected one, JobDirError, OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / REBOOTING).unlink()
        order = self._order
        line = [*self._program(), "--home", str(self._folder), "--of-fleet", *self._options]
        line += ["--job-dir", order.job_dir, "--job-sha256", order.job_sha256]
        line += ["--attempt", str(order.attempt), "--node", self._task.node]
        line += [] if self._ends is None else ["--lifetime-s", str(max(1.0, self._ends - boottime()))]
        environment = {**clean_environment(os.environ, self._home), MARKER: self._marker}
        with (self._home / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def go_down(self, *, comes_back: bool) -> None:
        """Send SIGTERM to the agent, so that the program saves and ends.

        comes_back  True if the machine reboots, after which the node resumes here
        """
        if comes_back:
            (self._folder / REBOOTING).touch()
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the agent and all processes of the node on this machine."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        kill_leftovers(self._marker)

    def ended(self) -> Freed | None:
        """Return how the node has ended; None if the agent must be restarted. Call it when the agent has exited.

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
        """Write an error result for the node, in place of the agent. Raises JobDirError."""
        now = time.time()
        result = Result("error", None, reason, now, now)
        JobDir(self._order.job_dir, make=False).create(self._key("result.json"), result.to_bytes())
        return _freed("error", reason)

    def dismiss_peers(self, freed: Freed) -> None:
        """Stop the other nodes if they are no longer needed after the end of this node. Raises JobDirError."""
        order = self._order
        job_dir = JobDir(order.job_dir, make=False)
        key = attempt_key(order.attempt, "stop.json")
        if len(order.nodes) == 1 or freed.outcome in (LOST, "stopped", "superseded") or job_dir.exists(key):
            return
        if freed.outcome == "succeeded" and not self._only_servers_left(job_dir):
            return
        job_dir.put(key, Stop("peer", time.time() + PEER_S, PEER_S).to_bytes())

    def _only_servers_left(self, job_dir: JobDir) -> bool:
        """Return whether all nodes have ended except those that never end by themselves, such as parameter servers."""
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
        """Return the command of the agent: the job's own agent file, or the member's installation if it has none."""
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
    """Delete the folder of the last node. Raises OSError."""
    if (home / _FOLDER).exists():
        shutil.rmtree(home / _FOLDER)


def clean_environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment without VIRTUAL_ENV and the path entries below `home`, which this machine's agent added.

    Jobs bring their own agent.
    """
    kept = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
    for name in ("PATH", "PYTHONPATH"):
        parts = [part for part in kept.pop(name, "").split(os.pathsep) if part and not Path(part).is_relative_to(home)]
        if parts:
            kept[name] = os.pathsep.join(parts)
    return kept


def read_task(path: Path) -> Task | None:
    """Return the node that this machine ran before it went down; None if there is none."""
    try:
        return Task.from_bytes(path.read_bytes())
    except (FileNotFoundError, JobDirError):  # missing, or truncated before the node was claimed
        return None


def write_task(path: Path, task: Task) -> None:
    """Write the task to disk, before the claim in the fleet dir. Raises OSError."""
    durable.create(path, task.to_bytes(), replace=True)


def _freed(outcome: str, reason: str) -> Freed:
    return Freed(outcome, reason, time.time())
