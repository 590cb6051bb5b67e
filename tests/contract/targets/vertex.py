"""Stand-ins for the target `vertex`: custom jobs of Vertex AI, over REST and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import pytest

from cloudgpu.provisioners import Provisioner
from cloudgpu.provisioners.gcp.labels import from_labels
from cloudgpu.provisioners.vertex.provisioner import VertexProvisioner
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcp_catalog.control import VERTEX, CatalogControl
from cloudgpu.tests.standins.vertex.control import VertexControl
from cloudgpu.tests.standins.vertex.service import GRPC_ENDPOINT, JOBS

from .standin import Refusals, Standin

GPUS = "aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus"
QUOTA = "CustomModelTrainingT4GPUsPerProjectPerRegion"


class VertexStandin(Standin):
    target, region = "vertex", "us-central1"
    machine_type, job_dir = "n1-standard-8", "gs://jobs-of-tests/jobs"
    once = False
    start, calls_of_launch, calls_of_look = f"{JOBS}.create", 8, 1
    reads = "token|*.get|*.list|*.testIamPermissions"
    endpoint = ("CLOUDGPU_VERTEX_ENDPOINT", "http://vertex.example.com")
    refusals: ClassVar[Refusals] = {
        "quota": error("RESOURCE_EXHAUSTED", 429, f"The following quota metrics exceed quota limits: {GPUS}"),
        "auth": error("PERMISSION_DENIED", 403, "Permission 'aiplatform.customJobs.create' denied"),
        "invalid": error("INVALID_ARGUMENT", 400, "List of found errors:\t1.Field: job_spec; Message: no\t"),
        "not_offered": error("INVALID_ARGUMENT", 400, 'Machine type "x" is not supported.'),
        "throttled": error("RATE_LIMIT_EXCEEDED", 429, "slower"),
        "transient": error("UNAVAILABLE", 503),
    }
    transport: ClassVar[str] = "rest"

    def __enter__(self) -> Self:
        self.gcp = self.stack.enter_context(Gcp())
        self.control, self.vertex = self.gcp.control, VertexControl(self.gcp.control)
        self.environ |= self.gcp.environ(self.folder / "keys")
        self.environ["CLOUDGPU_VERTEX_TRANSPORT"] = self.transport
        return self

    def new_provisioner(self, clock: FastClock | None = None) -> Provisioner:
        return VertexProvisioner(clock or FastClock())

    def alive(self) -> int:
        return sum(job.replicas for job in self.vertex.jobs() if job.alive)

    def started(self) -> int:
        return sum(job.replicas for job in self.vertex.jobs())

    def left(self) -> object:
        return [job.name for job in self.vertex.jobs() if job.alive]

    def tags(self) -> Mapping[str, Mapping[str, str]]:
        return {job.name: from_labels(job.labels) for job in self.vertex.jobs()}

    def limit(self, places: int, market: str = "on-demand", zone: str = "") -> None:
        self.vertex.set_capacity(self.machine_type, self.region, market, places)

    def limit_quota(self, nodes: int) -> None:
        CatalogControl(self.gcp.url).set_cloud_quota(VERTEX, QUOTA, ({}, nodes))

    def delay_listings(self) -> None:
        self.vertex.set_lag(1_000.0)

    def show_listings(self) -> None:
        self.vertex.set_lag(0.0)

    def stranger(self, patch: pytest.MonkeyPatch) -> Provisioner:
        patch.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
        return self.new_provisioner()

    def break_credentials(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(self.folder / "nothing.json"))


class VertexGrpcStandin(VertexStandin):
    transport = "grpc"
    endpoint = Standin.endpoint

    def __enter__(self) -> Self:
        super().__enter__()
        self.environ["CLOUDGPU_VERTEX_ENDPOINT"] = f"http://{self.environ[GRPC_ENDPOINT]}"
        return self
