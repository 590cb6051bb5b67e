"""Test client of the stand-in for Compute Engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..gcp.control import GcpControl
from .machines import InstanceState


class GceControl(GcpControl):
    """Control by the stand-in's URL; instances are identified by name."""

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """Limit the concurrent machines of a type, zone and market (`spot`, `on-demand`, `flex-start`); None:
        unlimited."""
        self.do("compute/set_capacity", machine_type=machine_type, zone=zone, market=market, places=places)

    def fail_later(self, zone: str, code: str, status: int) -> None:
        """Make the insert operation of the next instance in a zone fail with this error."""
        self.do("compute/fail_later", zone=zone, code=code, status=status)

    def cut_off(self, zone: str) -> None:
        """Make a zone unreachable for aggregated lists."""
        self.do("compute/cut_off", zone=zone)

    def describe(self, kind: str, name: str, zones: Sequence[str], fields: dict[str, Any] | None) -> None:
        """Override fields of a machine type or accelerator type in lists (`kind`: `machineTypes` or `acceleratorTypes`)
        in some zones; None hides it. Launching is not affected."""
        self.do("compute/describe", kind=kind, name=name, zones=list(zones), fields=fields)

    def set_quota(self, region: str, metric: str, limit: float, *, family: str = "") -> None:
        """Set a quota by metric, such as NVIDIA_T4_GPUS; newer GPUs use GPUS_PER_GPU_FAMILY and a family, such as
        NVIDIA_H100. The region may be `global`."""
        self.do("compute/set_quota", region=region, metric=metric, limit=limit, family=family)

    def set_times(
        self,
        *,
        operation: float | None = None,
        stopping: float | None = None,
        lag: float | None = None,
        wait: float | None = None,
    ) -> None:
        """Set durations in seconds: of operations, of the status STOPPING, until lists show new instances, and the
        maximum of `wait`."""
        self.do("compute/set_times", operation=operation, stopping=stopping, lag=lag, wait=wait)

    def add_network(self, name: str, *, regions: Sequence[str] | None = None, private_access: bool = False) -> None:
        """Add a network with a subnetwork of the same name in these regions; None: all."""
        result = None if regions is None else list(regions)
        self.do("compute/add_network", name=name, regions=result, private_access=private_access)

    def remove_network(self, name: str) -> None:
        """Remove a network with its subnetworks."""
        self.do("compute/remove_network", name=name)

    def set_private_access(self, region: str, on: bool = True, *, subnetwork: str = "default") -> None:
        """Enable or disable Private Google Access of a subnetwork."""
        self.do("compute/set_private_access", region=region, subnetwork=subnetwork, on=on)

    def add_account(self, email: str) -> None:
        """Add a service account for machines."""
        self.do("compute/add_account", email=email)

    def remove_account(self, email: str) -> None:
        self.do("compute/remove_account", email=email)

    def reserve(
        self,
        name: str,
        machine_type: str,
        zone: str,
        places: int,
        *,
        accelerator: str = "",
        count: int = 0,
        specific: bool = True,
        dense: bool = False,
    ) -> None:
        """Add a reservation; `specific`: it must be targeted by name; `dense`: its machines are bound to it."""
        result = {"name": name, "machine_type": machine_type, "zone": zone, "places": places, "specific": specific}
        result["dense"] = dense
        self.do("compute/reserve", accelerator=accelerator, count=count, **result)

    def preempt(self, name: str, seconds: float = 30.0) -> None:
        """Announce preemption and press the ACPI power button; the power is cut after `seconds`."""
        self.do("compute/preempt", name=name, seconds=seconds)

    def maintain(self, name: str, lead: float, *, repair: float = 0.5, shutdown: float = 60.0) -> None:
        """Announce host maintenance; after `lead` seconds the machine has `shutdown` seconds to shut down. With
        automatic restart it starts again `repair` seconds later."""
        self.do("compute/maintain", name=name, lead=lead, repair=repair, shutdown=shutdown)

    def crash(self, name: str, *, repair: float = 0.5) -> None:
        """Simulate a host failure: the power is cut; with automatic restart it starts again `repair` seconds later."""
        self.do("compute/crash", name=name, repair=repair)

    def end_run(self, name: str) -> None:
        """End the machine's run as if maxRunDuration had passed."""
        self.do("compute/end_run", name=name)

    def reboot(self, name: str) -> None:
        """Kill all processes of the machine and boot it again with its disk."""
        self.do("compute/reboot", name=name)

    def run_delayed(self) -> None:
        """Run all delayed actions now, so that a test can first check the transient state without a race."""
        self.do("compute/run_delayed")

    def instances(self, **where: Any) -> list[InstanceState]:
        """Return all instances that ever ran; `where` compares fields: `instances(running=True,
        zone="us-central1-a")`."""
        result = [InstanceState(**value) for value in self.do("compute/instances")]
        return [one for one in result if all(getattr(one, name) == value for name, value in where.items())]

    def remove(self, collection: str, name: str) -> None:
        """Remove all resources with this name from a collection other than `instances`."""
        self.do("compute/remove", collection=collection, name=name)

    def resources(self, collection: str) -> list[dict[str, Any]]:
        """Return all resources of a collection (`disks`, `firewalls`), as in the API."""
        found: list[dict[str, Any]] = self.do("compute/resources", collection=collection)
        return found
