"""The image a machine boots: Google's or Canonical's own with the driver of its GPUs, the newest of its family.

images.csv says which: the first row whose `machine_types` (patterns), `architecture` and `gpu` fit; a row without a
family says why there is no image. `secure_boot`: whether all its kernel modules are signed. All of them are Ubuntu
24.04 with Python 3.12 and Google's guest agent, which runs the startup script on every boot.
"""

from __future__ import annotations

import csv
import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ...base import NodeRequest, ProvisionError
from ...shared.poll_cache import PollCache
from ..clients import READ_S, Clients
from .machine_types import architecture_of

_TABLE = Path(__file__).with_name("images.csv")
_TTL_S = 3_600.0
"""Seconds for which an answer is taken for the newest image."""


class Family(NamedTuple):
    """A row of images.csv."""

    project: str
    family: str
    secure_boot: bool


class Image(NamedTuple):
    """What a machine's disk is made of."""

    source: str
    """URL of the image itself, not of its family: a repeated call asks for the same."""
    min_gb: int
    """The disk cannot be smaller."""
    shielded: bool
    """It boots with UEFI: the machine can have a virtual TPM."""
    secure_boot: bool


class Images:
    """Cache of the newest image of each family. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, node: NodeRequest) -> Image:
        """Raises ProvisionError: `invalid` if there is no image for the machine type."""
        return self._cache.get(family_for(node.machine_type, gpu=node.accelerator is not None))

    def _ask(self, family: Family) -> Image:
        found = self._clients.ask(
            f"look up the image {family.project}/{family.family}",
            lambda: self._clients.images.get_from_family(
                project=family.project, family=family.family, retry=None, timeout=READ_S
            ),
        )
        shielded = any(feature.type_ == "UEFI_COMPATIBLE" for feature in found.guest_os_features)
        return Image(found.self_link, int(found.disk_size_gb), shielded, shielded and family.secure_boot)


def family_for(machine_type: str, *, gpu: bool) -> Family:
    """Raises ProvisionError(invalid) if there is none."""
    architecture = architecture_of(machine_type)
    for row in _rows():
        if (row["architecture"], row["gpu"]) != (architecture, "yes" if gpu else "no"):
            continue
        if any(fnmatchcase(machine_type, pattern) for pattern in row["machine_types"].split()):
            if row["family"]:
                return Family(row["project"], row["family"], row["secure_boot"] == "yes")
            raise ProvisionError("invalid", f"{machine_type} cannot be launched: {row['why_not']}", scope="cloud")
    raise ProvisionError("invalid", f"{machine_type}: there is no image for {architecture}", scope="cloud")


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
