"""Replace GPUs that Google no longer sells by GPUs that it sells today: a table, and a rule to choose from it.

The rule picks the first successor in the table's row that is sold in the region, needs no more GPUs than before, and
has at least the total GPU memory and single-precision speed (FP32) of the old GPUs. If there is none, the speed is
ignored. More GPUs than before would need a program that can use them. The machine type is the old one if it takes the
new GPUs, else the smallest one with at least as many vCPUs and as much memory, else the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .conversion import Conversion
from .replica_groups import Group, Machine

if TYPE_CHECKING:
    from ..catalog import MachineType

SUCCESSORS: dict[str, tuple[str, ...]] = {
    # Smallest first. A GPU that is still sold (T4, P4, V100, A100) is kept until its announced end.
    "K80": ("T4", "L4"),
    "P100": ("T4", "L4", "V100-16GB"),
    "P4": ("T4", "L4"),
    "T4": ("L4",),
    "V100-16GB": ("A100-40GB",),
}
_SELLER = "vertex"
"""Cloud whose table is used: Vertex AI's, whose machines all exist on Compute Engine too."""


def replace_retired(conversion: Conversion, group: Group, region: str | None) -> Group:
    """Return the group with a machine that is available today.

    A replacement is added to the notes; a GPU without a successor is reported as an error.
    """
    old = group.machine
    if conversion.refused:  # an invalid machine has no successor
        return group
    today = conversion.today.isoformat() if conversion.today else ""
    day = ended(old.accelerator, today) if old.accelerator else None
    if day is None:
        return group
    gone = f"{group.name}: {old.accelerator} no longer exists" + (f" (support ended {day})" if day else "")
    new = successor(old, region, today)
    if new is None:
        elsewhere = ", ".join(_regions_of(old, today))
        hint = f"choose another region: {elsewhere}" if elsewhere else "choose another accelerator"
        where = f"in {region}" if region else "with this memory"
        conversion.error(group.accelerator_loc, "no-successor", f"{gone}, nor a successor {where}", hint)
        return group
    conversion.note(
        f"{gone}; today's closest valid offer: {new.accelerator}:{new.count} on {new.machine_type}"
        f" ({_reason(old, new)})" + ("" if new.machine_type == old.machine_type else f", was {old.machine_type}")
    )
    return group.on(new)


def ended(accelerator: str, today: str) -> str | None:
    """Return the day on which the accelerator's support ended (YYYY-MM-DD, "" if unknown), or None while it is sold.

    With today="", accelerators with an announced end count as sold.
    """
    from .. import catalog

    rows = [row for types in catalog.machine_types("gcp").values() for row in types if row.accelerator == accelerator]
    if not rows or any(not row.is_retired_on(today) for row in rows):
        return None
    return max(row.ends or "" for row in rows)


def successor(old: Machine, region: str | None, today: str) -> Machine | None:
    """Return the replacement for a machine whose GPU is no longer sold; None if the region has none."""
    for as_fast in (True, False):
        for name in SUCCESSORS.get(old.accelerator or "", ()):
            count = _count(old, name, as_fast=as_fast)
            choices = [row for row in _sellers(name, today) if count in row.counts and _is_in(row.name, name, region)]
            if choices:
                return Machine(_closest(choices, old.machine_type), name, count)
    return None


def _regions_of(machine: Machine, today: str) -> list[str]:
    """Return the regions that sell the machine's successor, for the hint if the requested region has none."""
    anywhere = successor(machine, None, today)
    if anywhere is None or anywhere.machine_type is None:
        return []
    from .. import catalog

    return sorted(catalog.places("gcp", anywhere.machine_type, anywhere.accelerator))


def _reason(old: Machine, new: Machine) -> str:
    """Return the figures behind the choice, e.g. `16 GB and 8.1 TFLOPS instead of 12 GB and 4.1 TFLOPS`."""
    return f"{_figures(new)} instead of {_figures(old)}"


def _count(old: Machine, name: str, *, as_fast: bool) -> int:
    """Return the smallest number of GPUs `name` with at least the memory (and speed) of the old GPUs.

    0 if that is more than the old number. `as_fast`: require the speed.
    """
    memory, speed = _totals(old)
    for count in (1, 2, 4, 8):
        new_memory, new_speed = _totals(Machine(None, name, count))
        if count <= old.count and new_memory >= memory and (new_speed >= speed or not as_fast):
            return count
    return 0


def _totals(machine: Machine) -> tuple[float, float]:
    """Return a machine's total GPU memory in GB, and its FP32 TFLOPS, which all GPUs in the table have."""
    from .. import catalog

    one = catalog.accelerators()[machine.accelerator or ""]
    return one.memory_gb * machine.count, (one.fp32_tflops or 0) * machine.count


def _figures(machine: Machine) -> str:
    memory, speed = _totals(machine)
    return f"{memory:g} GB and {speed:.3g} TFLOPS"


def _sellers(accelerator: str, today: str) -> Iterator[MachineType]:
    from .. import catalog

    for rows in catalog.machine_types(_SELLER).values():
        yield from (row for row in rows if row.accelerator == accelerator and not row.is_retired_on(today))


def _is_in(machine_type: str, accelerator: str, region: str | None) -> bool:
    from .. import catalog

    return region is None or region in catalog.places("gcp", machine_type, accelerator)


def _closest(choices: list[MachineType], old_type: str | None) -> str:
    if any(row.name == old_type for row in choices):
        return str(old_type)
    vcpus, memory = _size(old_type)
    by_size = sorted(choices, key=lambda row: (_size(row.name), row.name))
    enough = [row for row in by_size if _size(row.name)[0] >= vcpus and _size(row.name)[1] >= memory]
    return (enough[0] if enough else by_size[-1]).name


def _size(machine_type: str | None) -> tuple[int, float]:
    """Return vCPUs and memory in GB of a machine type; (0, 0) if it is unknown."""
    from .. import catalog

    rows = catalog.machine_types("gcp").get(machine_type or "", ())
    return (rows[0].vcpus or 0, float(rows[0].memory_gb or 0)) if rows else (0, 0.0)
