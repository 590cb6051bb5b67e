"""State of Compute Engine in one project: resources, operations, machines, and settings of tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..gcp.project import Project
from . import catalog
from .capacity import Capacity
from .machines import Vm
from .operations import Operations, now

if TYPE_CHECKING:
    from .groups import Group

ADDRESSES = "10.128.{}.{}"


class World:
    """State, which is accessed only with `lock` held, except `lock` and `changed` themselves."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._count = 0
        """Number of resources created, for unique ids."""
        self.fill()

    def fill(self) -> None:
        """Set the initial state."""
        self.resources: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        """Collection -> (scope, name) -> resource, where a scope is `global`, `zones/…` or `regions/…`."""
        self.operations = Operations(self)
        self.capacity = Capacity()
        self.vms: list[Vm] = []
        """All instances that ever ran."""
        self.delay_s, self.stopping_s, self.lag_s, self.wait_s = 0.02, 0.0, 0.0, 120.0
        self.described: dict[tuple[str, str], tuple[list[str], dict[str, Any] | None]] = {}
        """(`machineTypes` or `acceleratorTypes`, name) -> zones, and fields that override the catalogue there; None:
        hidden."""
        self.cut_off: set[str] = set()
        """Scopes that aggregated lists cannot reach, such as `zones/us-central1-a`."""
        self.images: list[catalog.Image] = []
        """Images added by tests."""
        self.pending_disks: dict[str, dict[str, Any]] = {}
        """URL -> parameters of disks whose instance is being created."""
        self.groups: dict[tuple[str, str], Group] = {}
        """(scope, name) -> managed instance group."""
        self._timers: list[threading.Timer] = []
        self.add_network("default")

    # -- resources

    def collection(self, name: str) -> dict[tuple[str, str], dict[str, Any]]:
        return self.resources.setdefault(name, {})

    def base(self, scope: str = "") -> str:
        """Return the URL of the project, or of a scope in it."""
        return f"{catalog.HOST}/projects/{self.project.id}" + (f"/{scope}" if scope else "")

    def link(self, collection: str, scope: str, name: str) -> str:
        return f"{self.base(scope)}/{collection}/{name}"

    def put(self, collection: str, kind: str, scope: str, body: dict[str, Any]) -> dict[str, Any]:
        """Add a resource, with the fields that Compute Engine adds to each."""
        self._count += 1
        name = str(body["name"])
        made = {
            "kind": f"compute#{kind}",
            "id": catalog.identity(collection, scope, name, str(self._count)),
            "creationTimestamp": now(),
            **body,
            "selfLink": self.link(collection, scope, name),
        }
        if scope != "global":
            made[scope.partition("/")[0].removesuffix("s")] = self.base(scope)
        self.collection(collection)[scope, name] = made
        return made

    def add_network(self, name: str, *, regions: tuple[str, ...] | None = None, private_access: bool = False) -> None:
        """Add a network with a subnetwork of the same name in each region."""
        network = self.put("networks", "network", "global", {"name": name, "autoCreateSubnetworks": regions is None})
        network["subnetworks"] = []
        for number, region in enumerate(catalog.regions() if regions is None else regions):
            subnet = {
                "name": name,
                "network": network["selfLink"],
                "ipCidrRange": f"10.{128 + number}.0.0/20",
                "privateIpGoogleAccess": private_access,
                "purpose": "PRIVATE",
                "stackType": "IPV4_ONLY",
            }
            made = self.put("subnetworks", "subnetwork", f"regions/{region}", subnet)
            network["subnetworks"].append(made["selfLink"])

    def address(self) -> str:
        """Return a new address; it belongs to no existing network."""
        self._count += 1
        return ADDRESSES.format(self._count // 250, self._count % 250 + 2)

    # -- machines

    def vm(self, name: str) -> Vm:
        """Return the newest instance of this name. Raises ValueError."""
        for vm in reversed(self.vms):
            if vm.name == name:
                return vm
        raise ValueError(f"there is no instance {name}; known: {', '.join(vm.name for vm in self.vms)}")

    # -- time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Run a function after a delay, with the lock held, unless the world is reset before."""
        timers = self._timers

        def act() -> None:
            with self.lock:
                if self._timers is timers and timer in timers:
                    timers.remove(timer)
                    what()

        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def run_delayed(self) -> None:
        """Run all delayed actions now, in the order in which they were scheduled."""
        for timer in list(self._timers):
            timer.cancel()
            timer.function()

    def stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
