"""What exists: accelerators, machine types, places, prices and limits, read from jobspecs/tables.

Every table is parsed on its first use and then kept; importing this module reads nothing. Unknown names give None or
an empty value, never an exception: the caller knows what the user wrote and can say more. Where a figure is not known
(a price, a size) the value is None, never 0. Sources, dates and licences: jobspecs/tables/SOURCES.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Literal

from . import catalog_read as read

CLOUDS = ("aws", "gcp", "vertex", "azure")
"""Clouds with tables, in the order in which they are shown."""
HOURS_PER_MONTH = 730
"""Providers quote disks per month of 730 hours (365 days * 24 h / 12)."""

Status = Literal["active", "deprecated", "retired"]

_STATUS_ORDER: tuple[Status, ...] = ("active", "deprecated", "retired")
_FOLD = str.maketrans("", "", " _-")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of GPU, or of a training or inference chip; the figures are of one device."""

    name: str
    vendor: str
    kind: Literal["gpu", "asic"]
    """`asic`: not a GPU, needs its own software (Neuron, Gaudi); never chosen by memory alone."""
    architecture: str
    memory_gb: float
    bandwidth_gb_s: float | None
    compute_capability: str
    """CUDA's for NVIDIA (`8.0`), the GFX version for AMD (`gfx942`); may be empty."""
    fp16_tflops: float | None
    """Dense, not the doubled figure with sparsity."""
    bf16_tflops: float | None
    mig_slices: int | None
    aliases: tuple[str, ...]

    @property
    def status(self) -> Mapping[str, str]:
        """cloud -> the best status among the machine types which carry it there; a cloud that never did is absent."""
        return _accelerator_status().get(self.name, {})


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine type with one accelerator it may carry (or none): the unit that is offered."""

    cloud: str
    name: str
    vcpus: int | None
    memory_gb: float | None
    arch: str
    """`x86_64` or `arm64`; an image must fit it."""
    accelerator: str | None
    """Canonical name; None: the machine without any."""
    counts: tuple[Fraction, ...]
    """GPUs a machine may have, ascending; empty without accelerator."""
    markets: frozenset[str]
    """Empty once it is retired."""
    status: Status
    ends: str | None
    """First day (YYYY-MM-DD) on which it can no longer be had: past if retired, announced if deprecated."""
    offering: str
    """Key of the places table: machine types sold in the same places share it; empty: no place is known."""
    provider_accelerator: str
    """The accelerator as the provider's API spells it, e.g. `nvidia-tesla-t4`; empty where the API names none."""
    note: str

    def is_gone(self, today: str) -> bool:
        """Whether it can no longer be had on this day (YYYY-MM-DD)."""
        return self.status == "retired" or (self.ends is not None and self.ends <= today)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars, the day the figure is of (the oldest, if it is a sum) and the id of its source in SOURCES.md."""

    amount: Decimal
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class N1Limits:
    """What a Compute Engine N1 machine may have with a number of GPUs; both ends included."""

    min_vcpus: int
    max_vcpus: int
    min_memory_gb: float
    max_memory_gb: float


@dataclass(frozen=True, slots=True)
class LegacyMachine:
    """What a machine type name of AI Platform's first years stands for, in today's words."""

    name: str
    machine_type: str
    accelerator: str | None
    count: int
    evidence: Literal["documented", "analogy"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a target can do; the planner and the rules read this instead of knowing targets by name."""

    name: str
    markets: frozenset[str]
    multi_node: bool
    roles: bool
    """Roles with machine types of their own."""
    image: bool
    gpu_idle: bool
    """Can stop a job whose GPUs idle."""
    fractional: bool
    """Parts of a GPU."""
    zones: bool
    """Machines are placed in a zone of the caller's choice; otherwise the provider places them in the region."""
    launchers: frozenset[str]


# --- accelerators -----------------------------------------------------------------------------------------------------


