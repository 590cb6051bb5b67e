"""The launcher `tensorflow`: one process per node, with TF_CONFIG in the format of AI Platform Training.

Format: https://cloud.google.com/ai-platform/training/docs/distributed-training-details
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.jobdir import JobRecord, NodeRecord
from ..processes.program import Process
from .program_context import Addresses, LauncherError, ProgramContext, program_process

CHIEF_NAME = "CLOUDGPU_TF_CHIEF"
"""Variable in the job's `env` with the chief's name in TF_CONFIG: `chief` (TensorFlow 2) or `master` (TensorFlow 1)."""

_TASK_TYPES = {"chief": "chief", "worker": "worker", "parameter_server": "ps", "evaluator": "evaluator"}
_OUTSIDE = "evaluator"  # an evaluator reads checkpoints; TensorFlow refuses a cluster that names it
_FIELDS = {"chief": "master", "worker": "worker", "parameter_server": "parameter_server", "evaluator": "evaluator"}
"""Prefix of the fields of TrainingInput for each role."""
_ACCELERATORS = {
    "K80": "NVIDIA_TESLA_K80",
    "P4": "NVIDIA_TESLA_P4",
    "P100": "NVIDIA_TESLA_P100",
    "T4": "NVIDIA_TESLA_T4",
    "V100-16GB": "NVIDIA_TESLA_V100",
    "A100-40GB": "NVIDIA_TESLA_A100",
}
"""Names of accelerators in AI Platform Training; newer accelerators keep cloudgpu's names."""
_MODULE = ["python", "-m"]


def rendezvous_nodes(nodes: Sequence[NodeRecord]) -> Sequence[NodeRecord]:
    """Return the nodes in the TensorFlow cluster: all but evaluators; none if there is only one node."""
    return [node for node in nodes if node.role != _OUTSIDE] if len(nodes) > 1 else ()


def processes(place: ProgramContext, machine_env: Mapping[str, str], addresses: Addresses) -> list[Process]:
    """Return one process, because TensorFlow uses all GPUs of a node from a single process."""
    variables = {"TF_CONFIG": json.dumps(tf_config(place, addresses), sort_keys=True)}
    return [program_process(place, machine_env, place.node.rank, len(place.nodes), variables)]


def tf_config(place: ProgramContext, addresses: Addresses) -> dict[str, Any]:
    """Return the TF_CONFIG of one node. Raises LauncherError for an unknown address or an invalid chief name."""
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


def _training_input(place: ProgramContext) -> dict[str, Any]:
    """Return the job's specification in the format of AI Platform's TrainingInput, in which counts are strings."""
    training_input: dict[str, Any] = {"scale_tier": "CUSTOM"}
    machines: dict[str, Any] = {}
    if place.offer.get("cloud", "local") != "local":
        training_input["region"] = place.offer["region"]
        machines = {role["role"]: role for role in place.offer["roles"]}
    for role, field in _FIELDS.items():
        count = sum(node.role == role for node in place.nodes)
        if count and role != "chief":
            training_input[f"{field}_count"] = str(count)
        if count and role in machines:
            training_input |= _machine(field, machines[role])
    run = place.job.run
    if isinstance(run, list) and len(run) == len(_MODULE) + 1 and run[:-1] == _MODULE:
        training_input["python_module"] = run[-1]
    args, job_dir = _arguments(place)
    return {**training_input, "args": args, "job_dir": job_dir}


def _machine(field: str, role: Mapping[str, Any]) -> dict[str, Any]:
    """Return a role's machine type and accelerators as fields of TrainingInput."""
    found: dict[str, Any] = {f"{field}_type": role["machine_type"]}
    if role.get("accelerator"):
        name = _ACCELERATORS.get(role["accelerator"], role["accelerator"])
        found[f"{field}_config"] = {"accelerator_config": {"count": role["count"], "type": name}}
    return found


def _arguments(place: ProgramContext) -> tuple[list[str], str]:
    """Return `args` and `job_dir` of TrainingInput.

    AI Platform appended `--job-dir DIR` to the program's arguments. If the job's arguments end so, DIR is the `job_dir`
    and is removed from `args`; otherwise `job_dir` is cloudgpu's job dir.
    """
    args = list(place.job.args)
    if args[-2:-1] == ["--job-dir"]:
        return args[:-2], args[-1]
    return args, place.job_dir
