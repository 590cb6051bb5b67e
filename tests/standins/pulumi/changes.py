"""Differences between two sets of properties, by path: `tags.Name`, `networkInterfaces[0].deviceIndex`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Change = Literal["add", "delete", "update"]

_MISSING = object()


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Change]:
    """Return the changes by path, as deep as possible. None and a missing key are equal."""
    return dict(_walk("", old, new))


def _walk(path: str, old: Any, new: Any) -> Iterator[tuple[str, Change]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _walk(_join(path, key), _get(old, key), _get(new, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else _MISSING
            after = new[index] if index < len(new) else _MISSING
            yield from _walk(f"{path}[{index}]", before, after)
    elif old is _MISSING and new is not _MISSING:
        yield path, "add"
    elif new is _MISSING and old is not _MISSING:
        yield path, "delete"
    elif old != new or isinstance(old, bool) is not isinstance(new, bool):
        yield path, "update"


def _get(properties: Mapping[str, Any], key: str) -> Any:
    value = properties.get(key)
    return _MISSING if value is None else value


def _join(path: str, key: str) -> str:
    word = key if re.fullmatch(r"[A-Za-z_][\w-]*", key) else f'["{key}"]'
    return f"{path}.{word}" if path and not word.startswith("[") else f"{path}{word}"


def top(path: str) -> str:
    """Return the top-level property of a path."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]
