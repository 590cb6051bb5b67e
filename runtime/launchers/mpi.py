"""The launchers `mpi` and `horovod`: mpirun creates the MPI world, but the agents start its ranks.

Usually, mpirun on rank 0's node starts a daemon (orted) on every other node by ssh, and each daemon starts the ranks of
its node. Here:

* A daemon is started without ssh. mpirun's remote shell is mpi_rsh.py, which writes the daemon's command line to the
  job dir; mpi_daemon.py, a process of the other node's agent, reads it there and runs it.
* The process that a daemon starts as a rank is mpi_stub.py. It passes the rank's variables to the process that the
  agent has started for this rank (mpi_rank.py, which becomes the user's program), and ends when that process has ended.

So each rank is a child of its agent, as with `torchrun`: its output, exit code and signals are handled in the same way.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...protocol.jobdir import NodeRecord
from ..processes.program import Process
from . import torchrun
from .program_context import LOOPBACK, Addresses, ProgramContext, environment, program_process
from .torchrun import Layout

rendezvous_nodes = torchrun.rendezvous_nodes

_ALIAS = "cloudgpu-node-"
"""Prefix of the names that mpirun uses for nodes; addresses are not unique if several nodes are on one machine."""

_MCA = {
    "plm_rsh_agent": 'sh -c eval${IFS}"$CLOUDGPU_MPI_RSH"',  # no blanks or colons, at which mpirun would split it
    "plm_rsh_no_tree_spawn": "1",  # mpirun starts all daemons itself
    "orte_leave_session_attached": "1",  # a daemon stays a child of its agent
    "hwloc_base_binding_policy": "none",  # bound to one core, a rank would starve its data loader's workers
    "rmaps_base_mapping_policy": "slot",  # numbers ranks over the nodes in order, like RANK
    "if_base_do_not_resolve": "1",  # the names are aliases that no name server can resolve
}
_ONE_MACHINE = {
    "oob_tcp_if_include": "127.0.0.0/8",
    "btl_tcp_if_include": "127.0.0.0/8",
    "mpi_yield_when_idle": "1",  # otherwise ranks that wait in a busy loop would take all of the CPU
}


def processes(place: ProgramContext, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """Return the process of this node's daemon and those of its ranks."""
    return _processes(place, machine_env, addresses, lambda _layout, _local: {})


def horovod_processes(place: ProgramContext, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """Return the same processes as processes(), with Horovod's variables; hvd.init() reads ranks and size from MPI."""
    machine = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi", **machine_env}
    return _processes(place, machine, addresses, _horovod_variables)


def alias(node: NodeRecord) -> str:
    """Return the name of a node in mpirun."""
    return f"{_ALIAS}{node.rank}"


def hostfile(nodes: Sequence[NodeRecord]) -> str:
    """Return the content of mpirun's hostfile; the first node is `localhost`, where mpirun runs."""
    hosts = ["localhost", *(alias(node) for node in nodes[1:])]
    return "".join(f"{host} slots={torchrun.local_size(node)}\n" for host, node in zip(hosts, nodes, strict=True))


def _processes(
    place: ProgramContext,
    machine_env: Mapping[str, str],
    addresses: Addresses,
    more: Callable[[Layout, int], Mapping[str, str]],
) -> list[Process]:
    layout, meeting = Layout(place), place.state / f"mpi-{place.generation}"
    machine = {**torchrun.default_variables(layout), **_open_mpi(place, addresses), **machine_env}
    shared = {**_shared_memory(place, meeting, addresses), **torchrun.rank_variables(place, addresses)}
    ranks = []
    for local in range(layout.local_world):
        own = {**shared, **torchrun.own_variables(layout, local), **more(layout, local)}
        process = program_process(place, machine, layout.first + local, layout.world, own)
        start = [sys.executable, "-I", "-S", _script("mpi_rank"), str(meeting), str(local), str(layout.first + local)]
        ranks.append(Process(process.rank, [*start, *process.command], process.env))
    return [_daemon(place, machine, meeting), *ranks]


def _daemon(place: ProgramContext, machine: Mapping[str, str], meeting: Path) -> Process:
    python = shlex.quote(sys.executable)
    ours = {
        "TMPDIR": str(meeting),  # leftovers of a killed daemon are deleted with the machine's folder
        "CLOUDGPU_MPI_FOLDER": str(meeting),
        "CLOUDGPU_MPI_NODES": json.dumps({alias(node): node.node for node in place.nodes}),
        "CLOUDGPU_MPI_HOSTS": hostfile(place.nodes),
        "CLOUDGPU_MPI_RANKS": str(Layout(place).local_world),
        "CLOUDGPU_MPI_RSH": f'exec {python} -P -m {__package__}.mpi_rsh "$0" "$@"',
        "CLOUDGPU_MPI_STUB": f"exec {python} -I -S {shlex.quote(_script('mpi_stub'))}",
    }
    role = "mpirun" if place.node.rank == place.nodes[0].rank else "orted"
    command = [sys.executable, "-P", "-m", f"{__package__}.mpi_daemon", role]
    return Process(None, command, {**environment(place, machine), **ours})


def _open_mpi(place: ProgramContext, addresses: Addresses) -> dict[str, str]:
    """Return settings of Open MPI, which the job's `env` may override."""
    settings = {**_MCA, **(_ONE_MACHINE if _on_one_machine(place, addresses) else {})}
    # Containers run as root, which Open MPI refuses by default.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**root, **{f"OMPI_MCA_{name}": value for name, value in settings.items()}}


def _shared_memory(place: ProgramContext, meeting: Path, addresses: Addresses) -> dict[str, str]:
    """Return the setting for a separate shared memory folder per node, if several nodes are on one machine.

    Open MPI's file names there contain only host and local rank.
    """
    return {"OMPI_MCA_btl_vader_backing_directory": str(meeting)} if _on_one_machine(place, addresses) else {}


def _on_one_machine(place: ProgramContext, addresses: Addresses) -> bool:
    """Return whether several nodes are on one machine, as on the target `local`."""
    return len(place.nodes) > 1 and all(address.host == LOOPBACK for address in addresses.values())


def _script(name: str) -> str:
    return str(Path(__file__).with_name(f"{name}.py"))


def _horovod_variables(layout: Layout, local: int) -> dict[str, str]:
    """Return the variables that horovodrun sets for one rank.

    HOROVOD_CROSS_RANK and _SIZE number and count the processes with the same local rank on all nodes.
    """
    nodes, node = layout.place.nodes, layout.place.node
    cross = [other.rank for other in nodes if torchrun.local_size(other) > local]
    return {
        "HOROVOD_RANK": str(layout.first + local),
        "HOROVOD_SIZE": str(layout.world),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(layout.local_world),
        "HOROVOD_CROSS_RANK": str(cross.index(node.rank)),
        "HOROVOD_CROSS_SIZE": str(len(cross)),
    }
