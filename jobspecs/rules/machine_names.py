"""Hints for unknown machine type names: similar names, and the command to refresh the tables if that can help."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .. import catalog
from ..suggest import did_you_mean
from ..targets import info
from .base import refresh_command

_NONE = r"(?!)"
_ONLY = "the tables list machine types with accelerators, and Compute Engine's N1, only"


def machine_type_hint(name: str, clouds: Sequence[str]) -> str:
    """Return a hint for a name that these clouds' tables lack: a similar name, or how to refresh the tables."""
    lower = name.lower()
    if any(re.fullmatch(info(cloud).custom or _NONE, lower) for cloud in clouds):
        return "custom machine types are not supported; write a predefined one, such as n1-standard-8"
    known = spelt_otherwise(name, clouds)
    if known is not None:
        return f"did you mean {known}?"
    refreshed = [cloud for cloud in clouds if re.fullmatch(info(cloud).families or _NONE, lower)]
    why = f"if it is newer than the tables, {refresh_command(refreshed[0])}" if refreshed else _ONLY
    meant = did_you_mean(name, _names(clouds))
    return f"{meant} {why[0].upper()}{why[1:]}" if meant else why


def spelt_otherwise(name: str, clouds: Sequence[str]) -> str | None:
    """Return the machine type whose name differs from `name` only in case, separators or the prefix `Standard_`.

    None if there is none.
    """
    return next((known for known in _names(clouds) if _fold(known) == _fold(name)), None)


def _names(clouds: Sequence[str]) -> list[str]:
    return sorted({name for cloud in clouds for name in catalog.machine_types(cloud)})


def _fold(name: str) -> str:
    """Normalize a name for comparison: `Standard_NC4as_T4_v3` equals `NC4as T4 v3`."""
    return catalog.fold(name).removeprefix("standard")
