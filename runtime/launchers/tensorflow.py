"""The launcher `tensorflow`: one process per node, with TF_CONFIG as AI Platform Training set it.

Format: https://cloud.google.com/ai-platform/training/docs/distributed-training-details
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..jobdir import JobRecord, NodeRecord
from ..program import Process
from .place import Addresses, LauncherError, Place, program_process

CHIEF_NAME = "CLOUDGPU_TF_CHIEF"
"""In the job's `env`: what TF_CONFIG calls the chief, `chief` (TensorFlow 2) or `master` (TensorFlow 1)."""

_TASK_TYPES = {"chief": "chief", "worker": "worker", "parameter_server": "ps", "evaluator": "evaluator"}
_OUTSIDE = "evaluator"  # an evaluator reads checkpoints; TensorFlow refuses a cluster that names it
_COUNTS = {"worker": "worker_count", "parameter_server": "parameter_server_count", "evaluator": "evaluator_count"}


def told(nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """Every member of the cluster."""
    return [node for node in nodes if node.role != _OUTSIDE] if len(nodes) > 1 else ()


def processes(place: Place, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """One process: TensorFlow drives all GPUs of a node from one."""
    variables = {"TF_CONFIG": json.dumps(tf_config(place, addresses), sort_keys=True)}
    return [program_process(place, machine_env, place.node.rank, len(place.nodes), variables)]


def tf_config(place: Place, addresses: Addresses) -> dict[str, Any]:
    """TF_CONFIG of one node. Raises LauncherError."""
    names = {**_TASK_TYPES, "chief": _chief_name(place.job)}
    cluster: dict[str, list[str]] = {}
    for node in sorted(place.nodes, key=lambda node: node.index):
        if node.role == _OUTSIDE:
            continue
        if node.node not in addresses:
            raise LauncherError(f"the address of {node.node} is not known")
        address = addresses[node.node]
        cluster.setdefault(names[node.role], []).append(f"{_bracketed(address.host)}:{address.port}")
    return {
        "cluster": cluster,
        "task": {
            "type": names[place.node.role],
            "index": place.node.index,
            "cloud": f"{place.job.job_id}-{place.attempt}",
        },
        "job": _training_input(place),
        "environment": "cloud",
    }


def _chief_name(job: JobRecord) -> str:
    name = job.env.get(CHIEF_NAME, "chief")
    if name not in ("chief", "master"):
        raise LauncherError(f"{CHIEF_NAME}={name}: expected chief or master")
    return name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _training_input(place: Place) -> dict[str, Any]:
    """What the job was submitted with, in the words of the service's TrainingInput; counts are strings there."""
    counts = {
        field: str(sum(node.role == role for node in place.nodes))
        for role, field in _COUNTS.items()
        if any(node.role == role for node in place.nodes)
    }
    return {"scale_tier": "CUSTOM", **counts, "args": list(place.job.args), "job_dir": place.job_dir}
