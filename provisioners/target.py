"""The code of a target, as references that are imported on first use: an instance is `<target>/target.py`.

Pure data of a target is its TargetInfo (jobspecs/targets.py), whose `code` names the Target. A reference is
`module:name`; a module that begins with a dot is relative to the Target's own package.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from ..jobspecs import targets


class Stop(NamedTuple):
    """The request by which a machine that is off, and still billed, ends itself (boot/stop_script.py)."""

    api: str
    """URL of the API."""
    end: str
    """Shell function `end`: asks the API, and prints the status of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The start of a target's machines: with the bootstrap of provisioners/boot."""

    bucket: str
    """Module of boot/shipped/ that reads and writes the job dir."""
    host: str
    """Module there that knows, and ends, the machine."""
    group: str = ""
    """Module there by which a fleet's machine leaves its group; "": its machines are in no fleet."""
    sent_as: Literal["user data", "startup script", "container"]
    max_bytes: int | None = None
    """Limit of user data, before base64; None: boot/ knows the limit of the others."""
    needs_identity: bool = False
    """The machine is told the client id of its managed identity, without which it reads nothing."""
    stop: Stop | None = None
    """None: a machine that is off is not billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Environment variables; names, and beginnings of names."""

    names: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()

    def among(self, environ: Mapping[str, str]) -> frozenset[str]:
        """Return those that an environment has; empty ones count as unset."""
        return frozenset(
            name
            for name, value in environ.items()
            if value and (name in self.names or (self.beginnings and name.startswith(self.beginnings)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The code that launches on a target and answers commands; every reference but the first may be ""."""

    provisioner: str
    """() -> Provisioner."""
    set_up: str = ""
    """() -> bool: whether SDK and credentials are there, without a call over the network; "": nothing is needed."""
    setup_hint: str = ""
    """The hint where they are not."""
    architecture: str = ""
    """(machine type) -> `x86_64` or `arm64`; "": its machines need no agent file."""
    collector: str = ""
    """Module that is a leftovers.Collector; "": it has machines only, and Provisioner.find() finds them."""
    tables: str = ""
    """Module with refresh(), see shared/refresh.py; "": its tables cannot be refreshed."""
    fleets: str = ""
    """Module that is a stacks.for_stacks.FleetQueries; "": it has no fleets."""
    boot: Boot | None = None
    """None: its machines do not start by themselves with a bootstrap."""
    settings: Variables = field(default_factory=Variables)
    """Variables that decide whose machines are launched."""
    credentials: Variables = field(default_factory=Variables)
    """Variables whose values expire, or are rotated, while a supervisor runs."""


def target_of(name: str) -> Target | None:
    """Return what a target needs code for; None: this version cannot launch on it."""
    code = targets.info(name).code
    return _load(code) if code else None


def code_of(name: str, reference: str) -> Any:
    """Return what a reference of the target's Target stands for: a module, or something in one."""
    module, _, attribute = reference.partition(":")
    package = targets.info(name).code.partition(":")[0].rpartition(".")[0]
    found = importlib.import_module(module, package)
    return getattr(found, attribute) if attribute else found


@cache
def _load(code: str) -> Target:
    module, _, attribute = code.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, Target):
        raise TypeError(f"{code} is no Target")
    return found
