"""Machine types of the clouds: hardware, markets, places, and end dates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

from ..targets import WITH_TABLES as CLOUDS
from ..targets import info
from . import csv_tables


def host_cloud(cloud: str) -> str:
    """Return the cloud whose tables describe this cloud's machines (sizes, places, prices): for most, itself."""
    return info(cloud).host or cloud


Status = Literal["active", "deprecated", "retired"]

_STATUS_ORDER: tuple[Status, ...] = ("active", "deprecated", "retired")
_STATUS: dict[str, Status] = {status: status for status in _STATUS_ORDER}


class MachineType(NamedTuple):
    """Machine type in combination with one of its possible accelerators, or with none."""

    cloud: str
    name: str
    vcpus: int | None
    memory_gb: float | None
    """Memory in GiB, the unit of all providers."""
    arch: str
    """`x86_64` or `arm64`; images must match it."""
    accelerator: str | None
    """Canonical name of the accelerator; None: the machine type without an accelerator."""
    counts: tuple[Fraction, ...]
    """Possible GPU counts, ascending; empty without accelerator."""
    markets: frozenset[str]
    """Markets in which it is sold; empty if it is retired."""
    status: Status
    ends: str | None
    """First day (YYYY-MM-DD) on which it is no longer available: past if retired, announced if deprecated."""
    offering: str
    """Key of the places table, shared by machine types sold in the same places; "" if no place is known."""
    provider_accelerator: str
    """Name of the accelerator in the provider's API, e.g. `nvidia-tesla-t4`; "" if the API has no name for it."""
    note: str

    def is_retired_on(self, today: str) -> bool:
        """Return whether it is no longer available on this day (YYYY-MM-DD)."""
        return self.status == "retired" or (self.ends is not None and self.ends <= today)


class N1Limits(NamedTuple):
    """Limits of a Compute Engine N1 machine for a number of GPUs; bounds are inclusive."""

    min_vcpus: int
    max_vcpus: int
    min_memory_gb: float
    max_memory_gb: float


@cache
def machine_types(cloud: str) -> dict[str, tuple[MachineType, ...]]:
    """Return the machine types by name, with one entry per accelerator, including retired ones.

    The result is empty for a cloud without tables.
    """
    if cloud not in CLOUDS:
        return {}
    groups: dict[str, list[MachineType]] = {}
    for machine in _read(cloud) if host_cloud(cloud) == cloud else _read_hosted(cloud):
        groups.setdefault(machine.name, []).append(machine)
    return {name: tuple(group) for name, group in groups.items()}


def find_machine_type(cloud: str, name: str, accelerator: str | None) -> MachineType | None:
    """Return the machine type with this accelerator (None: without accelerator); None if there is none."""
    for machine in machine_types(cloud).get(name, ()):
        if machine.accelerator == accelerator:
            return machine
    return None


def accelerator_status(accelerator: str) -> Mapping[str, Status]:
    """Return, by cloud, the best status of the machine types with an accelerator.

    Clouds that never sold it are absent.
    """
    return _accelerator_status().get(accelerator, {})


def _read(cloud: str) -> Iterator[MachineType]:
    columns = ("machine_type", "accelerator", "counts", "vcpus", "memory_gb", "arch", "markets", "status", "ends")
    more = ("offering", "provider_accelerator", "note")
    for name, accelerator, counts, vcpus, memory, arch, markets, status, ends, *rest in csv_tables.rows(
        f"machine_types_{cloud}", *columns, *more
    ):
        offering, provider_accelerator, note = rest
        yield MachineType(
            cloud=cloud,
            name=name,
            vcpus=csv_tables.integer(vcpus),
            memory_gb=csv_tables.number(memory),
            arch=arch,
            accelerator=accelerator or None,
            counts=csv_tables.counts(counts),
            markets=csv_tables.word_set(markets),
            status=_STATUS[status],
            ends=ends or None,
            offering=offering,
            provider_accelerator=provider_accelerator,
            note=note,
        )