def fold(name: str) -> str:
    """The form in which accelerator names are compared: case, blanks, `-` and `_` do not count."""
    return name.translate(_FOLD).lower()


@cache
def accelerators() -> dict[str, Accelerator]:
    """By canonical name, oldest generation first."""
    aliases: dict[str, list[str]] = {}
    for alias, name in read.rows("accelerator_aliases", "alias", "accelerator"):
        aliases.setdefault(name, []).append(alias)
    columns = (
        *("name", "vendor", "kind", "architecture", "memory_gb", "bandwidth_gb_s"),
        *("compute_capability", "fp16_tflops", "bf16_tflops", "mig_slices"),
    )
    return {
        name: Accelerator(
            name=name,
            vendor=vendor,
            kind="gpu" if kind == "gpu" else "asic",
            architecture=architecture,
            memory_gb=float(memory),
            bandwidth_gb_s=read.number(bandwidth),
            compute_capability=capability,
            fp16_tflops=read.number(fp16),
            bf16_tflops=read.number(bf16),
            mig_slices=read.integer(mig),
            aliases=tuple(aliases.get(name, ())),
        )
        for name, vendor, kind, architecture, memory, bandwidth, capability, fp16, bf16, mig in read.rows(
            "accelerators", *columns
        )
    }


def find_accelerator(text: str) -> Accelerator | None:
    """The accelerator of a canonical name or alias (a provider's or driver's name), whatever its case."""
    return _accelerators_by_fold().get(fold(text))


@cache
def _accelerators_by_fold() -> dict[str, Accelerator]:
    return {fold(text): found for found in accelerators().values() for text in (found.name, *found.aliases)}


@cache
def _accelerator_status() -> dict[str, dict[str, Status]]:
    found: dict[str, dict[str, Status]] = {}
    for cloud in CLOUDS:
        for group in machine_types(cloud).values():
            for machine in group:
                if machine.accelerator is not None:
                    status = found.setdefault(machine.accelerator, {})
                    status[cloud] = min(status.get(cloud, "retired"), machine.status, key=_STATUS_ORDER.index)
    return found


# --- machine types ----------------------------------------------------------------------------------------------------


@cache
def machine_types(cloud: str) -> dict[str, tuple[MachineType, ...]]:
    """name -> one entry per accelerator it may carry; retired ones are included. Empty for a cloud without tables."""
    if cloud not in CLOUDS:
        return {}
    groups: dict[str, list[MachineType]] = {}
    for machine in _read_vertex() if cloud == "vertex" else _read_machine_types(cloud):
        groups.setdefault(machine.name, []).append(machine)
    return {name: tuple(group) for name, group in groups.items()}


def find_machine_type(cloud: str, name: str, accelerator: str | None) -> MachineType | None:
    """The machine type with this accelerator (None: without any)."""
    return next((m for m in machine_types(cloud).get(name, ()) if m.accelerator == accelerator), None)


_OFFER_COLUMNS = (
    *("machine_type", "accelerator", "counts", "markets", "status", "ends"),
    *("provider_accelerator", "note"),
)


def _read_machine_types(cloud: str) -> list[MachineType]:
    table = read.rows(f"machine_types_{cloud}", *_OFFER_COLUMNS, "vcpus", "memory_gb", "arch", "offering")
    return [
        MachineType(
            cloud=cloud,
            name=name,
            vcpus=read.integer(vcpus),
            memory_gb=read.number(memory),
            arch=arch,
            accelerator=accelerator or None,
            counts=read.counts(counts),
            markets=_markets(markets),
            status=_status(status),
            ends=ends or None,
            offering=offering,
            provider_accelerator=provider_name,
            note=note,
        )
        for name, accelerator, counts, markets, status, ends, provider_name, note, vcpus, memory, arch, offering in table
    ]


