"""From a job and a node to the processes to start: one table of launchers (docs/reference/launchers.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...protocol.jobdir import JobRecord, NodeRecord
from ..autolaunch import Choice, Shape, choose
from ..processes.program import Process
from . import mpi, none, tensorflow, torchrun
from .program_context import (
    LOOPBACK,
    Addresses,
    LauncherError,
    Place,
    command_line,
    environment,
    free_port,
    machine_environment,
    own_host,
    setup_process,
)

__all__ = [
    "LOOPBACK",
    "Addresses",
    "LauncherError",
    "Place",
    "choose_launcher",
    "command_line",
    "environment",
    "free_port",
    "machine_environment",
    "needs_addresses",
    "own_host",
    "processes",
    "setup_process",
]


class Launcher(NamedTuple):
    """One way to start a program."""

    processes: Callable[[Place, Mapping[str, str], Addresses], list[Process]]
    """The processes of this node."""
    told: Callable[[Sequence[NodeRecord]], Sequence[NodeRecord]]
    """The nodes whose addresses every node must know."""


LAUNCHERS: dict[str, Launcher] = {
    "horovod": Launcher(mpi.horovod_processes, mpi.told),
    "mpi": Launcher(mpi.processes, mpi.told),
    "none": Launcher(none.processes, lambda _nodes: ()),
    "tensorflow": Launcher(tensorflow.processes, tensorflow.told),
    "torchrun": Launcher(torchrun.processes, torchrun.told),
}


def choose_launcher(job: JobRecord, nodes: Sequence[NodeRecord], code: Path) -> Choice:
    """The launcher to use, and why; `code` is the unpacked code. Raises LauncherError."""
    if job.launcher == "auto":
        shape = Shape([node.role for node in nodes], [node.gpus for node in nodes])
        return choose(job.run, code, shape, job.env)
    if job.launcher not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        raise LauncherError(f"this version cannot launch with {job.launcher}, only with: {known}")
    return Choice(job.launcher, "the job says so")


def needs_addresses(launcher: str, nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """The nodes that every node must be able to reach; empty: none needs another."""
    return LAUNCHERS[launcher].told(nodes)


def processes(launcher: str, place: Place, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """The processes of this node. `addresses`: its own, and of all that needs_addresses() names."""
    return LAUNCHERS[launcher].processes(place, machine_env, addresses)
