"""How machines are got: one module per target behind one protocol."""

from __future__ import annotations

import importlib
import os
from typing import cast

from .base import (
    AgentFile,
    Allocation,
    LaunchRequest,
    NodeRequest,
    NodeState,
    Owner,
    Provisioner,
    ProvisionError,
    launch_token,
    node_token,
)

__all__ = [
    "AgentFile",
    "Allocation",
    "LaunchRequest",
    "NodeRequest",
    "NodeState",
    "Owner",
    "ProvisionError",
    "Provisioner",
    "architecture_of",
    "get_provisioner",
    "is_set_up",
    "launch_token",
    "launchable",
    "node_token",
]

# target -> "module:what makes its provisioner"; imported on first use: no cloud's SDK is loaded for another's job.
_REGISTRY = {
    "local": ".local.provisioner:LocalProvisioner",
    "aws": ".aws.provisioner:shared",
    "gcp": ".gcp.provisioner:shared",
    "azure": ".azure.provisioner:shared",
    "vertex": ".vertex.provisioner:shared",
    "cluster": ".cluster.provisioner:shared",
}

# Those that need to be set up -> "module:whether they seem to be", without a call over the network.
_SET_UP = {
    "aws": ".aws.clients:could_be_used",
    "gcp": ".gcp.clients:could_be_used",
    "azure": ".azure.account:could_be_used",
    "vertex": ".gcp.clients:could_be_used",
    "cluster": ".cluster.provisioner:could_be_used",
}

# Those whose machines must be sent an agent -> "module:what the processor of a machine type is".
_ARCHITECTURES = {
    "aws": ".aws.images:architecture_of",
    "gcp": ".gcp.machines:architecture_of",
    "azure": ".azure.sizes:architecture_of",
    "vertex": ".gcp.machines:architecture_of",
    "cluster": ".cluster.provisioner:architecture_of",
}


def launchable() -> frozenset[str]:
    """Targets this version can launch on; the others can be planned for."""
    return frozenset(_REGISTRY)


def get_provisioner(target: str) -> Provisioner:
    """The provisioner of a target; raises ProvisionError(invalid) for one that cannot be launched on yet."""
    if target not in _REGISTRY:
        known = ", ".join(sorted(_REGISTRY))
        raise ProvisionError("invalid", f"this version cannot launch on {target}, only on: {known}", scope="cloud")
    return cast("Provisioner", _call(_REGISTRY[target]))


_set_up: set[tuple[str, frozenset[tuple[str, str]]]] = set()
"""Targets that were found to be set up, and the environment of that time: looking takes an SDK tens of milliseconds."""


def is_set_up(target: str) -> bool:
    """Whether the target's SDK is there and finds credentials of some kind on this computer; nobody else is asked."""
    found = target, frozenset(os.environ.items())
    if target in _SET_UP and found not in _set_up and _call(_SET_UP[target]):
        _set_up.add(found)
    return target not in _SET_UP or found in _set_up


def architecture_of(target: str, machine_type: str) -> str | None:
    """`x86_64` or `arm64`, for which the agent of such a machine must be; None: the target has an agent."""
    name = _ARCHITECTURES.get(target)
    return None if name is None else str(_call(name, machine_type))


def _call(name: str, *arguments: str) -> object:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module, __name__), function)(*arguments)
