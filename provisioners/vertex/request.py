"""Build the REST body of a CustomJob from a launch request. Pure functions, for tests and for display."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...jobspecs.catalog.machines import MachineType, find_machine_type
from ..base import LaunchRequest, NodeRequest, ProvisionError
from ..boot import container_command
from ..gcp import labels
from ..shared import tags
from ..shared.boot_record import build_boot_data, check_agent
from . import worker_pools
from .images import default_image

MARKET = "cloudgpu-market"
"""Label with the job's market, in addition to those of tags.py: lists do not contain the job's strategy."""
NETWORK = "CLOUDGPU_VERTEX_NETWORK"
RESERVATION = "CLOUDGPU_VERTEX_RESERVATION"
_STRATEGIES = {
    "on-demand": "STANDARD",
    "reservation": "STANDARD",
    "spot": "SPOT",
    "flex-start": "FLEX_START",
}
_MIN_DISK_GB = 100
"""Size of the smallest boot disk in GB. Source: API reference, DiskSpec."""
MAX_FLEX_S = 7 * 86_400
"""Maximum run time of a flex-start job in seconds: "Schedule training jobs based on resource availability"."""
MAX_RUN_S = 30 * 86_400
"""Longest timeout in seconds that is requested. Vertex AI's maximum is not documented; its default is 7 days."""
_GRACE_S = 600
"""Seconds between the end of the lifetime, when the container normally ends itself, and Vertex AI's timeout."""
MAX_WAIT_S = 86_400
"""Longest wait of a flex-start job for its machines, in seconds: the service's default, set explicitly."""
_MAX_NAME = 128
_NETWORK = re.compile(r"projects/[^/]+/global/networks/[^/]+")
_RESERVATION = re.compile(r"projects/[^/]+/zones/(?P<region>[a-z0-9-]+)-[a-z]/reservations/[^/]+")
_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a launch from the environment and the account."""

    service_account: str
    storage_endpoint: str | None = None
    """Endpoint of Cloud Storage on the loopback, for tests; None: Google's real endpoint."""
    api_endpoint: str | None = None
    """Endpoint of all of Google's APIs for the containers, likewise."""
    network: str = ""
    """`projects/NUMBER/global/networks/NAME` that jobs are peered with; "": none."""
    reservations: tuple[str, ...] = ()
    """Reservations to use, each as `projects/PROJECT/zones/ZONE/reservations/NAME`."""


def read_settings(service_account: str, storage_endpoint: str | None, api_endpoint: str | None = None) -> Settings:
    """Read the settings from the environment. Raises ProvisionError for an invalid variable."""
    network = os.environ.get(NETWORK, "")
    if network and not _NETWORK.fullmatch(network):
        message = f"{NETWORK}={network}: expected projects/PROJECT_NUMBER/global/networks/NAME"
        raise ProvisionError("invalid", message, scope="cloud")
    reservations = tuple(os.environ.get(RESERVATION, "").split())
    for one in reservations:
        if not _RESERVATION.fullmatch(one):
            message = f"{RESERVATION}: {one} is not projects/PROJECT/zones/ZONE/reservations/NAME"
            raise ProvisionError("invalid", message, scope="cloud")
    return Settings(service_account, storage_endpoint, api_endpoint, network, reservations)


def custom_job(request: LaunchRequest, settings: Settings) -> dict[str, Any]:
    """Return the body of customJobs.create. Raises ProvisionError if the request does not fit a custom job."""
    check_request(request)
    placed = worker_pools.pools_of(request.nodes)
    command, args = _command(request, settings, placed)
    specs: list[dict[str, Any]] = [{} for _ in range(placed[-1].index + 1)]  # {}: the pool is skipped
    for pool in placed:
        specs[pool.index] = {
            "machineSpec": _machine(request, pool.nodes[0], settings),
            "replicaCount": str(len(pool.nodes)),
            "diskSpec": {"bootDiskSizeGb": max(_MIN_DISK_GB, math.ceil(request.disk_gb))},
            "containerSpec": {"imageUri": _image(request, pool.nodes[0]), "command": command, "args": args},
        }
    spec = {
        "workerPoolSpecs": specs,
        "scheduling": _scheduling(request),
        "serviceAccount": settings.service_account,
        "baseOutputDirectory": {"outputUriPrefix": request.job_dir},
    }
    if settings.network:
        spec["network"] = settings.network
    values = {
        **labels.to_labels({**tags.launch_tags(request), MARKET: request.market}),
        **worker_pools.to_labels(placed),
    }
    return {"displayName": f"{request.job_id} {request.attempt}"[:_MAX_NAME], "labels": values, "jobSpec": spec}


