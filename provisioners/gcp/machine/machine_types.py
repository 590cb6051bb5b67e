"""What a machine type needs that no other has: its disk, its network interface, its GPUs.

machine_types.csv says it by patterns, the first row that fits. `disk`: the boot disk's type; `nic`: of the network
interface; `local_ssd`: whether the type brings Local SSDs along (none are added to a type that does not); `fabric`:
whether GPUs of several machines have network interfaces of their own, on networks made for them.
"""

from __future__ import annotations

import csv
import functools
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ....jobspecs import catalog
from ...base import ProvisionError

_TABLE = Path(__file__).with_name("machine_types.csv")
_ARM = frozenset({"t2a", "c4a", "n4a", "a4x"})
"""Series with Arm processors. Source: Compute Engine's documentation, "Arm VMs on Compute"."""


class Kind(Protocol):
    """A kind of machine: of a NodeRequest, or of a FleetSpec."""

    @property
    def machine_type(self) -> str: ...
    @property
    def accelerator(self) -> str | None: ...
    @property
    def count(self) -> Fraction: ...


class Needs(NamedTuple):
    """A row of machine_types.csv."""

    disk: str
    """E.g. `pd-balanced`."""
    nic: str
    """`GVNIC`, `VIRTIO_NET` or `IDPF`."""
    local_ssd: bool
    fabric: bool


def needs(machine_type: str) -> Needs:
    for patterns, found in _rows():
        if any(fnmatchcase(machine_type, pattern) for pattern in patterns):
            return found
    raise AssertionError("the last row of machine_types.csv fits every machine type")


def architecture_of(machine_type: str) -> str:
    """`x86_64` or `arm64`; of a type that the tables do not know (one without GPU) by its series."""
    known = catalog.machine_types("gcp").get(machine_type)
    if known:
        return known[0].arch
    return "arm64" if machine_type.partition("-")[0] in _ARM else "x86_64"


def attached_gpus(node: Kind) -> dict[str, Any] | None:
    """Accelerators to be attached to a machine type that is also sold without (N1); None: there are none, or the type
    has them built in. `name` is as the API spells it, `count` a number. Raises ProvisionError."""
    if node.accelerator is None or catalog.find_machine_type("gcp", node.machine_type, None) is None:
        return None
    machine = catalog.find_machine_type("gcp", node.machine_type, node.accelerator)
    if machine is None or node.count.denominator != 1:
        message = f"{node.machine_type} cannot have {node.count} × {node.accelerator}"
        raise ProvisionError("invalid", message, scope="cloud")
    return {"name": machine.provider_accelerator, "count": node.count.numerator}


@functools.cache
def _rows() -> tuple[tuple[tuple[str, ...], Needs], ...]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(
            (
                tuple(row["machine_types"].split()),
                Needs(row["disk"], row["nic"], row["local_ssd"] == "yes", row["fabric"] == "yes"),
            )
            for row in csv.DictReader(file)
        )
