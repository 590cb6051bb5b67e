"""EC2's vCPU quotas: check before a launch whether its machines fit.

EC2 limits running vCPUs by region, by group of instance families and by market; spot and on-demand have separate
limits, and all zones share them. quotas.csv maps families to quota codes. Families that it lacks (Spot on P6, for which
no code could be verified) are not checked here; EC2 refuses launches that exceed them.
"""

from __future__ import annotations

import csv
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ....jobspecs import catalog
from ...base import ErrorClass, LaunchRequest, ProvisionError
from ...shared.clock import SystemClock
from ...shared.poll_cache import PollCache
from ..clients import Clients
from ..errors import translate_errors
from ..resources.instance_cache import InstanceCache

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_service_quotas import ServiceQuotasClient

log = logging.getLogger("cloudgpu.provisioners.aws")

LIMIT_S = 600.0
"""TTL of a cached limit in seconds. A failed query is cached for the same time, as an unknown limit."""
UNSEEN_S = 120.0
"""Seconds for which a launch's vCPUs count as used although listings do not show its machines yet."""
_TABLE = Path(__file__).with_name("quotas.csv")
_FAMILY = re.compile(r"([a-z]+)(\d*)")


class Quota(NamedTuple):
    """Limit on the vCPUs of a group of instance families in one market of a region."""

    code: str
    name: str
    market: str
    """`on-demand` or `spot`; machines of a Capacity Block, which are prepaid, count against neither."""
    families: str
    """Families of instances, e.g. `G, GR, VT`."""

    def link(self, region: str) -> str:
        """Return the console's URL for requesting an increase."""
        return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{self.code}"


def quota_of(machine_type: str, market: str) -> Quota | None:
    """Return the quota that a machine of this type counts against; None: unknown."""
    found = _FAMILY.match(machine_type)
    if found is None:
        return None
    family, generation = found.groups()
    table = _quotas()
    return table.get((family + generation, market)) or table.get((family, market))


def quotas() -> list[Quota]:
    """Return all known quotas."""
    return list(dict.fromkeys(_quotas().values()))


def gpu_quotas() -> list[Quota]:
    """Return the quotas of the families in the tables, all of which have accelerators."""
    used = {quota_of(name, market) for name in catalog.machine_types("aws") for market in ("on-demand", "spot")}
    return [quota for quota in quotas() if quota in used]


def check(
    ec2: EC2Client, service_quotas: ServiceQuotasClient, *, region: str, market: str, machine_types: Sequence[str]
) -> None:
    """Raise ProvisionError(quota) if these machines would exceed the quota, given those that already run.

    `machine_types`: one entry for each machine to start; running machines of the same launch count as used. If the API
    does not return a limit (no permission, no answer, no such quota), that is logged once and the check passes, so that
    EC2 decides. Makes two read-only calls for each quota (ec2:DescribeInstances, servicequotas:GetServiceQuota).
    """
    for quota, vcpus in _needed(machine_types, market).items():
        _check_one(ec2, service_quotas, region, quota, vcpus)


class Quotas:
    """Quota checks for all launches of a process, with cached limits. Thread-safe.

    Only the owner's machines count as used, from cached listings; EC2 itself also counts those of other owners."""

    def __init__(self, clients: Clients, sightings: InstanceCache) -> None:
        self._clients, self._sightings = clients, sightings
        self._limits: PollCache[tuple[str, Quota], float | None] = PollCache(self._ask, clients.clock, ttl_s=LIMIT_S)
        self._lock = threading.Lock()
        self._reserved: dict[tuple[str, Quota], dict[str, tuple[int, float]]] = {}
        """(region, quota) -> launch token -> (vCPUs, monotonic time of the reservation)."""

    def check(self, request: LaunchRequest, missing: Sequence[str]) -> None:
        """Raise ProvisionError if the quotas do not allow the missing machines of a launch, and reserve their vCPUs
        otherwise.

        `missing`: one machine type for each machine. The error is `quota` if the whole launch exceeds the limit,
        `capacity` if it would fit when fewer vCPUs are in use."""
        whole = _needed([node.machine_type for node in request.nodes], request.market)
        for quota, vcpus in _needed(missing, request.market).items():
            allowed = self._limits.get((request.region, quota))
            if allowed is None:
                continue
            if whole[quota] > allowed:
                raise _refusal("quota", request.region, quota, whole[quota], allowed, 0)
            seen = self._seen(request, quota)
            with self._lock:
                used = self._used(request, quota, seen)
                if used + vcpus > allowed:
                    raise _refusal("capacity", request.region, quota, vcpus, allowed, used)
                begun = self._reserved.setdefault((request.region, quota), {})
                begun[request.token] = (vcpus + seen[request.token], self._clients.clock.monotonic())

    def are_known_to_suffice(self, request: LaunchRequest) -> bool:
        """Return whether all limits are known and large enough for the whole launch; EC2's refusal is then due to
        current usage."""
        whole = _needed([node.machine_type for node in request.nodes], request.market)
        limits = {quota: self._limits.get((request.region, quota)) for quota in whole}
        return bool(limits) and all(
            allowed is not None and whole[quota] <= allowed for quota, allowed in limits.items()
        )

    def release(self, request: LaunchRequest) -> None:
        """Release the vCPUs that check() reserved for a launch; called after it failed."""
        with self._lock:
            for begun in self._reserved.values():
                begun.pop(request.token, None)

    def _seen(self, request: LaunchRequest, quota: Quota) -> Counter[str]:
        """Return launch token -> vCPUs of the owner's machines under this quota; 0 if the machines have ended."""
        seen: Counter[str] = Counter()
        for one in self._sightings.of_owner(request.region, request.owner.name).values():
            if quota_of(one.machine_type, one.market) == quota:
                seen[one.token] += 0 if one.is_gone else _vcpus(one.machine_type) or 0
        return seen

    def _used(self, request: LaunchRequest, quota: Quota, seen: Counter[str]) -> int:
        """Return the vCPUs in use: of listed machines, and of other recent launches that are not listed yet.

        Drops reservations older than UNSEEN_S. Callers hold the lock."""
        begun, now = self._reserved.get((request.region, quota), {}), self._clients.clock.monotonic()
        for token in [token for token, (_, at) in begun.items() if now - at > UNSEEN_S]:
            del begun[token]
        coming = (vcpus for token, (vcpus, _) in begun.items() if token != request.token and token not in seen)
        return seen.total() + sum(coming)

    def _ask(self, where: tuple[str, Quota]) -> float | None:
        region, quota = where
        try:
            with translate_errors(f"ask for quota {quota.code} of {region}", self._clients.clock):
                return limit(self._clients.service_quotas(region), quota)
        except (ProvisionError, KeyError) as error:
            _say_once(str(error))
            return None


