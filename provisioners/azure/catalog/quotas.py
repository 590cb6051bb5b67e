"""vCPU quotas of the subscription in a region, checked before machines are launched.

Azure limits vCPUs per region: for each family of sizes, and for all families together. Spot machines of all families
share one separate limit. All zones share the limits, and a machine counts until it is deleted. One API call returns
limits and usage.

quotas.csv maps sizes to families. A size missing there is only checked against the total limits; Azure enforces its
family's limit.

Sources in quotas.csv: `installer-docs`: Red Hat's list of families for its installer on Azure; `sku-lists`: the field
`family` of published responses of the Resource SKUs API. Source of the tiers: Azure's documentation, "Check vCPU
quotas", and "Spot Virtual Machines", which have a separate quota.
"""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ....jobspecs import catalog
from ...base import ProvisionError
from ..clients import Clients, as_dicts

log = logging.getLogger("cloudgpu.provisioners.azure")

SPOT = "lowPriorityCores"
"""Code of the quota for Spot machines of all families: `Total Regional Spot vCPUs` in the portal."""
TOTAL = "cores"
"""Code of the quota for all other machines of all families: `Total Regional vCPUs` in the portal."""
REQUEST_URL = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"
"""URL for requesting a higher quota."""
_TABLE = Path(__file__).with_name("quotas.csv")
_RETRY_TIMEOUT_S = 20.0
"""Timeout in seconds; short, because Azure also enforces the quota at launch."""


class Usage(NamedTuple):
    """Limit and usage of a quota in a region, in vCPUs."""

    code: str
    """Name in the API, e.g. `standardNDSH100v5Family`; some contain blanks."""
    name: str
    """Name in the portal, e.g. `Standard NCASv3_T4 Family vCPUs`."""
    limit: int
    used: int


def family_of(machine_type: str) -> str | None:
    """Return the family whose quota an on-demand machine counts against; None: unknown."""
    return next((family for family, patterns in _families() if _fits(machine_type, patterns)), None)


def families() -> list[str]:
    """Return all known families."""
    return [family for family, _ in _families()]


def key(code: str) -> str:
    """Return the normalized code for comparisons: the API's responses differ in a family's spelling."""
    return "".join(code.split()).casefold()


def usages(clients: Clients, region: str, retry_timeout_s: float = _RETRY_TIMEOUT_S) -> dict[str, Usage]:
    """Return the compute quotas of a region by key(), with one read-only call. Raises ProvisionError."""
    doing = f"ask for the quotas of {region}"
    found = clients.ask(doing, lambda: as_dicts(clients.compute.usage.list(region)), retry_timeout_s)
    try:
        parsed = [
            Usage(
                str(item["name"]["value"]),
                str(item["name"].get("localizedValue") or item["name"]["value"]),
                int(item["limit"]),
                int(item["currentValue"]),
            )
            for item in found
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{doing}: an unexpected answer ({type(error).__name__}: {error})"
        raise ProvisionError("transient", message, scope="region") from error
    return {key(usage.code): usage for usage in parsed}


def check(clients: Clients, *, region: str, market: str, machine_types: Sequence[str]) -> None:
    """Raise ProvisionError(quota) if these machines would exceed a quota, given current usage.

    `machine_types`: one entry for each machine to create; existing ones of the same launch count as used. Machines in a
    reservation need no quota check. If the API does not return a quota (no permission, no response, unknown quota), the
    launch continues with one warning in the log, and Azure decides. One read-only call.
    """
    needed = _needed(market, machine_types)
    if not needed:
        return
    try:
        usage_by_code = usages(clients, region)
    except ProvisionError as error:
        _say_once(str(error))
        return
    for code, vcpus in needed.items():
        usage = usage_by_code.get(key(code))
        if usage is None:
            _say_once(f"{region} tells of no quota {code}")
        elif usage.used + vcpus > usage.limit:
            raise _refusal(region, usage, vcpus)


def _needed(market: str, machine_types: Sequence[str]) -> Mapping[str, int]:
    """Return the needed vCPUs by quota code."""
    needed: Counter[str] = Counter()
    if market not in ("on-demand", "spot"):
        return needed
    for machine_type in machine_types:
        known = catalog.machine_types("azure").get(machine_type)
        vcpus = known[0].vcpus if known else None
        if vcpus is None:
            continue
        codes = (SPOT,) if market == "spot" else (family_of(machine_type), TOTAL)
        for code in codes:
            if code is not None:
                needed[code] += vcpus
    return needed


def _refusal(region: str, usage: Usage, needed: int) -> ProvisionError:
    beside = f" and {usage.used} are in use" if usage.used else ""
    return ProvisionError(
        "quota",
        f"{region}: {needed} vCPUs more are needed, but {usage.name} ({usage.code}) allows {usage.limit}{beside}; "
        f"ask for more: {REQUEST_URL}",
        scope="region",
        code=usage.code,
    )


def _fits(machine_type: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(machine_type, pattern) for pattern in patterns)


@cache
def _families() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return families and patterns of their sizes, in the table's order: the first match counts."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple((row["family"], tuple(row["machine_types"].split())) for row in csv.DictReader(file))


@cache
def _say_once(reason: str) -> None:
    log.warning("not checked before launching: %s", reason)
