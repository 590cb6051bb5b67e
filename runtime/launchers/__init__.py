"""Launchers: functions that return the processes to start for a job on a node (docs/reference/launchers.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...protocol.jobdir import JobRecord, NodeRecord
from ..autolaunch import Choice, NodeLayout, choose
from ..processes.program import Process
from . import mpi, none, tensorflow, torchrun
from .program_context import (
    LOOPBACK,
    Addresses,
    LauncherError,
    ProgramContext,
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
    "ProgramContext",
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

    processes: Callable[[ProgramContext, Mapping[str, str], Addresses], list[Process]]
    """Returns the processes of this node."""
    rendezvous_nodes: Callable[[Sequence[NodeRecord]], Sequence[NodeRecord]]
    """Returns the nodes whose addresses every node must know."""


LAUNCHERS: dict[str, Launcher] = {
    "horovod": Launcher(mpi.horovod_processes, mpi.rendezvous_nodes),
    "mpi": Launcher(mpi.processes, mpi.rendezvous_nodes),
    "none": Launcher(none.processes, lambda _nodes: ()),
    "tensorflow": Launcher(tensorflow.processes, tensorflow.rendezvous_nodes),
    "torchrun": Launcher(torchrun.processes, torchrun.rendezvous_nodes),
}


def choose_launcher(job: JobRecord, nodes: Sequence[NodeRecord], code: Path) -> Choice:
    """Return the launcher to use and the reason. `code`: folder of the unpacked code. Raises LauncherError."""
    if job.launcher == "auto":
        shape = NodeLayout([node.role for node in nodes], [node.gpus for node in nodes])
        return choose(job.run, code, shape, job.env)
    if job.launcher not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        raise LauncherError(f"this version cannot launch with {job.launcher}, only with: {known}")
    return Choice(job.launcher, "the job says so")


def needs_addresses(launcher: str, nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """Return the nodes whose addresses every node must know; empty if the program needs no rendezvous."""
    return LAUNCHERS[launcher].rendezvous_nodes(nodes)


def processes(
    launcher: str, place: ProgramContext, machine_env: Mapping[str, str], addresses: Addresses
) -> list[Process]:
    """Return the processes of this node. `addresses`: this node's, and those of the nodes from needs_addresses()."""
    return LAUNCHERS[launcher].processes(place, machine_env, addresses)
