"""Rules on accelerators and machine types: existence, retirement, and GPU counts per machine type.

Each rule returns the reason for a refusal and an allowed alternative, or None. Figures come from the tables (see
tables/SOURCES.md); the docstrings name the sources of the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import cache, lru_cache

from .. import catalog
from ..catalog import Accelerator, MachineType
from ..suggest import did_you_mean
from .base import Request, Verdict, listing
from .machine_names import machine_type_hint


@cache
def carriers(cloud: str, accelerator: str | None) -> tuple[MachineType, ...]:
    """Return all machine types of the cloud with this accelerator, including retired ones; None: those without GPUs."""
    return _by_accelerator(cloud).get(accelerator, ())


@cache
def _by_accelerator(cloud: str) -> dict[str | None, tuple[MachineType, ...]]:
    found: dict[str | None, list[MachineType]] = {}
    for group in catalog.machine_types(cloud).values():
        for machine in group:
            found.setdefault(machine.accelerator, []).append(machine)
    return {accelerator: tuple(machines) for accelerator, machines in found.items()}


def candidates(ask: Request) -> list[MachineType]:
    """Return the available machine types with the requested accelerator and name, regardless of the GPU count."""
    return [m for m in _meant(ask) if not m.is_retired_on(ask.today)]


def fitting(ask: Request) -> tuple[MachineType, ...]:
    """Return the candidates that can have a requested GPU count."""
    return _fitting(ask._replace(region=None, zone=None, market=None))


@lru_cache(maxsize=1024)
def _fitting(ask: Request) -> tuple[MachineType, ...]:
    """Return the result of fitting(); cached, because several rules need it and comparing Fractions is slow."""
    return tuple(m for m in candidates(ask) if ask.gpus is None or any(count in ask.gpus for count in m.counts))


def _meant(ask: Request) -> list[MachineType]:
    if ask.machine_type is None:
        return list(carriers(ask.cloud, ask.accelerator))
    group = catalog.machine_types(ask.cloud).get(ask.machine_type, ())
    return [m for m in group if m.accelerator == ask.accelerator]


def accelerator_known(ask: Request) -> Verdict | None:
    """Require an accelerator name or alias from the accelerator table."""
    name = ask.accelerator or ""
    if catalog.find_accelerator(name) is not None:
        return None
    return Verdict(f"there is no accelerator named {name!r}", did_you_mean(name, accelerator_names()))


def accelerator_names() -> list[str]:
    """Return the valid names of accelerators: canonical names, then aliases."""
    found = catalog.accelerators()
    return [*found, *(alias for accelerator in found.values() for alias in accelerator.aliases)]


def accelerator_offered(ask: Request) -> Verdict | None:
    """Require a machine type of the cloud with the accelerator (providers' lists of machine types)."""
    if carriers(ask.cloud, ask.accelerator):
        return None
    allowed = [_where_alive(ask), _on_siblings(ask)]
    return Verdict(f"{ask.cloud} has no machine with {ask.accelerator}", "; ".join(filter(None, allowed)))


def accelerator_retired(ask: Request) -> Verdict | None:
    """Require a machine type with the accelerator that is still available (providers' retirement notices)."""
    machines = carriers(ask.cloud, ask.accelerator)
    if not machines or not all(m.is_retired_on(ask.today) for m in machines):
        return None
    return Verdict(f"{ask.accelerator} is no longer available on {ask.cloud}{_since(machines)}", _instead(ask))


def machine_type_known(ask: Request) -> Verdict | None:
    """Require a machine type from the cloud's table."""
    name = ask.machine_type or ""
    if name in catalog.machine_types(ask.cloud):
        return None
    elsewhere = [cloud for cloud in catalog.CLOUDS if name in catalog.machine_types(cloud)]
    hint = f"it is a machine type of {listing(elsewhere)}" if elsewhere else machine_type_hint(name, [ask.cloud])
    return Verdict(f"{ask.cloud} has no machine type {name!r} in the tables", hint)


def machine_type_retired(ask: Request) -> Verdict | None:
    """Require a machine type that is still available (providers' retirement notices; absence from their APIs)."""
    machines = catalog.machine_types(ask.cloud).get(ask.machine_type or "", ())
    if not machines or not all(m.is_retired_on(ask.today) for m in machines):
        return None
    lost = next((m for m in machines if m.accelerator == ask.accelerator), machines[0])
    ask = ask._replace(accelerator=lost.accelerator)
    return Verdict(f"{ask.machine_type} is no longer available on {ask.cloud}{_since(machines)}", _instead(ask))


def accelerator_on_machine_type(ask: Request) -> Verdict | None:
    """Require a machine type that can have the accelerator: most have built-in GPUs, N1 takes the older ones only."""
    group = catalog.machine_types(ask.cloud).get(ask.machine_type or "", ())
    if not group or any(m.accelerator == ask.accelerator and not m.is_retired_on(ask.today) for m in group):
        return None
    carried = sorted(
        {f"{m.accelerator}:{_counts([m])}" for m in group if m.accelerator and not m.is_retired_on(ask.today)}
    )
    allowed = [f"{ask.machine_type} takes {'; '.join(carried)}" if carried else "", _on_others(ask)]
    return Verdict(f"{ask.machine_type} does not take {ask.accelerator}", "; ".join(filter(None, allowed)))


def count_on_machine_type(ask: Request) -> Verdict | None:
    """Require a GPU count allowed on the machine type; Compute Engine and Vertex AI have separate tables of counts."""
    machines = candidates(ask)
    if not machines or fitting(ask):
        return None
    allowed = [_on_this(ask, machines), _on_others(ask)]
    return Verdict(
        f"{ask.machine_type} cannot have {ask.gpus} {ask.accelerator} on {ask.cloud}", "; ".join(filter(None, allowed))
    )


def count_offered(ask: Request) -> Verdict | None:
    """Require a machine type of the cloud with this GPU count; fractions of a GPU are separate counts."""
    if ask.machine_type is not None:
        return None
    machines = candidates(ask)
    if not machines or fitting(ask):
        return None
    allowed = [f"{ask.accelerator}:{_counts(machines)}", _on_siblings(ask)]
    return Verdict(f"no machine of {ask.cloud} has {ask.gpus} {ask.accelerator}", "; ".join(filter(None, allowed)))


def vcpus_and_memory(ask: Request) -> Verdict | None:
    """Require an N1 size within the limits on vCPUs and memory for the GPU count (Compute Engine's GPU docs).

    The limits are lower in some zones.
    """
    machine = next(iter(candidates(ask)), None)
    if machine is None or ask.gpus is None or not is_attached(ask.cloud, machine.name):
        return None
    sold = {count for m in carriers(ask.cloud, ask.accelerator) for count in m.counts}
    counts = sorted(count for count in sold if count in ask.gpus)
    if not counts or any(within_limits(machine, count, ask.zone) for count in counts):
        return None
    limits = catalog.n1_limits(machine.accelerator or "", counts[-1], ask.zone)
    if limits is None:
        return None
    where = f" in {ask.zone}" if ask.zone else ""
    allowed = (
        f"{ask.accelerator}:{counts[-1]}{where} allows {limits.min_vcpus} to {limits.max_vcpus} vCPU"
        f" and {limits.min_memory_gb:g} to {limits.max_memory_gb:g} GB"
    )
    return Verdict(
        f"{machine.name} has {machine.vcpus} vCPU and {machine.memory_gb:g} GB",
        f"{allowed}; {_on_this(ask, [machine])}",
    )


def within_limits(machine: MachineType, count: Fraction, zone: str | None) -> bool:
    """Return whether an N1 machine's size is within the limits for `count` GPUs in the zone; True without limits."""
    limits = catalog.n1_limits(machine.accelerator or "", count, zone)
    if limits is None or machine.vcpus is None or machine.memory_gb is None:
        return True
    return (
        limits.min_vcpus <= machine.vcpus <= limits.max_vcpus
        and limits.min_memory_gb <= machine.memory_gb <= limits.max_memory_gb
    )


def is_attached(cloud: str, machine_type: str) -> bool:
    """Return whether the machine type is also sold without GPUs, so that GPUs are attached to it (N1)."""
    return catalog.find_machine_type(cloud, machine_type, None) is not None


def built_in(cloud: str, machine_type: str) -> MachineType | None:
    """Return the machine type if it has built-in GPUs, always the same; None otherwise."""
    group = catalog.machine_types(cloud).get(machine_type, ())
    return group[0] if len(group) == 1 and group[0].accelerator and len(group[0].counts) == 1 else None


def cpu_machines(ask: Request) -> Verdict | None:
    """Require a cloud with CPU-only machine types in the tables for a job without accelerator.

    The tables have such types only for Compute Engine and Vertex AI.
    """
    if ask.accelerator is not None or ask.machine_type is not None or carriers(ask.cloud, None):
        return None
    have = [cloud for cloud in catalog.CLOUDS if carriers(cloud, None)]
    return Verdict(
        f"cloudgpu knows no machine types of {ask.cloud} without GPUs: a job there needs an accelerator",
        f"accelerator: T4:1, or cloud: local, {listing(have)}",
    )


# --- allowed alternatives ---------------------------------------------------------------------------------------------


def _on_this(ask: Request, machines: Iterable[MachineType]) -> str:
    return f"{ask.machine_type} takes {ask.accelerator}:{_counts(machines)}"


def _on_others(ask: Request) -> str:
    others = [machine.name for machine in fitting(ask._replace(machine_type=None))]
    return f"{ask.accelerator}:{ask.gpus} is on {listing(others)}" if others else ""


def _on_siblings(ask: Request) -> str:
    """Return a hint such as `A100-80GB:1 is on …`: the same model and count with other memory sizes; "" if none."""
    found = []
    for other in siblings(ask.accelerator or ""):
        machines = fitting(ask._replace(accelerator=other, machine_type=None))
        found += [f"{other}:{ask.gpus} is on {listing([machine.name for machine in machines], 3)}"] if machines else []
    return "; ".join(found)


def siblings(accelerator: str) -> list[str]:
    """Return the other accelerators of the same model, which differ in memory: `A100-80GB` for `A100-40GB`."""
    models = {name: found[1] for name in catalog.accelerators() if (found := _MODEL.match(name))}
    return [name for name, model in models.items() if name != accelerator and model == models.get(accelerator)]


_MODEL = re.compile(r"(\w+)-(?:\w+-)?\d+GB$")
"""Matches canonical names that end with the memory size: `A100-40GB`, `H100-NVL-94GB`."""


def _counts(machines: Iterable[MachineType]) -> str:
    return listing([str(count) for count in sorted({count for m in machines for count in m.counts})])


def _since(machines: Iterable[MachineType]) -> str:
    ends = max((m.ends for m in machines if m.ends), default=None)
    return f" since {ends}" if ends else ""


def _where_alive(ask: Request) -> str:
    clouds = [
        cloud
        for cloud in catalog.CLOUDS
        if any(not machine.is_retired_on(ask.today) for machine in carriers(cloud, ask.accelerator))
    ]
    return f"{ask.accelerator} is on {listing(clouds)}" if clouds else ""


def _instead(ask: Request) -> str:
    found = closest_available(ask)
    if found is None:
        return ""
    machine, count = found
    name = f"{machine.name} with " if machine.accelerator else machine.name
    return f"the closest there today is {name}{machine.accelerator}:{count}"


def closest_available(ask: Request) -> tuple[MachineType, Fraction] | None:
    """Return the best replacement for a retired GPU or machine type: an available machine type and a GPU count.

    Its GPUs have the same vendor, and at least the memory, the FP16 TFLOPS (if known) and the number of the retired
    ones. Of these machines, the cheapest is returned, by the lowest price of all regions. Deprecated machines, those
    sold only by reservation, arm64 machines and those with unknown prices come last.
    """
    gone = catalog.find_accelerator(ask.accelerator or "")
    if gone is None:
        return None
    least = ask.gpus.least if ask.gpus else Fraction(1)
    found = []
    for other in catalog.accelerators().values():
        if other.name == gone.name and ask.machine_type is None:
            continue
        if not _no_worse(other, gone):
            continue
        for machine in carriers(ask.cloud, other.name):
            count = next((c for c in machine.counts if c >= least), None)
            if count is not None and not machine.is_retired_on(ask.today) and _is_big_enough(machine, count):
                found.append((*_closeness(machine, count), machine, count))
    best = min(found, key=lambda item: item[:-2], default=None)
    return None if best is None else best[-2:]


def _no_worse(other: Accelerator, gone: Accelerator) -> bool:
    slower = gone.fp16_tflops is not None and (other.fp16_tflops or 0.0) < gone.fp16_tflops
    return other.vendor == gone.vendor and other.memory_gb >= gone.memory_gb and not slower


def _closeness(machine: MachineType, count: Fraction) -> tuple[bool, bool, bool, float, str]:
    priced = catalog.host_cloud(machine.cloud)  # for Vertex AI, whose fee is unknown but does not change the order
    prices = (
        catalog.price(priced, machine.name, machine.accelerator, count, region, "on-demand")
        for region in catalog.places(machine.cloud, machine.name, machine.accelerator)
    )
    lowest = min((float(price.amount) for price in prices if price), default=float("inf"))
    readily = bool(machine.markets - {"reservation"})
    return (machine.status != "active", not readily, machine.arch != "x86_64", lowest, machine.name)


LEAST_VCPUS_PER_GPU = 4
LEAST_MEMORY_GB_PER_GPU = 15
"""Minimum size per GPU (or in total, without GPUs) of an N1 machine that is chosen automatically: that of
n1-standard-4, enough for the data loader's processes to keep a GPU busy."""


def _is_big_enough(machine: MachineType, count: Fraction) -> bool:
    return not is_attached(machine.cloud, machine.name) or is_sensible(machine, count)


def is_sensible(machine: MachineType, count: Fraction) -> bool:
    """Return whether a machine to which GPUs are attached is big enough to be chosen for `count` GPUs (0: no GPUs)."""
    gpus = max(count, Fraction(1))
    return (machine.vcpus or 0) >= LEAST_VCPUS_PER_GPU * gpus and (
        machine.memory_gb or 0
    ) >= LEAST_MEMORY_GB_PER_GPU * gpus
