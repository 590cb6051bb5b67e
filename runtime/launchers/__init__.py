"""From a job and a node to the processes to start: one table of launchers (docs/launchers.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..jobdir import JobRecord, NodeRecord
from ..program import Process
from . import mpi, none, tensorflow, torchrun
from .place import (
    LOOPBACK,
    Addresses,
    LauncherError,
    Place,
    command_line,
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
    "command_line",
    "free_port",
    "launcher_name",
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


def launcher_name(job: JobRecord, nodes: Sequence[NodeRecord]) -> str:
    """The launcher to use: `auto` is torchrun as soon as there is more than one process. Raises LauncherError."""
    name = job.launcher
    if name == "auto":
        name = "torchrun" if len(nodes) > 1 or any(node.gpus > 1 for node in nodes) else "none"
    if name not in LAUNCHERS:
        raise LauncherError(f"this version cannot launch with {name}, only with: {', '.join(sorted(LAUNCHERS))}")
    return name


def needs_addresses(launcher: str, nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """The nodes that every node must be able to reach; empty: none needs another."""
    return LAUNCHERS[launcher].told(nodes)


def processes(launcher: str, place: Place, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """The processes of this node. `addresses`: its own, and of all that needs_addresses() names."""
    return LAUNCHERS[launcher].processes(place, machine_env, addresses)
