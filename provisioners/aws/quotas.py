"""How many vCPUs the account may have in a region, and whether machines still fit: asked before they are launched.

EC2 limits running vCPUs by region, by a group of families and by market: spot and on-demand are apart, and all zones
share them. quotas.csv tells which group has which quota code; a family it does not name (Spot on P6, of which no code
could be verified) is not looked at here: EC2 itself refuses what is too much.
"""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...jobspecs import catalog
from ..base import ProvisionError
from ..clock import SystemClock
from .clients import told

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_service_quotas import ServiceQuotasClient

log = logging.getLogger("cloudgpu.provisioners.aws")

_TABLE = Path(__file__).with_name("quotas.csv")
_FAMILY = re.compile(r"([a-z]+)(\d*)")


class Quota(NamedTuple):
    """A limit on the vCPUs of a group of families in one market of a region."""

    code: str
    name: str
    market: str
    """`on-demand` or `spot`; machines of a Capacity Block are paid for already and count against neither."""

    def link(self, region: str) -> str:
        """Where more is asked for."""
        return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{self.code}"


def quota_of(machine_type: str, market: str) -> Quota | None:
    """The quota that a machine of this type counts against; None: none is known."""
    found = _FAMILY.match(machine_type)
    if found is None:
        return None
    family, generation = found.groups()
    table = _quotas()
    return table.get((family + generation, market)) or table.get((family, market))


def quotas() -> list[Quota]:
    """All that are known."""
    return list(dict.fromkeys(_quotas().values()))


def check(
    ec2: EC2Client, service_quotas: ServiceQuotasClient, *, region: str, market: str, machine_types: Sequence[str]
) -> None:
    """Raise ProvisionError(quota) if these machines, one entry each, do not fit beside those that run already.

    `machine_types` are the machines about to be started: those of the same launch that run already count as used. What
    the API does not tell (no permission, no answer, no such quota) is not held against the launch: it is logged once,
    and EC2 decides. Two read-only calls for each quota (ec2:DescribeInstances, servicequotas:GetServiceQuota).
    """
    needed: Counter[Quota] = Counter()
    for machine_type in machine_types:
        quota, vcpus = quota_of(machine_type, market), _vcpus(machine_type)
        if quota is not None and vcpus is not None:
            needed[quota] += vcpus
    for quota, vcpus in needed.items():
        _check_one(ec2, service_quotas, region, quota, vcpus)


def limit(service_quotas: ServiceQuotasClient, quota: Quota) -> float:
    """vCPUs. Raises botocore's errors."""
    answer = service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    return answer["Quota"]["Value"]


def _check_one(ec2: EC2Client, service_quotas: ServiceQuotasClient, region: str, quota: Quota, needed: int) -> None:
    try:
        with told(f"ask for quota {quota.code} of {region}", SystemClock()):
            allowed = limit(service_quotas, quota)
            used = _used(ec2, quota) if needed <= allowed else 0
    except (ProvisionError, KeyError) as error:
        _say_once(str(error))
        return
    if used + needed <= allowed:
        return
    beside = f" and {used} are in use" if used else ""
    raise ProvisionError(
        "quota",
        f"{region}: {needed} vCPUs more are needed, but {quota.name} ({quota.code}) allows {allowed:g}{beside}; "
        f"ask for more: {quota.link(region)}",
        scope="region",
        code=quota.code,
    )


def _used(ec2: EC2Client, quota: Quota) -> int:
    """vCPUs of the account's machines that count against the quota."""
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
    """(family, with or without its generation; market) -> quota."""
    return {
        (family, row["market"]): Quota(row["code"], row["name"], row["market"])
        for row in _rows()
        for family in row["families"].split()
    }


def _rows() -> Iterator[dict[str, str]]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


@cache
def _say_once(reason: str) -> None:
    log.warning("not checked before launching: %s", reason)
