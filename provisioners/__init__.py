"""How machines are got: one module per target behind one protocol."""

from __future__ import annotations

import importlib
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
    "get_provisioner",
    "launch_token",
    "launchable",
    "node_token",
]

# target -> "module:what makes its provisioner"; imported on first use: no cloud's SDK is loaded for another's job.
_REGISTRY = {"local": ".local:LocalProvisioner", "aws": ".aws.provisioner:shared"}


def launchable() -> frozenset[str]:
    """Targets this version can launch on; the others can be planned for."""
    return frozenset(_REGISTRY)


def get_provisioner(target: str) -> Provisioner:
    """The provisioner of a target; raises ProvisionError(invalid) for one that cannot be launched on yet."""
    if target not in _REGISTRY:
        known = ", ".join(sorted(_REGISTRY))
        raise ProvisionError("invalid", f"this version cannot launch on {target}, only on: {known}", scope="cloud")
    module, _, name = _REGISTRY[target].partition(":")
    return cast("Provisioner", getattr(importlib.import_module(module, __name__), name)())