def _read_vertex() -> list[MachineType]:
    """Vertex AI's own counts and markets upon Compute Engine's machines: size, processor and places are theirs."""
    found = []
    for name, accelerator, counts, markets, status, ends, provider_name, note in read.rows(
        "machine_types_vertex", *_OFFER_COLUMNS
    ):
        host = find_machine_type("gcp", name, accelerator or None)
        assert host is not None, f"machine_types_vertex.csv: {name} with {accelerator} is not in machine_types_gcp.csv"
        found.append(
            MachineType(
                cloud="vertex",
                name=name,
                vcpus=host.vcpus,
                memory_gb=host.memory_gb,
                arch=host.arch,
                accelerator=accelerator or None,
                counts=read.counts(counts),
                markets=_markets(markets),
                status=_status(status),
                ends=ends or None,
                offering=host.offering,
                provider_accelerator=provider_name,
                note=note,
            )
        )
    return found


@cache
def _markets(cell: str) -> frozenset[str]:
    return frozenset(read.words(cell))


def _status(cell: str) -> Status:
    return _STATUS_ORDER[_STATUS_ORDER.index(cell)]  # type: ignore[arg-type]  # ValueError if the table is wrong


# --- places -----------------------------------------------------------------------------------------------------------


def regions(cloud: str) -> frozenset[str]:
    """Regions in which anything of the tables is offered."""
    return frozenset(region for where in _places(cloud).values() for region in where)


def zones(cloud: str) -> frozenset[str]:
    """Zones by the names the tables use: Compute Engine's zones, AWS's AZ ids (AZ names differ between accounts)."""
    return frozenset(zone for where in _places(cloud).values() for names in where.values() for zone in names)


def places(cloud: str, machine_type: str, accelerator: str | None) -> Mapping[str, tuple[str, ...]]:
    """region -> zones where it is offered; no zones: the provider places by region, or the zones are not known."""
    machine = find_machine_type(cloud, machine_type, accelerator)
    return {} if machine is None else _places(cloud).get(machine.offering, {})


@cache
def _places(cloud: str) -> dict[str, dict[str, tuple[str, ...]]]:
    if cloud not in CLOUDS:
        return {}
    if cloud == "vertex":
        return {offering: dict.fromkeys(where, ()) for offering, where in _places("gcp").items()}
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for offering, region, names in read.rows(f"places_{cloud}", "offering", "region", "zones"):
        found.setdefault(offering, {})[region] = read.words(names)
    return found


# --- prices -----------------------------------------------------------------------------------------------------------

_PRICE_COLUMN = {"on-demand": 0, "spot": 1}
"""Markets with published prices; a flex-start or reserved machine's is not in the tables, so it is unknown."""


def price(
    cloud: str, machine_type: str, accelerator: str | None, count: Fraction, region: str, market: str
) -> Price | None:
    """Per hour of one machine with its GPUs, disk not included; None: unknown, or not offered there or so."""
    machine = find_machine_type(cloud, machine_type, accelerator)
    if machine is None or market not in machine.markets or region not in places(cloud, machine_type, accelerator):
        return None
    host = _sku_price(cloud, machine_type, region, market)
    if accelerator is None or find_machine_type(cloud, machine_type, None) is None:
        return host
    # A machine type which is also sold without GPUs: they are attached, and each has a price of its own.
    gpu = _sku_price(cloud, machine.provider_accelerator, region, market)
    if host is None or gpu is None:
        return None
    amount = host.amount + gpu.amount * count.numerator / count.denominator
    return Price(amount, min(host.date, gpu.date), f"{host.source} + {gpu.source}")


def _sku_price(cloud: str, sku: str, region: str, market: str) -> Price | None:
    row = _prices(cloud).get((sku, region))
    if row is None or market not in _PRICE_COLUMN:
        return None
    amount = row[_PRICE_COLUMN[market]]
    return Price(Decimal(amount), row[3], row[2]) if amount else None


