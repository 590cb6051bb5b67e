"""Provisioner of the shed. All state is in files, so any process may call any method at any time.

<home>/shed/<token>/allocation.json     the allocation and its owner
<home>/shed/<token>/<node>/pid          PID of the agent
<home>/shed/<token>/lock                held by a launch; another with the same token waits for it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path

import psutil

from cloudgpu.jobspecs.home import home, private
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.sealed_secrets import PASS_VARIABLE
from cloudgpu.provisioners.base import Allocation, LaunchRequest, NodeState, Owner, TerminateResult

_END_S = 20.0
_agents: list[subprocess.Popen[bytes]] = []
"""Agents started by this process, which must reap them."""


def has_key() -> bool:
    """Return whether the shed's key is set."""
    return bool(os.environ.get("SHED_KEY"))


class Shed:
    """Provisioner that runs each node as an agent process."""

    def launch(self, request: LaunchRequest) -> Allocation:
        """Start an agent for each node that was never started. Idempotent."""
        machines = {node.node: f"{request.token}/{node.node}" for node in request.nodes}
        allocation = Allocation("shed", request.job_id, request.attempt, request.token, machines)
        folder = private(_root() / request.token)
        value = {"owner": request.owner.name, "allocation": allocation.to_json()}
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "allocation.json").write_text(json.dumps(value))
            for node in request.nodes:
                if not (folder / node.node / "pid").exists():
                    _start(request, node.node, private(folder / node.node))
        return allocation

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return the state of each node, by whether its agent runs."""
        return [
            NodeState(node, "running" if _process(allocation, node) else "gone", "its agent's process")
            for node in allocation.machines
        ]

    def terminate(self, allocation: Allocation) -> TerminateResult | None:
        """End all agents and, with them, their programs."""
        self.remove(allocation, list(allocation.machines))
        (_root() / allocation.token / "allocation.json").unlink(missing_ok=True)
        return None

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """End some of the agents."""
        running = [process for node in nodes if (process := _process(allocation, node))]
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        stubborn = psutil.wait_procs(running, _END_S)[1]
        for process in stubborn:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        psutil.wait_procs(stubborn, _END_S)

    def find(self, owner: Owner) -> list[Allocation]:
        """Return the allocations of an owner that were launched and not terminated."""
        values = [json.loads(path.read_text()) for path in _root().glob("*/allocation.json")]
        return [Allocation.from_json(value["allocation"]) for value in values if value["owner"] == owner.name]

    def account(self) -> str:
        """Return "": the shed has no accounts."""
        return ""

    def check_account(self, account: str) -> None:
        """Accept any account: the shed has none."""

    def price(self, offer: Offer) -> Decimal | None:
        """Return None: the plan's price is not updated."""


def _root() -> Path:
    return home() / "shed"


def _start(request: LaunchRequest, node: str, folder: Path) -> None:
    command = [sys.executable, "-m", "cloudgpu.runtime.agent", "--job-dir", request.job_dir]
    command += ["--attempt", str(request.attempt), "--node", node, "--job-sha256", request.job_sha256]
    command += ["--home", str(folder), "--host", "127.0.0.1"]
    env = {**os.environ, PASS_VARIABLE: request.secrets_pass}
    with (folder / "agent.log").open("ab") as log:
        agent = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    (folder / "pid").write_text(str(agent.pid))
    _agents.append(agent)


def _process(allocation: Allocation, node: str) -> psutil.Process | None:
    """Return the agent's process; None if it has ended."""
    for agent in _agents:
        agent.poll()
    folder = _root() / allocation.token / node
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int((folder / "pid").read_text()))
        command = process.cmdline()  # empty while the process is being started
        if not command or str(folder) in command:
            return process
    return None