def _needed(machine_types: Sequence[str], market: str) -> Counter[Quota]:
    """Return the needed vCPUs of each quota; machine types with unknown quota or vCPUs are left out."""
    needed: Counter[Quota] = Counter()
    for machine_type in machine_types:
        quota, vcpus = quota_of(machine_type, market), _vcpus(machine_type)
        if quota is not None and vcpus is not None:
            needed[quota] += vcpus
    return needed


def _refusal(  # noqa: PLR0917 - the parts of the message
    kind: ErrorClass, region: str, quota: Quota, needed: int, allowed: float, used: int
) -> ProvisionError:
    beside = f" and {used} are in use" if used else ""
    wait = "" if kind == "quota" else "; they are waited for"
    return ProvisionError(
        kind,
        f"{region}: {needed} vCPUs more are needed, but {quota.name} ({quota.code}) allows {allowed:g}{beside}{wait}; "
        f"ask for more: {quota.link(region)}",
        scope="region",
        code=quota.code,
    )


def limit(service_quotas: ServiceQuotasClient, quota: Quota) -> float:
    """Return a quota's limit in vCPUs. Raises botocore's errors."""
    answer = service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    return answer["Quota"]["Value"]


def _check_one(ec2: EC2Client, service_quotas: ServiceQuotasClient, region: str, quota: Quota, needed: int) -> None:
    try:
        with translate_errors(f"ask for quota {quota.code} of {region}", SystemClock()):
            allowed = limit(service_quotas, quota)
            used = _used(ec2, quota) if needed <= allowed else 0
    except (ProvisionError, KeyError) as error:
        _say_once(str(error))
        return
    if used + needed <= allowed:
        return
    raise _refusal("quota", region, quota, needed, allowed, used)


def _used(ec2: EC2Client, quota: Quota) -> int:
    """Return the vCPUs of the account's pending and running machines that count against the quota."""
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )
    used = 0
    for page in pages:
        for reservation in page["Reservations"]:
            for instance in reservation.get("Instances", ()):
                market = {"spot": "spot", "capacity-block": "reservation"}.get(
                    instance.get("InstanceLifecycle", ""), "on-demand"
                )
                if quota_of(instance["InstanceType"], market) == quota:
                    options = instance.get("CpuOptions", {})
                    cores = options.get("CoreCount", 1) * options.get("ThreadsPerCore", 1)
                    used += _vcpus(instance["InstanceType"]) or cores
    return used


def _vcpus(machine_type: str) -> int | None:
    group = catalog.machine_types("aws").get(machine_type)
    return None if group is None else group[0].vcpus


@cache
def _quotas() -> dict[tuple[str, str], Quota]:
    """Return (family with or without its generation, market) -> quota."""
    return {
        (family, row["market"]): Quota(
            row["code"], row["name"], row["market"], ", ".join(row["families"].upper().split())
        )
        for row in _rows()
        for family in row["families"].split()
    }


def _rows() -> Iterator[dict[str, str]]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


@cache
def _say_once(reason: str) -> None:
    log.warning("not checked before launching: %s", reason)