@cache
def _prices(cloud: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """(SKU, region) -> on-demand, spot, source, date; as text, for few of a thousand rows are ever looked at."""
    if cloud == "vertex":  # Vertex adds a fee to Compute Engine's price which the tables do not have: unknown
        return {}
    table = read.rows(f"prices_{cloud}", "sku", "region", "on_demand_usd_h", "spot_usd_h", "source", "date")
    return {(row[0], row[1]): row[2:] for row in table}


@cache
def disk_price(cloud: str, region: str) -> Price | None:
    """Per GB-hour of the disk a machine boots from; where the region has no row, the cloud's `*` row: an upper bound."""
    table = {row[:2]: row[2:] for row in read.rows("disk_prices", "cloud", "region", "usd_gb_month", "date", "source")}
    row = table.get((cloud, region)) or table.get((cloud, "*"))
    return None if row is None else Price(Decimal(row[0]) / HOURS_PER_MONTH, row[1], row[2])


# --- limits of Compute Engine's N1 ------------------------------------------------------------------------------------


def n1_limits(accelerator: str, count: Fraction | int, zone: str | None = None) -> N1Limits | None:
    """Limits on vCPUs and memory with so many GPUs; a few zones have lower ones. None: no such count."""
    limits = _n1_limits()
    return limits.get((accelerator, Fraction(count), zone or "")) or limits.get((accelerator, Fraction(count), ""))


@cache
def _n1_limits() -> dict[tuple[str, Fraction, str], N1Limits]:
    columns = ("accelerator", "count", "zones", "min_vcpus", "max_vcpus", "min_memory_gb", "max_memory_gb")
    found = {}
    for accelerator, count, exceptions, low, high, least, most in read.rows("gcp_n1_limits", *columns):
        limits = N1Limits(int(low), int(high), float(least), float(most))
        for zone in read.words(exceptions) or ("",):
            found[accelerator, Fraction(count), zone] = limits
    return found


# --- AI Platform Training ---------------------------------------------------------------------------------------------


def ai_platform_counts(machine_type: str, accelerator: str) -> tuple[int, ...]:
    """GPU counts AI Platform Training allowed on this machine type, ascending; empty: none."""
    return _ai_platform_counts().get((machine_type, accelerator), ())


@cache
def _ai_platform_counts() -> dict[tuple[str, str], tuple[int, ...]]:
    table = read.rows("ai_platform_counts", "machine_type", "accelerator", "counts")
    return {(machine, accelerator): tuple(map(int, cell.split())) for machine, accelerator, cell in table}


def ai_platform_machine_types() -> frozenset[str]:
    """Machine types AI Platform Training allowed GPUs on (by Compute Engine name)."""
    return frozenset(machine for machine, _ in _ai_platform_counts())


def ai_platform_legacy(name: str) -> LegacyMachine | None:
    """What a legacy machine type name such as `complex_model_m_gpu` stands for."""
    return ai_platform_legacy_names().get(name)


@cache
def ai_platform_legacy_names() -> dict[str, LegacyMachine]:
    table = read.rows("ai_platform_legacy", "name", "machine_type", "accelerator", "count", "evidence")
    return {
        name: LegacyMachine(
            name, machine, accelerator or None, int(count), "documented" if evidence == "documented" else "analogy"
        )
        for name, machine, accelerator, count, evidence in table
    }


@cache
def ai_platform_regions(accelerator: str) -> frozenset[str]:
    """Regions where AI Platform Training had this accelerator (2020-21); empty: none known."""
    return frozenset(
        region for name, region in read.rows("ai_platform_regions", "accelerator", "region") if name == accelerator
    )


# --- targets ----------------------------------------------------------------------------------------------------------


@cache
def targets() -> dict[str, Target]:
    """By name, `local` first."""
    flags = ("multi_node", "roles", "image", "gpu_idle", "fractional", "zones")
    found = {}
    for name, markets, launchers, *cells in read.rows("targets", "target", "markets", "launchers", *flags):
        can = {flag: cell == "yes" for flag, cell in zip(flags, cells, strict=True)}
        found[name] = Target(name=name, markets=_markets(markets), launchers=frozenset(read.words(launchers)), **can)
    return found
