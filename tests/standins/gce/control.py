"""A test's hold on the stand-in for Compute Engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..gcp.control import GcpControl
from .machines import Told


class GceControl(GcpControl):
    """Made of the stand-in's URL; instances are told by name."""

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        """At most so many machines at once of a type, zone and market (`spot`, `on-demand`, `flex-start`); None: any
        number."""
        self.do("compute/set_capacity", machine_type=machine_type, zone=zone, market=market, places=places)

    def fail_later(self, zone: str, code: str, status: int) -> None:
        """The operation that makes the next instance in a zone fails with this error."""
        self.do("compute/fail_later", zone=zone, code=code, status=status)

    def cut_off(self, zone: str) -> None:
        """Lists of all zones cannot reach this one."""
        self.do("compute/cut_off", zone=zone)

    def describe(self, kind: str, name: str, zones: Sequence[str], fields: dict[str, Any] | None) -> None:
        """What lists of `machineTypes` or `acceleratorTypes` tell of one in some zones: with these fields, whatever it
        is otherwise; None: nothing. It cannot be launched for that."""
        self.do("compute/describe", kind=kind, name=name, zones=list(zones), fields=fields)

    def set_quota(self, region: str, metric: str, limit: float, *, family: str = "") -> None:
        """By metric, such as NVIDIA_T4_GPUS; of the newer GPUs GPUS_PER_GPU_FAMILY and a family, such as NVIDIA_H100.
        The region may be `global`."""
        self.do("compute/set_quota", region=region, metric=metric, limit=limit, family=family)

    def set_times(
        self,
        *,
        operation: float | None = None,
        stopping: float | None = None,
        lag: float | None = None,
        wait: float | None = None,
    ) -> None:
        """Seconds: until an operation is done, that instances are STOPPING, until lists show new ones, that `wait`
        waits."""
        self.do("compute/set_times", operation=operation, stopping=stopping, lag=lag, wait=wait)

    def add_network(self, name: str, *, regions: Sequence[str] | None = None, private_access: bool = False) -> None:
        """With a subnetwork of the same name in these regions; None: in all."""
        told = None if regions is None else list(regions)
        self.do("compute/add_network", name=name, regions=told, private_access=private_access)

    def remove_network(self, name: str) -> None:
        """With its subnetworks."""
        self.do("compute/remove_network", name=name)

    def set_private_access(self, region: str, on: bool = True, *, subnetwork: str = "default") -> None:
        """Private Google Access of a subnetwork."""
        self.do("compute/set_private_access", region=region, subnetwork=subnetwork, on=on)

    def add_account(self, email: str) -> None:
        """A service account that machines may have."""
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
        """A reservation; `specific`: only who names it gets it; `dense`: its machines are bound to it."""
        told = {"name": name, "machine_type": machine_type, "zone": zone, "places": places, "specific": specific}
        told["dense"] = dense
        self.do("compute/reserve", accelerator=accelerator, count=count, **told)

    def preempt(self, name: str, seconds: float = 30.0) -> None:
        """Notice and ACPI shutdown now, the power is cut after so long."""
        self.do("compute/preempt", name=name, seconds=seconds)

    def maintain(self, name: str, lead: float, *, repair: float = 0.5, shutdown: float = 60.0) -> None:
        """Maintenance of its host is announced; in `lead` seconds it is shut down, for which it has `shutdown`; where
        it says so it is started again `repair` later."""
        self.do("compute/maintain", name=name, lead=lead, repair=repair, shutdown=shutdown)

    def crash(self, name: str, *, repair: float = 0.5) -> None:
        """Its host fails: everything is gone at once; where it says so it is started again."""
        self.do("compute/crash", name=name, repair=repair)

    def end_run(self, name: str) -> None:
        """The time that it was given (maxRunDuration) is over now."""
        self.do("compute/end_run", name=name)

    def reboot(self, name: str) -> None:
        """Everything on it is killed; it boots again with its disk."""
        self.do("compute/reboot", name=name)

    def hurry(self) -> None:
        """What would be done later, whatever the times set, is done now: so a test may look at what does not last, as
        long as it takes."""
        self.do("compute/hurry")

    def instances(self, **where: Any) -> list[Told]:
        """All that ever ran; `where` compares fields: `instances(running=True, zone="us-central1-a")`."""
        told = [Told(**value) for value in self.do("compute/instances")]
        return [one for one in told if all(getattr(one, name) == value for name, value in where.items())]

    def remove(self, collection: str, name: str) -> None:
        """Of a collection other than `instances`, what has this name: it is not there any more."""
        self.do("compute/remove", collection=collection, name=name)

    def resources(self, collection: str) -> list[dict[str, Any]]:
        """Of a collection (`disks`, `firewalls`), all resources, as the API shows them."""
        found: list[dict[str, Any]] = self.do("compute/resources", collection=collection)
        return found
