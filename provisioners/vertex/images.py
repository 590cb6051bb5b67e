"""The container image of a job that names none: images.csv says which.

Vertex AI's own prebuilt training images have Python 3.10 at most, and the agent needs 3.11: so these are others.
Source: "Prebuilt containers for serverless training"; "Create a serverless training job" on where images may be.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from ..base import ProvisionError

_TABLE = Path(__file__).with_name("images.csv")
_NONE, _ANY = "-", "*"


def default_image(machine_type: str, architecture: str, accelerator: str | None) -> str:
    """For a machine with this accelerator. Raises ProvisionError where a job has to name its own image."""
    if architecture != "x86_64":
        message = f"{machine_type} is {architecture}, for which there is no image: name one with `image:`"
        raise ProvisionError("not_offered", message, scope="cloud", code="NoImage")
    images = _images()
    return images[_NONE] if accelerator is None else images.get(accelerator, images[_ANY])


@functools.cache
def _images() -> dict[str, str]:
    """Accelerator, "-" for none, "*" for any other -> image."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return {name: row["image"] for row in csv.DictReader(file, strict=True) for name in row["accelerators"].split()}
