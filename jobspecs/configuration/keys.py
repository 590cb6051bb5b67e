"""Keys of the configuration: defaults are keys of the job file, settings are environment variables."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import NamedTuple

from ..catalog.csv_tables import parse, shipped_text
from ..diagnostics import Loc
from ..suggest import closest

DEFAULTS: dict[str, tuple[Loc, ...]] = {
    "job_dir": (("job_dir",),),
    "labels": (("labels",),),
    "priority": (("priority",),),
    "recover": (("recover",),),
    "launcher": (("launcher",),),
    "resources.cloud": (("resources", "cloud"),),
    "resources.region": (("resources", "region"), ("resources", "zone")),
    "resources.market": (("resources", "market"),),
    "resources.disk": (("resources", "disk"),),
    "checkpoint.every": (("checkpoint", "every"),),
    "checkpoint.keep": (("checkpoint", "keep"),),
    "checkpoint.on_damage": (("checkpoint", "on_damage"),),
    "retry.preemption": (("retry", "preemption"),),
    "retry.failure": (("retry", "failure"),),
    "retry.capacity": (("retry", "capacity"),),
    "limits.duration": (("limits", "duration"),),
    "limits.cost": (("limits", "cost"),),
    "limits.price": (("limits", "price"),),
    "limits.gpu_idle": (("limits", "gpu_idle"),),
}
"""Key of the job file that can have a default -> places in the job file of which none may be given for it to apply."""
MAPPINGS = frozenset({"job_dir", "labels"})
"""Defaults whose value may be a mapping, so that `job_dir.aws` is part of one."""


class Setting(NamedTuple):
    """Setting of the user's file: the value of an environment variable where the environment has none."""

    name: str
    variable: str
    kind: str
    """`text`, `price` (US dollars per hour) or `count`."""
    description: str


@cache
def settings() -> dict[str, Setting]:
    """Return the settings by name (tables/settings.csv)."""
    rows = parse(shipped_text("settings"), "setting", "variable", "kind", "description")
    return {row[0]: Setting(*row) for row in rows}


def all_keys() -> list[str]:
    return [*DEFAULTS, *settings()]


def suggestion(key: str) -> str:
    """Return a hint for an unknown key."""
    near = closest(key, all_keys())
    return f"did you mean {' or '.join(near)}?" if near else "`cloudgpu config show` lists the keys"


def default_of(key: str) -> str | None:
    """Return the default that a key is, or is part of (`job_dir.aws`); None if it is not one."""
    if key in DEFAULTS:
        return key
    head, dot, rest = key.partition(".")
    return head if dot and rest and head in MAPPINGS else None


def setting_mistake(setting: Setting, value: str) -> str:
    """Return what a setting's value should be; "": it is valid."""
    return _EXPECTED[setting.kind](value) if value.isprintable() and value else "expected a text"


def _price(value: str) -> str:
    try:
        is_valid = Decimal(value).is_finite() and Decimal(value) >= 0
    except InvalidOperation:
        is_valid = False
    return "" if is_valid else "expected US dollars per hour, such as 1.50"


def _count(value: str) -> str:
    is_valid = value.isascii() and value.isdecimal() and len(value) <= 9 and int(value) > 0
    return "" if is_valid else "expected a whole number from 1"


_EXPECTED: dict[str, Callable[[str], str]] = {"text": lambda _: "", "price": _price, "count": _count}
