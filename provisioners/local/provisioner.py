"""Provisioner of the target `local`: every node is a separate agent process on this machine. See docs/guides/local.md.

    <home>/local/<token>/allocation.json      the allocation and its owner
    <home>/local/<token>/<node>/              the machine: lock, started, agent.log, code/, state/
    <home>/local/<token>/ending, ended        terminate() has begun, is done: launch() starts no more agents here
    <home>/local/guards/<token>, gpus/, slots/    locks

State is derived from kernel locks: an agent holds the locks of its machine, its GPUs and its job's slots as long as it
runs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from ...jobspecs.home import home, private
from ...jobspecs.plan import CPU, LocalMachine, Offer
from ...storage import durable
from ..base import Allocation, LaunchRequest, NodeRequest, NodeState, Owner, ProvisionError
from .gpus import find_gpus, hold, shortage
from .machine import Machine, kill_marked, launch_lock, marked, reap_agents
from .node_slots import cores, hold_slots, slot_shortage, slots_of

TARGET = "local"
PRICE_VARIABLE = "CLOUDGPU_LOCAL_PRICE"
"""Environment variable with the cost of this machine to its owner, in US dollars an hour."""
_MOST_PRICE = Decimal(1_000_000)
"""Largest valid price in US dollars an hour; a larger one is a typing error, and too long for sums to the cent."""

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_KILL_S = 10.0
_LEFTOVERS_S = 2.0
_KEPT_S = 7 * 86_400.0  # logs of ended machines are kept for this time


class LocalProvisioner:
    """Provisioner whose machines are processes. State is in folders and locks only: any process may call any method at
    any time."""

    def __init__(self, root: Path | None = None, *, agent_options: Sequence[str] = ()) -> None:
        self._root = home() / TARGET if root is None else root
        self._agent_options = agent_options

    def launch(self, request: LaunchRequest) -> Allocation:
        """Start an agent per node; GPUs and slots are allocated for all nodes or none. Idempotent.

        An ended machine is not restarted.
        """
        allocation = Allocation(
            TARGET,
            request.job_id,
            request.attempt,
            request.token,
            {node.node: f"{request.token}/{node.node}" for node in request.nodes},
        )
        folder = self._folder(request.token)
        with translate_errors("start the machines"), self._guard(request.token):
            if (folder / "ending").exists():
                return allocation
            self._prune()
            with contextlib.ExitStack() as stack:
                stack.callback(_delete_if_unstarted, folder)
                waiting = self._to_start(request, stack)
                gpus = stack.enter_context(hold([node for node, *_ in waiting], request.nodes, self._root / "gpus"))
                # Other agents hold the slots of a launch that continues, or that replaces lost nodes.
                count = slots_of(request.nodes) if len(waiting) == len(request.nodes) else 0
                slots = stack.enter_context(hold_slots(count, self._root / "slots"))
                _write(folder / "allocation.json", {"owner": request.owner.name, "allocation": allocation.to_json()})
                for node, machine, lock in waiting:
                    held = gpus[node.node]
                    inherited = [lock, *held.descriptors, *slots]
                    machine.start(request, node.node, held.uuids, inherited, self._agent_options)
        return allocation

    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return each node's state: whether its agent runs. The remaining processes of a crashed agent are killed."""
        with translate_errors("look at the machines"), self._guard(allocation.token):
            reap_agents()
            return [self._observe(allocation.token, node) for node in allocation.machines]

    def terminate(self, allocation: Allocation) -> None:
        """Kill all processes of all nodes; return when none is left. Raises ProvisionError if some do not end."""
        folder = self._folder(allocation.token)
        with translate_errors("end the machines"), self._guard(allocation.token):
            if (folder / "ended").exists():
                return
            try:
                private(folder)
                (folder / "ending").touch()
            finally:  # processes are killed even if the disk is full; terminate() must then be retried
                left = kill_marked(f"{allocation.token}/", _KILL_S)
            if left:
                raise _kill_error(left)
            for node in allocation.machines:
                self._machine(allocation.token, node).clean()
            (folder / "ended").touch()

    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Kill all processes of these nodes. Raises ProvisionError if some do not end."""
        with translate_errors("end the machines"), self._guard(allocation.token):
            left = [pid for node in nodes for pid in kill_marked(f"{allocation.token}/{node}", _KILL_S)]
        if left:
            raise _kill_error(left)

    def shortage(self, nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
        """Return which GPUs or slots the nodes lack if jobs ahead in the queue get theirs first; "": none."""
        with translate_errors("look at the GPUs and slots"):
            return shortage(nodes, ahead) or slot_shortage(nodes, ahead.get(CPU, 0), self._root / "slots")

    def find(self, owner: Owner) -> list[Allocation]:
        """Return the owner's launches that have not been terminated; those with an unreadable allocation.json are left
        out."""
        found = []
        for path in sorted(self._root.glob("*/allocation.json")):
            if (path.parent / "ended").exists():
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                value = json.loads(path.read_bytes())
                if value["owner"] == owner.name:
                    found.append(Allocation.from_json(value["allocation"]))
        return found

    def account(self) -> str:
        """Return "": this target has no accounts."""
        return ""

    def check_account(self, account: str) -> None:
        """No-op: this target has no accounts."""

    def price(self, offer: Offer) -> Decimal | None:  # noqa: ARG002 - the protocol's
        """Return None: the price does not change after planning."""
        return None

    def _to_start(
        self, request: LaunchRequest, stack: contextlib.ExitStack
    ) -> Sequence[tuple[NodeRequest, Machine, int]]:
        """Return the nodes that were never started, each with its machine and lock; the stack releases the locks."""
        waiting = []
        for node in request.nodes:
            machine = self._machine(request.token, node.node)
            lock = machine.try_lock()
            if lock is None:
                continue
            stack.callback(os.close, lock)
            if not machine.started:
                waiting.append((node, machine, lock))
        return waiting

    def _observe(self, token: str, node: str) -> NodeState:
        machine = self._machine(token, node)
        if machine.is_running():
            return NodeState(node, "running")
        if not (self._folder(token) / "ended").exists() and marked(machine.marker):
            left = kill_marked(machine.marker, _LEFTOVERS_S)
            if left:
                return NodeState(node, "running", f"the agent is dead; processes {left} do not end")
        return NodeState(node, "gone", machine.last_log_line())

    def _prune(self) -> None:
        """Delete folders of launches that ended more than _KEPT_S ago."""
        for ended in self._root.glob("*/ended"):
            with contextlib.suppress(OSError):
                if time.time() - ended.stat().st_mtime > _KEPT_S:
                    shutil.rmtree(ended.parent)
                    (self._root / "guards" / ended.parent.name).unlink()

    def _folder(self, token: str) -> Path:
        return self._root / token

    def _machine(self, token: str, node: str) -> Machine:
        return Machine(self._folder(token) / node, f"{token}/{node}")

    def _guard(self, token: str) -> contextlib.AbstractContextManager[None]:
        return launch_lock(self._root / "guards" / token)


def _kill_error(processes: Sequence[int]) -> ProvisionError:
    pids = ", ".join(map(str, processes))
    return ProvisionError("transient", f"processes {pids} were killed {_KILL_S:.0f} s ago, but do not end")


def inspect_machine() -> LocalMachine:
    """Return this machine's CPUs (that this process may use), memory, GPUs and hourly price. Raises ProvisionError."""
    return LocalMachine(
        cpus=cores(),
        memory_gb=round(_memory_bytes() / 1e9, 1),
        gpus=find_gpus(),
        price=_price(),
    )


def _memory_bytes() -> int:
    """Return the memory of the machine, or the container's limit if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(limit.read_text()))
    return total


def _price() -> Decimal:
    text = os.environ.get(PRICE_VARIABLE, "0")
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or not 0 <= price <= _MOST_PRICE:
        expected = f"expected US dollars per hour such as 1.50, at most {_MOST_PRICE:,}"
        raise ProvisionError("invalid", f"{PRICE_VARIABLE}={text}: {expected}")
    return price


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Context manager: translate OSError to ProvisionError. Permission errors are `invalid`, others (e.g. a full disk)
    `transient`."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"cannot {doing}: {where}{error.strerror or error}"
        raise ProvisionError("invalid" if error.errno in _FORBIDDEN else "transient", message) from error


def _delete_if_unstarted(folder: Path) -> None:
    """Delete the folder of a launch that was refused before it started an agent."""
    if not (folder / "allocation.json").exists():
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, value: object) -> None:
    durable.write(path, json.dumps(value).encode())
