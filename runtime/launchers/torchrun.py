"""The launcher `torchrun`: one process per GPU with torchrun's variables, started by cloudgpu.

torchrun itself is not used, because it replaces every exit code by 1 and restarts all ranks when one fails. The
variables that it sets for its workers are set here (torch/distributed/elastic/agent/server/local_elastic_agent.py,
version 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...protocol.jobdir import Address, NodeRecord
from ..processes.program import Process
from .program_context import Addresses, LauncherError, ProgramContext, program_process


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbering of a job's processes, which is consecutive over the nodes in rank order.

    A node has one process per GPU, or one process if it has no GPU.
    """

    place: ProgramContext

    @property
    def world(self) -> int:
        return sum(map(local_size, self.place.nodes))

    @property
    def local_world(self) -> int:
        return local_size(self.place.node)

    @property
    def first(self) -> int:
        """Rank of this node's first process."""
        return sum(local_size(node) for node in self.place.nodes if node.rank < self.place.node.rank)

    @property
    def role_world(self) -> int:
        return sum(map(local_size, self._peers))

    @property
    def role_first(self) -> int:
        return sum(local_size(node) for node in self._peers if node.rank < self.place.node.rank)

    @property
    def _peers(self) -> Sequence[NodeRecord]:
        return [node for node in self.place.nodes if node.role == self.place.node.role]


def local_size(node: NodeRecord) -> int:
    """Return the number of processes of a node."""
    return max(1, node.gpus)


def rendezvous_nodes(nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """Return rank 0's node, with which the other nodes rendezvous; none if there is only one node."""
    return nodes[:1] if len(nodes) > 1 else ()


def processes(place: ProgramContext, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """Return one process per GPU, with the variables that init_process_group() reads."""
    layout = Layout(place)
    shared = {**rank_variables(place, addresses), **_elastic_variables(place)}
    machine = {**default_variables(layout), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **machine_env}
    return [
        program_process(
            place,
            machine,
            layout.first + local,
            layout.world,
            {**shared, **own_variables(layout, local), **_own_elastic_variables(place, layout, local)},
        )
        for local in range(layout.local_world)
    ]


def rank_variables(place: ProgramContext, addresses: Addresses) -> dict[str, str]:
    """Return the variables that all processes of a node share; also used by the `mpi` launcher."""
    layout, master = Layout(place), master_address(place, addresses)
    return {
        "WORLD_SIZE": str(layout.world),
        "LOCAL_WORLD_SIZE": str(layout.local_world),
        "NODE_RANK": str(place.node.rank),
        "GROUP_RANK": str(place.node.rank),
        "GROUP_WORLD_SIZE": str(len(place.nodes)),
        "MASTER_ADDR": master.host,
        "MASTER_PORT": str(master.port),
    }


def own_variables(layout: Layout, local: int) -> dict[str, str]:
    """Return the variables that are specific to one process. `local`: its local rank."""
    return {"RANK": str(layout.first + local), "LOCAL_RANK": str(local)}


def default_variables(layout: Layout) -> dict[str, str]:
    """Return defaults that machine or job may override: one OpenMP thread per process, if a node has several."""
    return {"OMP_NUM_THREADS": "1"} if layout.local_world > 1 else {}


def master_address(place: ProgramContext, addresses: Addresses) -> Address:
    """Return the address of rank 0's node. Raises LauncherError if it is unknown."""
    try:
        return addresses[place.nodes[0].node]
    except KeyError:
        raise LauncherError(f"the address of {place.nodes[0].node} is not known") from None


def _elastic_variables(place: ProgramContext) -> dict[str, str]:
    layout = Layout(place)
    return {
        "ROLE_NAME": place.node.role,
        "ROLE_WORLD_SIZE": str(layout.role_world),
        "TORCHELASTIC_RUN_ID": f"{place.job.job_id}-{place.attempt}",
        "TORCHELASTIC_RESTART_COUNT": str(place.failures),
        "TORCHELASTIC_MAX_RESTARTS": str(place.max_failures),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store itself, as under torchrun's static rendezvous
    }


def _own_elastic_variables(place: ProgramContext, layout: Layout, local: int) -> dict[str, str]:
    return {
        "ROLE_RANK": str(layout.role_first + local),
        "TORCHELASTIC_ERROR_FILE": str(place.state / f"error-{local}.json"),
    }
