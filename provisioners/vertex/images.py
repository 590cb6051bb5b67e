"""Default container images, from images.csv, for jobs that name none.

Vertex AI's prebuilt training images have at most Python 3.10, but the agent needs 3.11: therefore other images are
used. Sources: "Prebuilt containers for serverless training"; "Create a serverless training job" for the allowed
registries.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from ..base import ProvisionError

_TABLE = Path(__file__).with_name("images.csv")
_NONE, _ANY = "-", "*"


def default_image(machine_type: str, architecture: str, accelerator: str | None) -> str:
    """Return the default image for a machine. Raises ProvisionError if there is none, so that the job must name one."""
    if architecture != "x86_64":
        message = f"{machine_type} is {architecture}, for which there is no image: name one with `image:`"
        raise ProvisionError("not_offered", message, scope="cloud", code="NoImage")
    images = _images()
    return images[_NONE] if accelerator is None else images.get(accelerator, images[_ANY])


@functools.cache
def _images() -> dict[str, str]:
    """Return accelerator ("-": none, "*": any other) -> image."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return {name: row["image"] for row in csv.DictReader(file, strict=True) for name in row["accelerators"].split()}
