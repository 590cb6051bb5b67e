"""Control verbs of Compute Engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from . import instances
from .machines import told
from .operations import FailedError
from .world import World


class Verbs:
    """Each public method is a control verb; it runs with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def table(self) -> Mapping[str, Callable[..., Any]]:
        names = [name for name in vars(type(self)) if not name.startswith("_") and name != "table"]
        return {name: self._locked(getattr(self, name)) for name in names}

    def _locked(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with self._world.lock:
                return verb(**arguments)

        return call

    # -- setup

    def set_capacity(self, machine_type: str, zone: str, market: str, places: int | None) -> None:
        self._world.capacity.set_places(machine_type, zone, market, places)

    def describe(self, kind: str, name: str, zones: list[str], fields: dict[str, Any] | None) -> None:
        self._world.described[kind, name] = (zones, fields)

    def set_quota(self, region: str, metric: str, limit: float, family: str) -> None:
        self._world.capacity.set_limit(region, metric, limit, family)

    def fail_later(self, zone: str, code: str, status: int) -> None:
        self._world.capacity.refusals[zone] = FailedError(code, status, f"{code} (stand-in)")

    def cut_off(self, zone: str) -> None:
        self._world.cut_off.add(f"zones/{zone}")

    def set_times(self, operation: float | None, stopping: float | None, lag: float | None, wait: float | None) -> None:
        world = self._world
        world.delay_s = world.delay_s if operation is None else operation
        world.stopping_s = world.stopping_s if stopping is None else stopping
        world.lag_s = world.lag_s if lag is None else lag
        world.wait_s = world.wait_s if wait is None else wait

    def add_network(self, name: str, regions: list[str] | None, private_access: bool) -> None:
        chosen = None if regions is None else tuple(regions)
        self._world.add_network(name, regions=chosen, private_access=private_access)

    def set_private_access(self, region: str, subnetwork: str, on: bool) -> None:
        self._world.collection("subnetworks")[f"regions/{region}", subnetwork]["privateIpGoogleAccess"] = on

    def remove_network(self, name: str) -> None:
        del self._world.collection("networks")["global", name]
        subnets = self._world.collection("subnetworks")
        for key in [key for key in subnets if key[1] == name]:
            del subnets[key]

    def add_account(self, email: str) -> None:
        self._world.project.accounts.add(email)

    def remove_account(self, email: str) -> None:
        self._world.project.accounts.discard(email)

    def reserve(
        self,
        *,
        name: str,
        machine_type: str,
        zone: str,
        places: int,
        accelerator: str,
        count: int,
        specific: bool,
        dense: bool,
    ) -> None:
        properties: dict[str, Any] = {"machineType": machine_type}
        if accelerator:
            properties["guestAccelerators"] = [{"acceleratorType": accelerator, "acceleratorCount": count}]
        body = {
            "name": name,
            "status": "READY",
            "specificReservationRequired": specific,
            "specificReservation": {"count": str(places), "inUseCount": "0", "instanceProperties": properties},
        }
        if dense:
            body["deploymentType"] = "DENSE"
        self._world.put("reservations", "reservation", f"zones/{zone}", body)

    # -- events

    def preempt(self, name: str, seconds: float) -> None:
        instances.preempt(self._world, self._world.vm(name), seconds)

    def maintain(self, name: str, lead: float, repair: float, shutdown: float) -> None:
        instances.maintain(self._world, self._world.vm(name), lead, repair, shutdown)

    def crash(self, name: str, repair: float) -> None:
        instances.crash(self._world, self._world.vm(name), repair)

    def end_run(self, name: str) -> None:
        instances.end_run(self._world, self._world.vm(name))

    def reboot(self, name: str) -> None:
        instances.reboot(self._world.vm(name))

    def run_delayed(self) -> None:
        self._world.run_delayed()

    # -- state

    def instances(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(told(vm)) for vm in self._world.vms]

    def remove(self, collection: str, name: str) -> None:
        kept = self._world.collection(collection)
        for key in [key for key in kept if key[1] == name]:
            del kept[key]

    def resources(self, collection: str) -> list[dict[str, Any]]:
        return list(self._world.collection(collection).values())
