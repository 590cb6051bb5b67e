"""How many vCPUs the subscription may have in a region, and whether machines still fit: asked before they are launched.

Azure limits vCPUs by region: of a family of sizes, and of all families together. Spot machines of all families share
one limit of their own. All zones share them, and a machine counts until it is deleted. One call tells limits and use.
quotas.csv says which family a size is of; a size that it does not name is measured by the limits of all families alone:
Azure itself refuses what is too much.

Sources in quotas.csv: `installer-docs`: Red Hat's list of families for its installer on Azure; `sku-lists`: the field
`family` of published answers of the Resource SKUs API. Source of the tiers: Azure's documentation, "Check vCPU quotas",
and "Spot Virtual Machines", which have a quota apart.
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
from ..clients import Clients, plain

log = logging.getLogger("cloudgpu.provisioners.azure")

SPOT = "lowPriorityCores"
"""Of Spot machines of all families; the portal calls it `Total Regional Spot vCPUs`."""
TOTAL = "cores"
"""Of all other machines of all families; `Total Regional vCPUs`."""
REQUEST_URL = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"
"""Where more is asked for."""
_TABLE = Path(__file__).with_name("quotas.csv")
_PATIENCE_S = 20.0
"""A launch does not wait longer for what Azure would tell it anyway."""


class Usage(NamedTuple):
    """A quota's state in a region, in vCPUs."""

    code: str
    """As the API names it, e.g. `standardNDSH100v5Family`; some have blanks."""
    name: str
    """As the portal names it, e.g. `Standard NCASv3_T4 Family vCPUs`."""
    limit: int
    used: int


def family_of(machine_type: str) -> str | None:
    """The family whose quota such a machine counts against on demand; None: none is known."""
    return next((family for family, patterns in _families() if _fits(machine_type, patterns)), None)


def families() -> list[str]:
    """All that are known."""
    return [family for family, _ in _families()]


def key(code: str) -> str:
    """By which codes are compared: the API's spelling of a family differs between its answers."""
    return "".join(code.split()).casefold()


def usages(clients: Clients, region: str, patience_s: float = _PATIENCE_S) -> dict[str, Usage]:
    """Of Compute in a region, by key(). One read-only call. Raises ProvisionError."""
    doing = f"ask for the quotas of {region}"
    found = clients.ask(doing, lambda: plain(clients.compute.usage.list(region)), patience_s)
    try:
        told = [
            Usage(
                str(item["name"]["value"]),
                str(item["name"].get("localizedValue") or item["name"]["value"]),
                int(item["limit"]),
                int(item["currentValue"]),
            )
            for item in found
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{doing}: an answer that is not understood ({type(error).__name__}: {error})"
        raise ProvisionError("transient", message, scope="region") from error
    return {key(usage.code): usage for usage in told}


def check(clients: Clients, *, region: str, market: str, machine_types: Sequence[str]) -> None:
    """Raise ProvisionError(quota) if these machines, one entry each, do not fit beside those that are there already.

    `machine_types` are the machines about to be made: those of the same launch that exist already count as used. What a
    reservation holds has its quota. What the API does not tell (no permission, no answer, no such quota) is not held
    against the launch: it is said once in the log, and Azure decides. One read-only call.
    """
    needed = _needed(market, machine_types)
    if not needed:
        return
    try:
        told = usages(clients, region)
    except ProvisionError as error:
        _say_once(str(error))
        return
    for code, vcpus in needed.items():
        usage = told.get(key(code))
        if usage is None:
            _say_once(f"{region} tells of no quota {code}")
        elif usage.used + vcpus > usage.limit:
            raise _refusal(region, usage, vcpus)


def _needed(market: str, machine_types: Sequence[str]) -> Mapping[str, int]:
    """Code -> vCPUs."""
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
    """Family and patterns of its sizes, in the table's order: the first that fits counts."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple((row["family"], tuple(row["machine_types"].split())) for row in csv.DictReader(file))


@cache
def _say_once(reason: str) -> None:
    log.warning("not checked before launching: %s", reason)
