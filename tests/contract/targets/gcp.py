"""Stand-in for the target `gcp`: Compute Engine instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import pytest

from cloudgpu.provisioners import Provisioner
from cloudgpu.provisioners.gcp.labels import from_description, from_labels
from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import Gcp

from .standin import Refusals, Standin

BUCKET = "jobs-of-tests"
MADE = ("instances", "disks", "firewalls")
KEPT = "cloudgpu-closed-"
"""Name prefix of firewall rules that all launches share and that are not deleted."""


class GcpStandin(Standin):
    target, region, zone = "gcp", "us-central1", "us-central1-a"
    machine_type, job_dir = "n1-standard-4", f"gs://{BUCKET}/jobs"
    revives, taken = True, "compute.instances.preempted"
    start, calls_of_launch, calls_of_look = "instances.insert", 30, 1
    zones = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
    reads = "token|*.get|*.list|*.testIamPermissions"
    endpoint = ("CLOUDGPU_GCP_ENDPOINT", "http://compute.example.com")
    refusals: ClassVar[Refusals] = {
        "capacity": error("ZONE_RESOURCE_POOL_EXHAUSTED", 503),
        "quota": error("quotaExceeded", 403, "Quota 'NVIDIA_T4_GPUS' exceeded. Limit: 1.0 in region us-central1."),
        "auth": error("forbidden", 403, "Required 'compute.instances.create' permission for 'projects/p'"),
        "invalid": error("invalid", 400, "Invalid value for field 'resource.name'"),
        "not_offered": error("notFound", 404, "The resource 'projects/p/zones/z/machineTypes/x' was not found"),
        "throttled": error("rateLimitExceeded", 403, "Rate Limit Exceeded"),
        "transient": error("backendError", 503, "Backend Error"),
    }

    def __enter__(self) -> Self:
        self.gcp = self.stack.enter_context(Gcp())
        self.control = self.gce = GceControl(self.gcp.url)
        self.environ |= self.gcp.environ(self.folder / "keys")
        return self

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return GcpProvisioner(clock or FastClock())

    def alive(self) -> int:
        return len(self.gce.instances(running=True))

    def started(self) -> int:
        return len(self.gce.instances())

    def left(self) -> object:
        return [one["name"] for kind in MADE for one in self._ours(kind)]

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        labelled = {one["name"]: from_labels(one["labels"]) for one in self._ours("instances")}
        labelled |= {f"disk {one['name']}": from_labels(one["labels"]) for one in self._ours("disks")}
        return labelled | {one["name"]: from_description(one["description"]) for one in self._ours("firewalls")}

    def _ours(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.gce.resources(kind) if not one["name"].startswith(KEPT)]

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        self.gce.set_capacity(self.machine_type, zone or self.zones[0], market, places)

    def limit_quota(self, nodes: int) -> None:
        for metric in ("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"):
            self.gce.set_quota(self.region, metric, nodes)

    def delay_listings(self) -> None:
        self.gce.set_times(lag=600.0)

    def show_listings(self) -> None:
        self.gce.set_times(lag=0.0)

    def end_slowly(self) -> None:
        self.gce.set_times(stopping=0.3)

    def crash(self, machine: str) -> None:
        self.gce.preempt(machine.partition("/")[2], 0.0)

    def preempt(self, machine: str) -> None:
        self.gce.preempt(machine.partition("/")[2], 0.1)

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        patch.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
        return self.new_provisioner()

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(self.folder / "nothing.json"))

    def reserve(self, places: int) -> None:
        self.gce.reserve("mine", self.machine_type, self.region + "-a", places, accelerator="nvidia-tesla-t4", count=1)
