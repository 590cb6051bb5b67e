"""Effective value of every key of the configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...jobspecs.configuration import keys
from ...jobspecs.configuration.effective import configured_defaults
from ...jobspecs.configuration.files import user_file

_USER = re.compile(r"://.*@")
_PARAMETER = re.compile(r"(?i)([?&][^=&]*(?:password|passwd|pwd|secret|token|key|sig)[^=&]*=)[^&]*")


class Row(NamedTuple):
    """Key with its value and source."""

    key: str
    value: Any
    """Text, list or mapping; None: there is none."""
    source: str
    """File or environment variable; "": built in."""

    @property
    def text(self) -> str:
        """The value on one line."""
        if isinstance(self.value, Mapping):
            return ", ".join(f"{key}: {value}" for key, value in self.value.items())
        return ", ".join(self.value) if isinstance(self.value, list) else self.value or ""


def effective(folder: Path) -> list[Row]:
    """Return every key with the value that applies to job files in `folder`. Passwords in URLs are masked.

    Raises ConfigError, OSError.
    """
    configured = {value.key: value for value in configured_defaults(folder)}
    rows = []
    for key in keys.DEFAULTS:
        found = configured.get(key)
        rows.append(Row(key, _built_in(key), "") if found is None else Row(key, found.value, found.source))
    file = user_file()
    for name, setting in keys.settings().items():
        given = os.environ.get(setting.variable)
        ours = None if file is None else file.settings.get(name)
        source = setting.variable if given else "" if file is None or ours is None else file.name
        value = given or ours
        rows.append(Row(name, None if value is None else _without_passwords(value), source))
    return rows


def _without_passwords(value: str) -> str:
    """Return a setting's value without what a URL says of user and password."""
    return _USER.sub("://…@", _PARAMETER.sub(r"\1…", value))


def _built_in(key: str) -> str | None:
    """Return the default of the job file's schema, as a text; None if there is none."""
    from ...jobspecs.schema import job_schema

    node: Any = job_schema()
    for step in key.split("."):
        node = _resolved(node, job_schema())["properties"][step]
    value = node.get("default")
    if value is None or value == []:
        return None
    return ", ".join(value) if isinstance(value, list) else str(value)


def _resolved(node: Any, schema: Any) -> Any:
    reference = node.get("$ref")
    return schema["$defs"][reference.rpartition("/")[2]] if reference else node
