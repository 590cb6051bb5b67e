"""Hints for unknown accelerator names: a count in another notation, a vendor prefix, a variant."""

from __future__ import annotations

import re

from .. import catalog
from ..suggest import one_of

_COUNT_AFTER = re.compile(r"(?ai)(.+?) *[x*\u00d7, ] *(\d{1,4})x?")
_COUNT_BEFORE = re.compile(r"(?ai)(\d{1,4}) *[x*\u00d7, ] *([a-z].*)")
_VENDORS = re.compile(r"(?i)^(?:(?:nvidia|tesla|amd|aws|instinct)[-_ ]*)+")
_VARIANT = re.compile(r"(?i)[-_ ](?:sxm\d?|pcie|hbm\d\w?|nvl|mega)\b.*$")


def accelerator_hint(text: str) -> str:
    """Return the hint for `A100 x8`, `8xH100`, `NVIDIA_TESLA_L4` or `A100-SXM4`; "" if no known accelerator matches."""
    for pattern, name, count in ((_COUNT_AFTER, 1, 2), (_COUNT_BEFORE, 2, 1)):
        found = pattern.fullmatch(text.strip())
        if found is not None and catalog.find_accelerator(found[name]) is not None:
            return f"write {found[name].strip()}:{found[count]}"
    names = meant_accelerators(text)
    return f"did you mean {one_of(names)}?" if names else ""


def meant_accelerators(text: str) -> list[str]:
    """Return the canonical names of the accelerators that a name means if its vendor and variant are ignored."""
    plain = _VENDORS.sub("", text.strip())
    return _of_model(plain) or _of_model(_VARIANT.sub("", plain))


def _of_model(model: str) -> list[str]:
    """Return the canonical names for a model: all memory sizes of the model, else the accelerator with this name."""
    sizes = [name for name in catalog.accelerators() if name.lower().startswith(f"{model.lower()}-")] if model else []
    found = catalog.find_accelerator(model)
    return sizes or ([found.name] if found else [])
