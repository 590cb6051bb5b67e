"""Target: references to a target's code, imported on first use. Each `<target>/target.py` defines one instance.

The target's data is its TargetInfo (jobspecs/targets.py), whose `code` names the Target. A reference is `module:name`;
a module that begins with a dot is relative to the package of the Target.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from ..jobspecs import targets


class SelfDelete(NamedTuple):
    """API request by which a machine deletes itself, for clouds that bill stopped machines (boot/stop_script.py)."""

    api: str
    """URL of the API."""
    end: str
    """Source of the shell function `end`, which calls the API and prints the HTTP status of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """How a target's machines boot with the bootstrap of provisioners/boot."""

    bucket: str
    """Module of boot/shipped/ that reads and writes the job dir."""
    host: str
    """Module of boot/shipped/ that queries and terminates the machine itself."""
    group: str = ""
    """Module of boot/shipped/ by which a fleet's machine leaves its group; "": the target has no fleets."""
    sent_as: Literal["user data", "startup script", "container"]
    max_bytes: int | None = None
    """Size limit of user data, before base64; None: not user data (boot/ has the limits of the other ways)."""
    needs_identity: bool = False
    """The boot record must contain the client id of a managed identity, without which the machine can read nothing."""
    stop: SelfDelete | None = None
    """Request by which a machine deletes itself; None: not needed, since stopped machines are not billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariables:
    """Set of environment variables, given by names and by prefixes of names."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def set_in(self, environ: Mapping[str, str]) -> frozenset[str]:
        """Return the names of these variables that are set in `environ`; empty ones count as unset."""
        return frozenset(
            name
            for name, value in environ.items()
            if value and (name in self.names or (self.prefixes and name.startswith(self.prefixes)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """References to the code of one target; every reference but `provisioner` may be ""."""

    provisioner: str
    """Function: () -> Provisioner."""
    set_up: str = ""
    """Reference to a function () -> bool: True if the SDK and credentials are available. It uses no network. "": the
    target needs no set-up."""
    setup_hint: str = ""
    """Advice to the user if the target is not set up."""
    check: str = ""
    """Function: (checks.results.CheckRequest) -> list[checks.results.Step], for `cloudgpu check`; "": only `set_up` is
    checked."""
    architecture: str = ""
    """Function: (machine type) -> `x86_64` or `arm64`; "": the target's machines need no agent file."""
    collector: str = ""
    """Module that is a tagged_resources.Collector; "": the target has only machines, which Provisioner.find() finds."""
    tables: str = ""
    """Module with refresh(), see shared/refresh.py; "": the target's tables cannot be refreshed."""
    fleets: str = ""
    """Module that is a stacks.fleet_queries.FleetQueries; "": the target has no fleets."""
    boot: Boot | None = None
    """None: the target's machines do not boot with a bootstrap."""
    settings: EnvironmentVariables = field(default_factory=EnvironmentVariables)
    """Environment variables that select the account in which machines are launched."""
    credentials: EnvironmentVariables = field(default_factory=EnvironmentVariables)
    """Environment variables whose values expire, or are rotated, while a supervisor runs."""


def target_of(name: str) -> Target | None:
    """Return the Target of this name; None: this version cannot launch on it."""
    code = targets.info(name).code
    return _load(code) if code else None


def code_of(name: str, reference: str) -> Any:
    """Import and return the object that a reference of a Target names: a module, or an attribute of one."""
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
