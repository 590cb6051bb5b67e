"""Machine images: Azure's HPC image with drivers for GPUs and InfiniBand, otherwise Canonical's Ubuntu.

images.csv maps machines to URNs (publisher, offer, SKU): the first row with matching `machine_types` (patterns),
`architecture` and `gpu`. A row without a publisher has the reason why no image exists. All images are Ubuntu 24.04 with
Python 3.12 and cloud-init. Requests name the newest version by number instead of `latest`, so a retry sends the same
request.
"""

from __future__ import annotations

import csv
import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ...base import NodeRequest, ProvisionError
from ...shared.poll_cache import PollCache
from ..catalog.sizes import architecture_of
from ..clients import Clients, as_dicts

_TABLE = Path(__file__).with_name("images.csv")
_TTL_S = 3_600.0
"""Seconds for which the newest version is cached."""


class Urn(NamedTuple):
    """Image URN, from a row of images.csv."""

    publisher: str
    offer: str
    sku: str


class Image(NamedTuple):
    """Version of an image."""

    urn: Urn
    version: str
    min_gb: int
    """Minimum size of the disk in GB; 0: unknown."""


class Images:
    """Cache of the newest version of each image, by region. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, region: str, node: NodeRequest) -> Image:
        """Return the image for a node. Raises ProvisionError: `invalid` if the size has no image, `not_offered` if the
        region does not have it."""
        return self._cache.get((region, urn_for(node.machine_type, gpu=node.accelerator is not None)))

    def _ask(self, key: tuple[str, Urn]) -> Image:
        region, urn = key
        images, doing = self._clients.compute.virtual_machine_images, f"look up the image {':'.join(urn)} in {region}"
        versions = self._clients.ask(doing, lambda: as_dicts(images.list(region, *urn, top=1, orderby="name desc")))
        if not versions:
            message = f"{region} has no image {':'.join(urn)}; choose another region"
            raise ProvisionError("not_offered", message, scope="region", code="ImageNotFound")
        version = str(versions[0]["name"])
        found = self._clients.ask(doing, lambda: as_dicts([images.get(region, *urn, version)]))[0]
        disk = (found.get("properties") or {}).get("osDiskImage") or {}
        return Image(urn, version, int(disk.get("sizeInGb") or 0))


def image_of(text: str) -> Image:
    """Parse `publisher:offer:sku:version`. Raises ValueError for another format."""
    words = text.split(":")
    if len(words) != 4 or not all(words):
        raise ValueError(f"{text} is no image of Azure: it must be publisher:offer:sku:version")
    return Image(Urn(*words[:3]), words[3], 0)


def urn_for(machine_type: str, *, gpu: bool) -> Urn:
    """Return the URN for a machine type. Raises ProvisionError(invalid) if no image supports it."""
    architecture = architecture_of(machine_type)
    for row in _rows():
        if row["architecture"] not in {"*", architecture} or row["gpu"] != ("yes" if gpu else "no"):
            continue
        if any(fnmatchcase(machine_type, pattern) for pattern in row["machine_types"].split()):
            if row["publisher"]:
                return Urn(row["publisher"], row["offer"], row["sku"])
            raise ProvisionError("invalid", f"{machine_type} cannot be launched: {row['why_not']}", scope="cloud")
    raise ProvisionError("invalid", f"{machine_type}: there is no image for {architecture}", scope="cloud")


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