def check_request(request: LaunchRequest) -> None:
    """Raise ProvisionError if Vertex AI does not have the market, or the agent file or market does not fit the
    machines."""
    if request.market not in _STRATEGIES:
        raise ProvisionError("invalid", f"Vertex AI has no market {request.market}", scope="cloud")
    check_agent(request, lambda node: _type(node).arch)
    if request.market == "flex-start" and len({(node.machine_type, node.count) for node in request.nodes}) > 1:
        message = "a flex-start job has the same machine in all of its worker pools: choose another market"
        raise ProvisionError("not_offered", message, scope="cloud")


def _command(
    request: LaunchRequest, settings: Settings, placed: Sequence[worker_pools.Pool]
) -> tuple[list[str], list[str]]:
    return build_boot_data(
        request,
        "",
        "vertex",
        lambda record: container_command(record, worker_pools.replicas(placed)),
        lifetime_s=_life_s(request),
        endpoint=settings.storage_endpoint,
        api_endpoint=settings.api_endpoint,
    )


def _type(node: NodeRequest) -> MachineType:
    found = find_machine_type("vertex", node.machine_type, node.accelerator)
    if found is None:
        what = f"{node.machine_type} with {node.accelerator}" if node.accelerator else node.machine_type
        raise ProvisionError("not_offered", f"Vertex AI has no {what}", scope="cloud")
    return found


def _machine(request: LaunchRequest, node: NodeRequest, settings: Settings) -> dict[str, Any]:
    spec: dict[str, Any] = {"machineType": node.machine_type}
    if node.accelerator is not None:
        spec["acceleratorType"] = _type(node).provider_accelerator
        spec["acceleratorCount"] = int(node.count)
    if request.market == "reservation" and _is_reserved(request, node):
        spec["reservationAffinity"] = _affinity(request.region, settings)
    return spec


def _is_reserved(request: LaunchRequest, node: NodeRequest) -> bool:
    """Return whether a node uses the reservation: in a job with GPUs only the nodes that have GPUs do."""
    return node.accelerator is not None or all(one.accelerator is None for one in request.nodes)


def _affinity(region: str, settings: Settings) -> dict[str, Any]:
    """Return the affinity to a named reservation; with `any`, Vertex AI would fall back to machines without
    reservation."""
    for name in settings.reservations:
        found = _RESERVATION.fullmatch(name)
        if found is not None and found["region"] == region:
            return {"reservationAffinityType": "SPECIFIC_RESERVATION", "key": _KEY, "values": [name]}
    message = f"no reservation in {region} is named: set {RESERVATION}=projects/PROJECT/zones/ZONE/reservations/NAME"
    raise ProvisionError("not_offered", message, scope="region", code="NoReservation")


def _image(request: LaunchRequest, node: NodeRequest) -> str:
    named = request.images.get(node.role)
    return named or default_image(node.machine_type, _type(node).arch, node.accelerator)


def _scheduling(request: LaunchRequest) -> dict[str, Any]:
    """Return the scheduling options. The service's retries are disabled, since the supervisor makes new attempts: a
    restarted container has an empty disk and cannot claim its node again."""
    life_s = _life_s(request)
    scheduling: dict[str, Any] = {
        "strategy": _STRATEGIES[request.market],
        "disableRetries": True,
        "restartJobOnWorkerRestart": False,
    }
    if life_s is not None:
        scheduling["timeout"] = f"{life_s + _GRACE_S}s"
    if request.market == "flex-start":
        scheduling["maxWaitDuration"] = f"{MAX_WAIT_S}s"
    return scheduling


def _life_s(request: LaunchRequest) -> int | None:
    """Return the maximum run time of a container in seconds; None: Vertex AI's default."""
    flex = request.market == "flex-start"
    longest = (MAX_FLEX_S if flex else MAX_RUN_S) - _GRACE_S
    if request.lifetime_s is None:
        return longest if flex else None
    return min(request.lifetime_s, longest)
