"""Machine images: Google's or Canonical's with the driver of the machine's GPUs, the newest of the image family.

images.csv maps machines to image families: the first row with matching `machine_types` (patterns), `architecture` and
`gpu`. A row without a family has the reason why no image exists. `secure_boot`: all its kernel modules are signed. All
images are Ubuntu 24.04 with Python 3.12 and Google's guest agent, which runs the startup script on every boot.
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
"""Seconds for which the newest image is cached."""


class Family(NamedTuple):
    """Image family, from a row of images.csv."""

    project: str
    family: str
    secure_boot: bool


class Image(NamedTuple):
    """Image of a machine's disk."""

    source: str
    """URL of the image instead of its family, so a retry sends the same request."""
    min_gb: int
    """Minimum size of the disk in GB."""
    shielded: bool
    """True if it boots with UEFI, so that the machine can have a virtual TPM."""
    secure_boot: bool


class Images:
    """Cache of the newest image of each family. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, node: NodeRequest) -> Image:
        """Return the image for a node. Raises ProvisionError: `invalid` if the machine type has no image."""
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
    """Return the image family for a machine type. Raises ProvisionError(invalid) if none supports it."""
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
