"""Names of machine types that no table has: what may be meant, and whether asking the provider can help."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import catalog
from .rules_base import refresh_command
from .suggest import did_you_mean

_CUSTOM = re.compile(r"(?:[a-z0-9]+-)?custom-\d+-\d+(?:-ext)?", re.ASCII)
"""Compute Engine's custom machine types: `n1-custom-8-30720`, `custom-8-30720`, `n2-custom-4-65536-ext`."""
_ACCELERATED = {
    "aws": re.compile(r"(?:p|g|gr|trn|inf|dl)\d[a-z0-9-]*\.[a-z0-9-]+", re.ASCII),
    "gcp": re.compile(r"(?:[ag]\d|n1-)[a-z0-9-]+", re.ASCII),
    "azure": re.compile(r"standard_n[a-z0-9_]+", re.ASCII),
}
"""Cloud -> names, in lower case, of the families that `catalog refresh` asks about: those with accelerators, and N1."""
_ONLY = "the tables list machine types with accelerators, and Compute Engine's N1, only"


def machine_type_hint(name: str, clouds: Sequence[str]) -> str:
    """Return what to write instead of a name that the tables of these clouds lack, or how to have it looked up."""
    lower = name.lower()
    if _CUSTOM.fullmatch(lower) and not {"gcp", "vertex"}.isdisjoint(clouds):
        return "custom machine types are not supported; write a predefined one, such as n1-standard-8"
    options = sorted({option for cloud in clouds for option in catalog.machine_types(cloud)})
    same = [option for option in options if _fold(option) == _fold(name)]
    if same:
        return f"did you mean {same[0]}?"
    refreshed = [cloud for cloud in clouds if cloud in _ACCELERATED and _ACCELERATED[cloud].fullmatch(lower)]
    why = f"if it is newer than the tables, {refresh_command(refreshed[0])}" if refreshed else _ONLY
    meant = did_you_mean(name, options)
    return f"{meant} {why[0].upper()}{why[1:]}" if meant else why


def _fold(name: str) -> str:
    """Return the form in which spellings are compared: `Standard_NC4as_T4_v3` is also written NC4as T4 v3."""
    return catalog.fold(name).removeprefix("standard")
