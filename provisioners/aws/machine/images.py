"""The image a machine boots: the vendor's own with the driver of its GPUs, the newest there is in the region.

images.csv says which: the first row whose `machine_types` (patterns) and `architecture` fit. `parameter` is the public
parameter of Systems Manager that names the image's id; a row without one says why there is no image. All of them are
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
"""Seconds for which an answer is taken for the newest image."""


class Image(NamedTuple):
    """What RunInstances must know of an image."""

    ami: str
    root_device: str
    min_gb: int
    """GiB of its own snapshot: the root volume cannot be smaller."""


class Images:
    """Cache of images by region and machine type. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock, ttl_s=_TTL_S)

    def find(self, region: str, machine_type: str) -> Image:
        """Raises ProvisionError: `invalid` if AWS has no image for the type, `not_offered` if the region has none."""
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
    """The public parameter that names the image for a machine type. Raises ProvisionError(invalid) if there is none."""
    architecture = architecture_of(machine_type)
    for patterns, fits, parameter, why_not in _rows():
        if architecture == fits and any(fnmatchcase(machine_type, pattern) for pattern in patterns.split()):
            if parameter:
                return parameter
            raise ProvisionError("invalid", f"{machine_type} cannot be launched: {why_not}", scope="cloud")
    raise ProvisionError("invalid", f"{machine_type}: there is no image for {architecture}", scope="cloud")


def architecture_of(machine_type: str) -> str:
    """`x86_64` or `arm64`; that of a type the tables do not know (one without GPU) is read off its name."""
    known = catalog.machine_types("aws").get(machine_type)
    if known:
        return known[0].arch
    family = machine_type.partition(".")[0]
    generation = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return "arm64" if "g" in generation or family == "a1" else "x86_64"


def _root(image: ImageTypeDef) -> tuple[str, int]:
    """Device name and size of the root volume."""
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
