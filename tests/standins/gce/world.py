"""The state of Compute Engine in one project: resources as the API shows them, operations, machines, what tests set."""

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
    """Everything but `lock` and `changed` is touched with the lock held."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._count = 0
        """Of what was ever made: no two have the same id."""
        self.fill()

    def fill(self) -> None:
        """As at the start."""
        self.resources: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        """Collection -> (scope, name) -> resource, where a scope is `global`, `zones/…` or `regions/…`."""
        self.operations = Operations(self)
        self.capacity = Capacity()
        self.vms: list[Vm] = []
        """All that ever ran."""
        self.delay_s, self.stopping_s, self.lag_s, self.wait_s = 0.02, 0.0, 0.0, 120.0
        self.described: dict[tuple[str, str], tuple[list[str], dict[str, Any] | None]] = {}
        """(`machineTypes` or `acceleratorTypes`, name) -> zones where it is otherwise than in the catalogue, and how;
        None: it is not there."""
        self.cut_off: set[str] = set()
        """Scopes that lists of all scopes cannot reach, `zones/us-central1-a`."""
        self.images: list[catalog.Image] = []
        """Made by tests, beside those of the catalogue."""
        self.pending_disks: dict[str, dict[str, Any]] = {}
        """URL -> what is asked for, of disks of instances that are being made."""
        self.groups: dict[tuple[str, str], Group] = {}
        """(scope, name) -> managed instance group."""
        self._timers: list[threading.Timer] = []
        self.add_network("default")

    # -- resources

    def collection(self, name: str) -> dict[tuple[str, str], dict[str, Any]]:
        return self.resources.setdefault(name, {})

    def base(self, scope: str = "") -> str:
        """URL of the project, or of a scope in it."""
        return f"{catalog.HOST}/projects/{self.project.id}" + (f"/{scope}" if scope else "")

    def link(self, collection: str, scope: str, name: str) -> str:
        return f"{self.base(scope)}/{collection}/{name}"

    def put(self, collection: str, kind: str, scope: str, body: dict[str, Any]) -> dict[str, Any]:
        """Add a resource, with what Compute Engine adds to each."""
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
        """With a subnetwork of the same name in each region."""
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
        """A new one, of a network that is not there."""
        self._count += 1
        return ADDRESSES.format(self._count // 250, self._count % 250 + 2)

    # -- machines

    def vm(self, name: str) -> Vm:
        """The newest of this name. Raises ValueError."""
        for vm in reversed(self.vms):
            if vm.name == name:
                return vm
        raise ValueError(f"there is no instance {name}; known: {', '.join(vm.name for vm in self.vms)}")

    # -- time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something later, with the lock held; not at all after a reset."""
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

    def hurry(self) -> None:
        """What is to be done later is done now, in the order in which it was begun."""
        for timer in list(self._timers):
            timer.cancel()
            timer.function()

    def stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
