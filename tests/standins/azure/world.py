"""State of one subscription: resources, operations, machines, and settings of tests."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import names
from .arm import key
from .capacity import Capacity
from .machines import Vm
from .operations import FailedError, Operations
from .tokens import Principal, Tokens


@dataclass
class Later:
    """Failure of future operations, set by a test; `where` is part of the resource's id."""

    kind: str
    verb: str
    error: FailedError
    where: str
    times: int


class World:
    """State, accessed only with `lock` held, except `lock` and `tokens`. `boot`: machines really run."""

    def __init__(self, *, boot: bool) -> None:
        self.boot = boot
        self.url = ""
        """URL of Azure Resource Manager; set before requests are served."""
        self.certificate = Path()
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.lost: Callable[[Vm], None] = lambda _vm: None
        """Called for each deleted machine."""
        self.entries: Callable[[Principal, str], list[dict[str, list[str]]]] = lambda _principal, _scope: []
        """Return a principal's permissions at a scope; set by the app, which enforces them."""
        self.tokens = Tokens()
        self._folder = tempfile.TemporaryDirectory(prefix="cloudgpu-azure-")
        self._timers: list[threading.Timer] = []
        self._count = 0
        self.fill()

    def fill(self) -> None:
        """Set the initial state."""
        self.resources: dict[str, dict[str, Any]] = {}
        """Id in lower case -> resource, including resource groups and role assignments."""
        self.seen_from: dict[str, float] = {}
        """Id in lower case -> monotonic time from which lists show it."""
        self.hidden: dict[str, dict[str, Any]] = {}
        """Id in lower case -> data that is never returned (customData)."""
        self.deleting: set[str] = set()
        """Ids in lower case of resources that are being deleted."""
        self.operations = Operations(self)
        self.capacity = Capacity()
        self.vms: list[Vm] = []
        """All machines ever created."""
        self.delay_s, self.group_s, self.lag_s, self.role_lag_s, self.retry_s = 0.02, 0.0, 0.0, 0.0, 0
        self.restart_s, self.sets_s, self.tags_s = 0.0, 0.0, 0.0
        self.cache_s = 0.0
        """Seconds until a GET shows a new machine or scale set: Azure Resource Manager's caches lag."""
        self.later: list[Later] = []
        self.machine_environ: dict[str, str] = {}
        """Variables of machines beside those that replace the network."""
        self.registered = {"microsoft.compute", "microsoft.network", "microsoft.managedidentity", "microsoft.storage"}
        """Registered resource providers, in lower case."""
        self.identities: dict[str, Principal] = {}
        """Id in lower case of a user-assigned identity, or of a resource with a system-assigned one -> principal."""
        self.sku_changes: dict[tuple[str, str], dict[str, Any]] = {}
        """(size in lower case, region) -> overrides in lists of SKUs."""
        self.sku_copies: list[tuple[str, str]] = []
        """(new size, size that it copies) in lists of SKUs, in all regions of the known one."""

    @property
    def folder(self) -> Path:
        """Folder for machines' disks; it is deleted at the end."""
        return Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()

    def number(self) -> int:
        """Return a unique number."""
        self._count += 1
        return self._count

    def role_lag_until(self) -> float:
        """Return the monotonic time from which roles can be assigned to a principal created now."""
        return time.monotonic() + self.role_lag_s

    # -- resources

    def find(self, path: str) -> dict[str, Any] | None:
        return self.resources.get(key(path))

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        return (one for one in list(self.resources.values()) if str(one["type"]).lower() == kind.lower())

    def within(self, path: str) -> Iterator[dict[str, Any]]:
        """Return the resources below a path."""
        start = key(path) + "/"
        return (one for known, one in list(self.resources.items()) if known.startswith(start))

    def users(self, path: str) -> list[str]:
        """Return the ids of resources that refer to a resource or to a part of it."""
        wanted = key(path)
        return [
            str(one["id"])
            for known, one in list(self.resources.items())
            if known != wanted and not known.startswith(wanted + "/") and any(_refers(ref, wanted) for ref in refs(one))
        ]

    def remove(self, path: str) -> None:
        """Remove a resource and everything below it."""
        wanted = key(path)
        for known in [one for one in self.resources if one == wanted or one.startswith(wanted + "/")]:
            del self.resources[known]
            self.seen_from.pop(known, None)
            self.deleting.discard(known)
            self.hidden.pop(known, None)
            self.identities.pop(known, None)

    def check_later(self, kind: str, verb: str, path: str) -> None:
        """Raise FailedError if a test wants this operation to fail."""
        for rule in self.later:
            if rule.times and rule.kind.lower() == kind.lower() and rule.verb == verb and rule.where in path:
                rule.times -= 1
                raise rule.error

    # -- machines

    def vm(self, name: str) -> Vm:
        """Return the newest machine of this name. Raises ValueError."""
        for vm in reversed(self.vms):
            if vm.name == name:
                return vm
        raise ValueError(f"there is no machine {name}; known: {', '.join(vm.name for vm in self.vms)}")

    def vm_at(self, path: str) -> Vm:
        """Return the newest machine with this id."""
        return next(vm for vm in reversed(self.vms) if key(vm.id) == key(path))

    # -- time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Run a function after a delay, with the lock held, unless the world is reset before."""
        timers = self._timers

        def act() -> None:
            with self.lock:
                if self._timers is timers:
                    what()

        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []


def refs(value: Any) -> Iterator[str]:
    """Yield the ids that a resource's properties refer to, except its own and its parts'."""
    if isinstance(value, Mapping):
        own = str(value.get("id", ""))
        within = [one for name, one in value.items() if name != "id"]
        named = [one for name, one in value.items() if name == "userAssignedIdentities" for one in (one or {})]
        yield from (one for one in named if isinstance(one, str))
        if own and "type" not in value and "etag" not in value:
            yield own
        for one in within:
            yield from refs(one)
    elif isinstance(value, list):
        for one in value:
            yield from refs(one)


def _refers(ref: str, wanted: str) -> bool:
    known = key(ref)
    return known == wanted or known.startswith(wanted + "/")


def principals() -> Mapping[str, str]:
    """Return client id -> name of applications with a secret."""
    return {names.client_id(name): name for name in (names.SUBMITTER, names.AUDITOR)}
