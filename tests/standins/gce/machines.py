"""A running instance: its machine with a metadata server, its state, and its representation for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..boots import StartupScript
from ..gcp_metadata import InstanceMetadata
from ..machine import Ending, Machine
from .capacity import Shape

if TYPE_CHECKING:
    from .world import World

TOKEN_S = 3_599.0
GONE = ("TERMINATED", "STOPPED", "STOPPING", "")


@dataclass
class Vm:
    """One instance, kept after its end."""

    resource: dict[str, Any]
    shape: Shape
    launched: float
    """Monotonic time of its launch, by the stand-in's clock."""
    reservation: str = ""
    machine: GceMachine | None = None
    gone: float | None = None
    """Monotonic time when it last stopped running; None: it runs."""
    reason: str = ""
    """Event that ended it: an operation's type."""
    cause: str = ""
    """Event that causes the current shutdown."""
    repair_s: float = 0.5
    """Seconds that its host is unavailable."""

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    @property
    def status(self) -> str:
        """Status of the resource; "": it was deleted."""
        return str(self.resource["status"])

    @property
    def scheduling(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.resource.get("scheduling", {})
        return found

    @property
    def scope(self) -> str:
        return f"zones/{self.shape.zone}"


class GceMachine(Machine):
    """An instance's machine, with its metadata server."""

    def __init__(self, world: World, vm: Vm, root: Path, ended: Callable[[Ending], None]) -> None:
        self._world, self._vm = world, vm
        accounts = vm.resource.get("serviceAccounts", [])
        account = (str(accounts[0]["email"]), tuple(accounts[0].get("scopes", ()))) if accounts else None
        self._account = account
        self.metadata = InstanceMetadata(self._describe, self._token, account)
        # Replaces 169.254.169.254 and metadata.google.internal.
        environ = {"GCE_METADATA_HOST": self.metadata.host, "GCE_METADATA_IP": self.metadata.host}
        super().__init__(root, StartupScript(lambda: self._attributes().get("startup-script")), environ, ended)
        self.metadata.__enter__()

    def dispose(self) -> None:
        super().dispose()
        self.metadata.__exit__(None, None, None)

    def acpi(self, limit_s: float) -> None:
        """Press the power button: services are stopped, and the power is cut after at most `limit_s` seconds."""

        def press() -> None:
            going = threading.Thread(target=self.shut_down, daemon=True)
            going.start()
            going.join(limit_s)
            if going.is_alive():
                self.cut_power()

        threading.Thread(target=press, daemon=True).start()

    def _token(self) -> tuple[str, float]:
        email, scopes = self._account or ("", ())
        return self._world.project.tokens.issue(email, frozenset(scopes), TOKEN_S), TOKEN_S

    def _attributes(self) -> dict[str, str]:
        items = self._vm.resource.get("metadata", {}).get("items", [])
        return {str(item["key"]): str(item.get("value", "")) for item in items}

    def _describe(self) -> Mapping[str, Any]:
        resource, project, zone = self._vm.resource, self._world.project, self._vm.shape.zone
        scheduling = self._vm.scheduling
        spot = self._vm.shape.market == "spot"
        interface = resource["networkInterfaces"][0]
        return {
            "instance": {
                "attributes": self._attributes(),
                "cpu-platform": "Intel Cascade Lake",
                "description": resource.get("description", ""),
                "hostname": f"{self._vm.name}.{zone}.c.{project.id}.internal",
                "id": resource["id"],
                "image": resource["disks"][0].get("licenses", [""])[0],
                "machine-type": f"projects/{project.number}/machineTypes/{self._vm.shape.machine_type}",
                "name": self._vm.name,
                "network-interfaces": {"0": {"ip": interface["networkIP"]}},
                "scheduling": {
                    "automatic-restart": str(bool(scheduling.get("automaticRestart"))).upper(),
                    "on-host-maintenance": scheduling.get("onHostMaintenance", "MIGRATE"),
                    "preemptible": str(spot).upper(),
                },
                "tags": list(resource.get("tags", {}).get("items", [])),
                "zone": f"projects/{project.number}/zones/{zone}",
            },
            "project": {"project-id": project.id, "numeric-project-id": project.number, "attributes": {}},
        }


@dataclass(frozen=True)
class InstanceState:
    """State of an instance, as returned by GceControl.instances()."""

    name: str
    identity: str
    machine_type: str
    accelerator: str
    count: int
    zone: str
    region: str
    market: str
    status: str
    """"": it was deleted."""
    reason: str
    """Event that ended it, as an operation's type: `delete`, `compute.instances.preempted`."""
    labels: dict[str, str]
    external: bool
    """True if it has an external address."""
    scheduling: dict[str, Any]
    console: str
    """Console output; empty where machines do not boot."""
    trouble: list[str]
    """Problems that would also occur on a real machine: a failed startup script, an invalid unit file."""
    root: str
    """Folder of its disk."""
    metadata: str
    """URL of its metadata server."""
    launched: float
    """Monotonic time of its launch, by the stand-in's clock."""
    gone: float | None
    """Monotonic time when it stopped running; None: it runs."""

    @property
    def running(self) -> bool:
        return self.status not in GONE


def told(vm: Vm) -> InstanceState:
    machine, resource = vm.machine, vm.resource
    return InstanceState(
        name=vm.name,
        identity=str(resource["id"]),
        machine_type=vm.shape.machine_type,
        accelerator=vm.shape.accelerator,
        count=vm.shape.count,
        zone=vm.shape.zone,
        region=vm.shape.region,
        market=vm.shape.market,
        status=vm.status,
        reason=vm.reason,
        labels=dict(resource.get("labels", {})),
        external=any(one.get("accessConfigs") for one in resource["networkInterfaces"]),
        scheduling=dict(vm.scheduling),
        console=machine.console if machine else "",
        trouble=list(machine.trouble) if machine else [],
        root=str(machine.root) if machine else "",
        metadata=machine.metadata.url if machine else "",
        launched=vm.launched,
        gone=vm.gone,
    )
