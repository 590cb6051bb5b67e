"""Apply the configuration: defaults to a job file, settings to the environment.

Precedence, highest first: the command line, the job file (for settings: the environment), the project's pyproject.toml,
the user's file, the built-in default.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import keys
from .files import ConfigFile, project_file, user_file

if TYPE_CHECKING:
    from ..loading.overrides import Override


class Value(NamedTuple):
    """Configured value of a key."""

    key: str
    value: Any
    source: str
    """File that it is from; "": a command line."""


def configured_defaults(folder: Path) -> list[Value]:
    """Return the defaults for a job file in `folder`, the project's before the user's. Raises ConfigError, OSError."""
    found: dict[str, Value] = {}
    for file in (project_file(folder), user_file()):
        if file is not None:
            for key, value in file.defaults.items():
                found.setdefault(key, Value(key, value, file.name))
    return list(found.values())


def default_overrides(folder: Path) -> list[Override]:
    """Return the defaults as overrides that apply where the job file and the command line say nothing."""
    return [as_override(value) for value in configured_defaults(folder)]


def as_override(value: Value) -> Override:
    """Return a default as an override of a job file."""
    from ..loading.overrides import Override

    path = tuple(value.key.split("."))
    label = f"{value.key} in {value.source}" if value.source else value.key
    return Override(path, value.value, label, unless=keys.DEFAULTS[value.key])


def apply_settings(environ: MutableMapping[str, str], file: ConfigFile | None) -> None:
    """Set the environment variables of the user's settings that are not set, for this process and those it starts."""
    for name, value in ({} if file is None else file.settings).items():
        variable = keys.settings()[name].variable
        if not environ.get(variable):
            environ[variable] = value
