"""Images of machines: the newest AWS image in the region with the driver of the machine's GPUs.

The first row of images.csv whose `machine_types` (patterns) and `architecture` match decides. `parameter` is the public
Systems Manager parameter that contains the image's id; a row without it says why there is no image. All images are
Ubuntu 24.04, with cloud-init and Python 3.12.
"""

from __future__ import annotations

import csv
import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ....jobspecs import catalog
from ...base import ProvisionError
from ...shared.poll_cache import PollCache
from ..clients import Clients
from ..errors import translate_errors

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import ImageTypeDef

_TABLE = Path(__file__).with_name("images.csv")
_TTL_S = 3_600.0
"""Seconds for which an image is cached."""


class Image(NamedTuple):
    """Properties of an image that RunInstances needs."""

    ami: str
    root_device: str
    min_gb: int
    """Size of its snapshot in GiB: the smallest possible root volume."""


class Images:
    """Cache of images by region and machine type. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, region: str, machine_type: str) -> Image:
        """Return the image for a machine type. Raises ProvisionError: `invalid` if AWS has none, `not_offered` if the
        region has none."""
        return self._cache.get((region, parameter_for(machine_type)))

    def _ask(self, key: tuple[str, str]) -> Image:
        region, parameter = key
        with translate_errors(f"look up the image of {region}", self._clients.clock):
            answer = self._clients.ssm(region).get_parameters(Names=[parameter])
            if not answer["Parameters"]:
                message = f"{region} has no image {parameter}; choose another region"
                raise ProvisionError("not_offered", message, scope="region", code="ParameterNotFound")
            ami = answer["Parameters"][0]["Value"]
            found = self._clients.ec2(region).describe_images(ImageIds=[ami])["Images"]
        if not found:
            message = f"{region} has no image {ami}, though {parameter} names it; choose another region"
            raise ProvisionError("not_offered", message, scope="region", code="InvalidAMIID.NotFound")
        return Image(ami, *_root(found[0]))


def parameter_for(machine_type: str) -> str:
    """Return the public parameter with the image id for a machine type. Raises ProvisionError(invalid) if there is
    none."""
    architecture = architecture_of(machine_type)
    for patterns, fits, parameter, why_not in _rows():
        if architecture == fits and any(fnmatchcase(machine_type, pattern) for pattern in patterns.split()):
            if parameter:
                return parameter
            raise ProvisionError("invalid", f"{machine_type} cannot be launched: {why_not}", scope="cloud")
    raise ProvisionError("invalid", f"{machine_type}: there is no image for {architecture}", scope="cloud")


def architecture_of(machine_type: str) -> str:
    """Return `x86_64` or `arm64`, derived from the name for types that the tables lack (those without GPUs)."""
    known = catalog.machine_types("aws").get(machine_type)
    if known:
        return known[0].arch
    family = machine_type.partition(".")[0]
    generation = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return "arm64" if "g" in generation or family == "a1" else "x86_64"


def _root(image: ImageTypeDef) -> tuple[str, int]:
    """Return device name and size (GiB) of the root volume."""
    root = image.get("RootDeviceName") or "/dev/sda1"
    sizes = [
        int(mapping.get("Ebs", {}).get("VolumeSize", 0))
        for mapping in image.get("BlockDeviceMappings", ())
        if mapping.get("DeviceName") == root
    ]
    return root, max(sizes, default=0)


@functools.cache
def _rows() -> tuple[tuple[str, str, str, str], ...]:
    columns = ("machine_types", "architecture", "parameter", "why_not")
    with _TABLE.open(encoding="utf-8", newline="") as file:
        rows = [tuple(row[column] for column in columns) for row in csv.DictReader(file)]
    return tuple((types, architecture, parameter, why_not) for types, architecture, parameter, why_not in rows)
