"""A running virtual machine: its metadata service, its power state, and its representation for tests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine import Ending, Machine
from .arm import key, last, parse
from .capacity import Shape
from .imds import InstanceMetadata
from .tokens import Principal

if TYPE_CHECKING:
    from .world import World


@dataclass
class Vm:
    """One machine, kept after its end."""

    id: str
    resource: dict[str, Any]
    shape: Shape
    custom_data: str
    launched: float
    """Monotonic time of its launch, by the stand-in's clock."""
    power: str = "creating"
    """Power state as in `PowerState/…`: `running`, `starting`, `stopped`, `deallocated`; or `creating`; `failed`; "":
    deleted."""
    machine: AzureMachine | None = None
    gone: float | None = None
    """Monotonic time when it last stopped running; None: it runs."""
    reason: str = ""
    """Cause of its end: `delete`, `evicted`, `deallocate`, `powerOff`, `guest`, or an error's code."""
    boot_diagnostics: bool = False
    ran: bool = False
    """True once it was allocated."""
    was_external: bool = False
    """True if it had a public address when it was launched."""
    opened: list[str] = field(default_factory=list)
    """Security rules that admitted the internet when it was launched, with a public address."""

    @property
    def name(self) -> str:
        return last(self.id)

    @property
    def group(self) -> str:
        return parse(self.id).group

    @property
    def is_placed(self) -> bool:
        """True if it uses capacity."""
        return self.power in ("running", "starting", "creating", "stopped")

    @property
    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.resource["properties"]
        return found


class AzureMachine(Machine):
    """A virtual machine with its metadata service."""

    def __init__(self, world: World, vm: Vm, root: Path, ended: Callable[[Ending], None]) -> None:
        self._world, self._vm = world, vm
        self.metadata = InstanceMetadata(vm.name, self._describe, self._identities, self._token, self._acknowledged)
        self.begun: dict[str, Callable[[], None]] = {}
        """Event id -> action when the machine acknowledges it."""
        # Replaces 169.254.169.254, management.azure.com and the machine's trusted certificates.
        environ = {
            "CLOUDGPU_AZURE_METADATA": self.metadata.url,
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": self.metadata.url,
            "CLOUDGPU_AZURE_ENDPOINT": world.url,
            "SSL_CERT_FILE": str(world.certificate),
            "REQUESTS_CA_BUNDLE": str(world.certificate),
            **world.machine_environ,
        }
        super().__init__(root, base64.b64decode(vm.custom_data).decode(), environ, ended)
        self.metadata.__enter__()

    def dispose(self) -> None:
        super().dispose()
        self.metadata.__exit__(None, None, None)

    def _acknowledged(self, event: str) -> None:
        with self._world.lock:
            begin = self.begun.get(event)
        if begin is not None:
            self._world.after(0.0, begin)

    def _identities(self) -> Sequence[tuple[str, Principal]]:
        with self._world.lock:
            result = self._vm.resource.get("identity") or {}
            found = [
                (path, self._world.identities.get(key(path))) for path in result.get("userAssignedIdentities") or {}
            ]
            own = self._world.identities.get(key(self._vm.id))
        held = [(path, one) for path, one in found if one is not None]
        return [*held, ("", own)] if own is not None else held

    def _token(self, principal: Principal, audience: str) -> str:
        return self._world.tokens.issue(principal, audience)

    def _describe(self) -> Mapping[str, Any]:
        resource, target = self._vm.resource, parse(self._vm.id)
        tags = resource.get("tags") or {}
        image = self._vm.properties["storageProfile"].get("imageReference", {})
        return {
            "compute": {
                "azEnvironment": "AzurePublicCloud",
                "evictionPolicy": self._vm.properties.get("evictionPolicy", ""),
                "location": resource["location"],
                "name": self._vm.name,
                "offer": image.get("offer", ""),
                "osType": "Linux",
                "priority": self._vm.properties.get("priority", ""),
                "publisher": image.get("publisher", ""),
                "resourceGroupName": target.group,
                "resourceId": self._vm.id,
                "sku": image.get("sku", ""),
                "subscriptionId": target.subscription,
                "tags": ";".join(f"{name}:{value}" for name, value in tags.items()),
                "tagsList": [{"name": name, "value": value} for name, value in tags.items()],
                "vmId": self._vm.properties["vmId"],
                "vmScaleSetName": last(str((self._vm.properties.get("virtualMachineScaleSet") or {}).get("id", ""))),
                "vmSize": self._vm.shape.size.name,
                "zone": self._vm.shape.zone,
            },
            "network": {
                "interface": [
                    {
                        "ipv4": {"ipAddress": [{"privateIpAddress": one, "publicIpAddress": ""}]},
                        "ipv6": {"ipAddress": []},
                    }
                    for one in self._addresses()
                ]
            },
        }

    def _addresses(self) -> list[str]:
        with self._world.lock:
            nics = [self._world.find(one["id"]) for one in self._vm.properties["networkProfile"]["networkInterfaces"]]
            return [
                str(ip["properties"]["privateIPAddress"])
                for nic in nics
                if nic is not None
                for ip in nic["properties"]["ipConfigurations"]
            ]


@dataclass(frozen=True)
class InstanceState:
    """State of a machine, as returned by AzureControl.instances()."""

    name: str
    id: str
    group: str
    size: str
    region: str
    zone: str
    """"": no zone was requested."""
    market: str
    status: str
    """Power state as in `PowerState/…`, or `creating`, `failed`; "": it was deleted. A stopped machine is billed."""
    provisioning: str
    reason: str
    """Cause of its end: `delete`, `evicted`, `deallocate`, `powerOff`, `guest`, or an error's code."""
    tags: dict[str, str]
    identities: list[str]
    """Ids of user-assigned identities; `system`."""
    external: bool
    """True if it had a public address when it was launched."""
    open: list[str]
    """Names of security rules that admit the internet, if it has such an address."""
    console: str
    """Console output; empty where machines do not boot."""
    ran: bool
    """True once it was allocated."""
    trouble: list[str]
    """Problems that would also occur on a real machine."""
    root: str
    """Folder of its disk."""
    metadata: str
    """URL of its metadata service."""
    events: list[str]
    """Ids of Scheduled Events that it acknowledged."""
    launched: float
    """Monotonic time of its launch, by the stand-in's clock."""
    gone: float | None
    """Monotonic time when it stopped running; None: it runs."""

    @property
    def running(self) -> bool:
        return self.status == "running"


def told(vm: Vm) -> InstanceState:
    machine, resource = vm.machine, vm.resource
    identity = resource.get("identity") or {}
    own = ["system"] if "SystemAssigned" in str(identity.get("type", "")) else []
    return InstanceState(
        name=vm.name,
        id=vm.id,
        group=vm.group,
        size=vm.shape.size.name,
        region=vm.shape.region,
        zone=vm.shape.zone,
        market=vm.shape.market,
        status=vm.power,
        provisioning=str(vm.properties["provisioningState"]),
        reason=vm.reason,
        tags=dict(resource.get("tags") or {}),
        identities=[*(identity.get("userAssignedIdentities") or {}), *own],
        external=vm.was_external,
        open=list(vm.opened),
        console=machine.console if machine else "",
        ran=vm.ran,
        trouble=list(machine.trouble) if machine else [],
        root=str(machine.root) if machine else "",
        metadata=machine.metadata.url if machine else "",
        events=list(machine.metadata.started) if machine else [],
        launched=vm.launched,
        gone=vm.gone,
    )
