"""Stand-in for the target `azure`: virtual machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import pytest

from cloudgpu.provisioners import Provisioner
from cloudgpu.provisioners.azure.clients import Clients
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.tests.standins.azure import Azure, AzureControl
from cloudgpu.tests.standins.azure.jobs import CONTAINER
from cloudgpu.tests.standins.azurite import ACCOUNT
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error

from .standin import Refusals, Standin

VM = "Microsoft.Compute/virtualMachines"
TAGGED = {
    "Microsoft.Compute": ("virtualMachines", "disks"),
    "Microsoft.Network": ("networkInterfaces", "publicIPAddresses", "virtualNetworks", "networkSecurityGroups"),
    "Microsoft.ManagedIdentity": ("userAssignedIdentities",),
}


class AzureStandin(Standin):
    target, region, zone = "azure", "eastus", "1"
    machine_type, job_dir = "Standard_NC4as_T4_v3", f"az://{CONTAINER}@{ACCOUNT}/jobs"
    revives = True
    start, calls_of_launch = "virtualMachines.write", 40
    reads = "token|*.read|*.list|locations.usages"
    zones = ("1", "2", "3")
    refusals: ClassVar[Refusals] = {
        "capacity": error("SkuNotAvailable", 409, "The requested size is currently not available in location 'eastus'"),
        "quota": error("OperationNotAllowed", 409, "Operation could not be completed: it exceeds the approved quota"),
        "auth": error("AuthorizationFailed", 403),
        "invalid": error("InvalidParameter", 400),
        "not_offered": error("SkuNotAvailable", 409, "NotAvailableForSubscription"),
        "throttled": error("TooManyRequests", 429, "slower", **{"Retry-After": "2"}),
        "transient": error("InternalExecutionError", 500),
    }

    azure: AzureControl

    def __enter__(self) -> Self:
        azure = self.stack.enter_context(Azure())
        self.control = self.azure = azure.control
        self.environ |= azure.environ(self.folder / "az")
        return self

    def reset(self, patch: pytest.MonkeyPatch) -> None:
        super().reset(patch)
        self.azure.add_storage(ACCOUNT)

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return AzureProvisioner(clock or FastClock())

    def alive(self) -> int:
        return len(self.azure.resources(VM))

    def started(self) -> int:
        return len(self.azure.instances(ran=True))

    def left(self) -> object:
        found = self.azure.all_resources()
        return [one for one in found if "/cloudgpu-" in one.lower() or "roleassignments" in one.lower()]

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        kinds = [f"{namespace}/{kind}" for namespace, names in TAGGED.items() for kind in names]
        made = [one for kind in kinds for one in self.azure.resources(kind)]
        groups = self.azure.resources("Microsoft.Resources/resourceGroups")
        made += [one for one in groups if one["name"].startswith("cloudgpu-")]
        return {one["id"]: one.get("tags", {}) for one in made}

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        self.azure.set_capacity(self.machine_type, self.region, zone or "1", market, places)

    def limit_quota(self, nodes: int) -> None:
        for cores in ("cores", "lowPriorityCores"):
            self.azure.set_quota(self.region, cores, 4 * nodes)

    def delay_listings(self) -> None:
        self.azure.set_times(cache=0.4, lag=600.0)

    def show_listings(self) -> None:
        self.azure.set_times(cache=0.0, lag=0.0)

    def end_slowly(self) -> None:
        self.azure.set_times(group=0.3)

    def crash(self, machine: str) -> None:
        self.azure.evict(machine, 0.0)

    def preempt(self, machine: str) -> None:
        self.azure.evict(machine, 0.05)

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        patch.setenv("AZURE_SUBSCRIPTION_ID", "5ab50000-0000-4000-8000-00000000ffff")
        return self.new_provisioner()

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("AZURE_CLIENT_SECRET", "another one")

    def reserve(self, places: int) -> None:
        compute: Any = Clients(FastClock()).compute
        body: dict[str, Any] = {"location": self.region, "zones": [self.zone]}
        compute.capacity_reservation_groups.create_or_update("storage", "mine", body)
        body |= {"sku": {"name": self.machine_type, "capacity": places}}
        make = compute.capacity_reservations.begin_create_or_update
        make("storage", "mine", "t4", body, polling_interval=0.05).result()
