"""Provisioners: launch, observe and terminate machines, with one package per target behind one protocol."""

from __future__ import annotations

import os
from typing import cast

from ..jobspecs import targets
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
from .target import code_of, target_of

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
    "can_launch",
    "get_provisioner",
    "is_set_up",
    "launch_token",
    "launchable",
    "node_token",
    "setup_hint",
]

_set_up: set[tuple[str, frozenset[tuple[str, str]]]] = set()
"""Cache of is_set_up(): (target, environment) pairs that are set up. An SDK's check takes tens of milliseconds."""


def can_launch(target: str) -> bool:
    """Return whether this version can launch on the target; otherwise it can only plan for it."""
    return bool(targets.info(target).code)


def launchable() -> frozenset[str]:
    """Return all targets that this version can launch on."""
    return frozenset(filter(can_launch, targets.listed()))


def get_provisioner(target: str) -> Provisioner:
    """Return the provisioner of a target. Raises ProvisionError(invalid) if this version cannot launch on it."""
    found = target_of(target)
    if found is None:
        known = ", ".join(sorted(launchable()))
        raise ProvisionError("invalid", f"this version cannot launch on {target}, only on: {known}", scope="cloud")
    return cast("Provisioner", code_of(target, found.provisioner)())


def is_set_up(target: str) -> bool:
    """Return whether the target's SDK is installed and finds credentials on this computer, without a network call."""
    found = target_of(target)
    if found is None or not found.set_up:
        return True
    key = target, frozenset(os.environ.items())
    if key not in _set_up and code_of(target, found.set_up)():
        _set_up.add(key)
    return key in _set_up


def setup_hint(target: str) -> str:
    """Return the advice to the user if a target is not set up; "": the target is unknown or has none."""
    found = target_of(target)
    if found is None or not found.setup_hint:
        return ""
    return f"{found.setup_hint}; `cloudgpu check {target}` says what is missing"


def architecture_of(target: str, machine_type: str) -> str | None:
    """Return the architecture (`x86_64` or `arm64`) of a machine type's agent file; None: it needs no agent file."""
    found = target_of(target)
    return str(code_of(target, found.architecture)(machine_type)) if found is not None and found.architecture else None
