"""Properties of machine types: boot disk, network interface, accelerators.

machine_types.csv has them by patterns; the first matching row counts. `disk`: the boot disk's type; `nic`: type of the
network interface; `local_ssd`: the type includes Local SSDs (none are added to others); `fabric`: its GPUs can
communicate between machines through additional network interfaces, on dedicated networks.
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
    """Machine type and accelerators: a NodeRequest or a FleetSpec."""

    @property
    def machine_type(self) -> str: ...
    @property
    def accelerator(self) -> str | None: ...
    @property
    def count(self) -> Fraction: ...


class Needs(NamedTuple):
    """Row of machine_types.csv."""

    disk: str
    """Boot disk type, e.g. `pd-balanced`."""
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
    """Return `x86_64` or `arm64`, from the tables or, for other types (without GPU), from the series."""
    known = catalog.machine_types("gcp").get(machine_type)
    if known:
        return known[0].arch
    return "arm64" if machine_type.partition("-")[0] in _ARM else "x86_64"


def attached_gpus(node: Kind) -> dict[str, Any] | None:
    """Return accelerators to attach to a machine type that is also sold without (N1); None: none, or they are built in.

    `name` is the API's name, `count` an integer. Raises ProvisionError for an unsupported combination.
    """
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