def _read_hosted(cloud: str) -> Iterator[MachineType]:
    """Yield the machine types of a cloud that uses another cloud's machines, the host.

    Size, processor and places come from the host's tables.
    """
    columns = ("machine_type", "accelerator", "counts", "markets", "status", "ends", "provider_accelerator", "note")
    hosts = {(m.name, m.accelerator or ""): m for group in machine_types(host_cloud(cloud)).values() for m in group}
    for name, accelerator, counts, markets, status, ends, provider_accelerator, note in csv_tables.rows(
        f"machine_types_{cloud}", *columns
    ):
        host = hosts[name, accelerator]
        yield MachineType(
            cloud=cloud,
            name=name,
            vcpus=host.vcpus,
            memory_gb=host.memory_gb,
            arch=host.arch,
            accelerator=host.accelerator,
            counts=csv_tables.counts(counts),
            markets=csv_tables.word_set(markets),
            status=_STATUS[status],
            ends=ends or None,
            offering=host.offering,
            provider_accelerator=provider_accelerator,
            note=note,
        )


@cache
def _accelerator_status() -> dict[str, dict[str, Status]]:
    found: dict[str, dict[str, Status]] = {}
    for machine in _all(CLOUDS):
        if machine.accelerator is not None:
            status = found.setdefault(machine.accelerator, {})
            status[machine.cloud] = min(status.get(machine.cloud, "retired"), machine.status, key=_STATUS_ORDER.index)
    return found


def _all(clouds: Iterable[str]) -> Iterator[MachineType]:
    return (machine for cloud in clouds for group in machine_types(cloud).values() for machine in group)


# --- places -----------------------------------------------------------------------------------------------------------


@cache
def regions(cloud: str) -> frozenset[str]:
    """Return the regions in which at least one machine type of the tables is offered."""
    return frozenset(region for where in _places(cloud).values() for region in where)


@cache
def zones(cloud: str) -> frozenset[str]:
    """Return the names of a cloud's zones, as in the tables.

    For AWS these are AZ ids, because AZ names differ between accounts. Empty for a cloud whose zones cannot be chosen:
    Azure's are called 1, 2 and 3 in every region.
    """
    if not info(cloud).zones:
        return frozenset()
    return frozenset(zone for where in _places(cloud).values() for names in where.values() for zone in names)


def places(cloud: str, machine_type: str, accelerator: str | None) -> Mapping[str, tuple[str, ...]]:
    """Return the zones, by region, in which a machine type is offered.

    A region has no zones if the provider chooses the zone or the zones are unknown.
    """
    machine = find_machine_type(cloud, machine_type, accelerator)
    return {} if machine is None else _places(cloud).get(machine.offering, {})


@cache
def _places(cloud: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the zones by offering (MachineType.offering) and region."""
    if cloud not in CLOUDS:
        return {}
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    if (host := host_cloud(cloud)) != cloud:  # which regions have an accelerator is not published: use the host's
        served = {region for (region,) in csv_tables.rows(f"regions_{cloud}", "region")}
        for offering, where in _places(host).items():
            found[offering] = {region: () for region in where if region in served}
    else:
        for offering, region, names in csv_tables.rows(f"places_{cloud}", "offering", "region", "zones"):
            found.setdefault(offering, {})[region] = csv_tables.words(names)
    return found


# --- limits of Compute Engine's N1 ------------------------------------------------------------------------------------


def n1_limits(accelerator: str, count: Fraction | int, zone: str | None = None) -> N1Limits | None:
    """Return the vCPU and memory limits for `count` GPUs, which are lower in a few zones; None for an invalid count."""
    limits = _n1_limits()
    return limits.get((accelerator, Fraction(count), zone or "")) or limits.get((accelerator, Fraction(count), ""))


@cache
def _n1_limits() -> dict[tuple[str, Fraction, str], N1Limits]:
    columns = ("accelerator", "count", "zones", "min_vcpus", "max_vcpus", "min_memory_gb", "max_memory_gb")
    found = {}
    for accelerator, count, exceptions, low, high, least, most in csv_tables.rows("gcp_n1_limits", *columns):
        limits = N1Limits(int(low), int(high), float(least), float(most))
        for zone in csv_tables.words(exceptions) or ("",):
            found[accelerator, Fraction(count), zone] = limits
    return found
