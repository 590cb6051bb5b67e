"""Map nodes to Vertex AI's worker pools, and labels back to nodes.

A custom job has up to four pools with fixed meanings: the primary replica (exactly one; the job ends when it ends);
workers; parameter servers; evaluators. The primary replica is the chief or, without a chief, the first node. The
mapping is stored in the job's labels, so that the nodes of a job can be read from lists. Source: "Distributed training"
in Vertex AI's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base import NodeRequest, ProvisionError

POOLS = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")
"""Names of the worker pools, as in `task.type` of the environment variable CLUSTER_SPEC."""
_POOL_OF = {"chief": 0, "worker": 1, "parameter_server": 2, "evaluator": 3}
_LABEL = "cloudgpu-pool"
_FIRST_INCARNATION = 1


@dataclass(frozen=True, slots=True)
class Pool:
    """Worker pool: replicas with the same machine type, in order."""

    index: int
    """Index in POOLS."""
    nodes: tuple[NodeRequest, ...]


def pools_of(nodes: Sequence[NodeRequest]) -> list[Pool]:
    """Return the pools that have nodes. `nodes`: in rank order. Raises ProvisionError if they do not fit a custom
    job."""
    if not nodes:
        raise ProvisionError("invalid", "the job has no nodes", scope="cloud")
    chief = next((node for node in nodes if node.role == "chief"), nodes[0])
    placed: dict[int, list[NodeRequest]] = {0: [chief]}
    for node in nodes:
        if node is not chief:
            placed.setdefault(_pool_of(node), []).append(node)
    pools = [Pool(index, tuple(placed[index])) for index in sorted(placed)]
    for pool in pools:
        _check(pool)
    return pools


def replicas(pools: Sequence[Pool]) -> dict[str, list[str]]:
    """Return pool name -> names of its nodes."""
    return {POOLS[pool.index]: [node.node for node in pool.nodes] for pool in pools}


def to_labels(pools: Sequence[Pool]) -> dict[str, str]:
    """Return labels such as `cloudgpu-pool1: worker-1-8` (role, first index, number). The values need no escaping."""
    return {f"{_LABEL}{pool.index}": f"{pool.nodes[0].role}-{pool.nodes[0].index}-{len(pool.nodes)}" for pool in pools}


def from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Parse labels to node -> replica, e.g. `workerpool1-0`; invalid labels are ignored."""
    found: dict[str, str] = {}
    for index, pool in enumerate(POOLS):
        role, first, count = ["", "", *labels.get(f"{_LABEL}{index}", "").rsplit("-", 2)][-3:]
        if role and first.isdecimal() and count.isdecimal():
            for replica in range(int(count)):
                found[f"{role}-{int(first) + replica}.{_FIRST_INCARNATION}"] = f"{pool}-{replica}"
    return found


def _pool_of(node: NodeRequest) -> int:
    if node.role not in _POOL_OF:
        raise ProvisionError("invalid", f"Vertex AI has no worker pool for the role {node.role}", scope="cloud")
    return _POOL_OF[node.role]


def _check(pool: Pool) -> None:
    """Raise ProvisionError if a pool's nodes are not consecutive, first incarnations or of the same machine type."""
    first = pool.nodes[0]
    for at, node in enumerate(pool.nodes):
        if node.node != f"{first.role}-{first.index + at}.{_FIRST_INCARNATION}":
            message = f"{node.node} cannot be added to a custom job: all of its nodes are started together, and once"
            raise ProvisionError("invalid", message, scope="cloud")
        if (node.machine_type, node.accelerator, node.count) != (first.machine_type, first.accelerator, first.count):
            message = f"{node.node} and {first.node} have different machines: a worker pool has one kind"
            raise ProvisionError("not_offered", message, scope="cloud")
    if pool.index == 0 and len(pool.nodes) > 1:
        message = f"there are {len(pool.nodes)} chiefs: a custom job has one primary replica"
        raise ProvisionError("not_offered", message, scope="cloud")
