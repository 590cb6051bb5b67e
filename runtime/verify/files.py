"""Compare the files that runs of a program have written, each in a separate working copy.

JSON, JSON lines, files of torch.save and text are compared field by field; the fields of text are the numbers in it.
The content of any other file is one field. A field that differs between two undisturbed runs (seconds, dates) is
ignored, also in all other rows of a list or lines of the same form.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from ..attach.state.journal import PREFIX
from .values import Walk

WORKING_COPY = "cwd"
"""Name of a link in a run's folder to its working copy."""
_LARGEST = 1 << 25
"""Maximum bytes of JSON or text that is compared field by field."""
_NUMBER = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?|\d\d?:\d\d:\d\d(?:[.,]\d+)?"
    r"|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b"
)
"""Matches a date with time, a time, or a number."""
_DIGEST = "xxh3:"
_SHOWN = 60
"""Maximum characters of a value in a message."""

Fields = list[tuple[str, str]]
"""Names and values, in the order of the file."""


@dataclass(slots=True)
class Files:
    """Result of a comparison of files."""

    compared: int = 0
    different: list[dict[str, str]] = field(default_factory=list)
    """Name and difference of each file that differs."""
    ignored: list[str] = field(default_factory=list)
    """Names of files that differ, entirely or in part, between two undisturbed runs."""


def compare_files(ours: Path, theirs: Path, other: Path | None) -> Files:
    """Compare the files of an undisturbed run with those of a resumed run. `other`: a second undisturbed run."""
    a, b = _delivered(ours), _delivered(theirs)
    c = _delivered(other) if other is not None else a
    chance = {_pattern(name) for name in a.keys() ^ c.keys()}
    found = Files(ignored=sorted(a.keys() ^ c.keys()))
    for name in sorted(a.keys() | b.keys()):
        if name in a and name in b:
            found.compared += 1
            if not _is_same(a[name], b[name]):
                _compare(found, name, a[name], b[name], c.get(name))
        elif _pattern(name) not in chance:
            says = "is missing" if name in a else "is there, but not after an undisturbed run"
            found.different.append({"name": name, "says": says})
    return found


def _delivered(run: Path) -> dict[str, Path]:
    """Return the files in a run's working copy, by relative path, without symbolic links, which may lead outside."""
    root = (run / WORKING_COPY).resolve()
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(PREFIX)]
        paths = (Path(folder) / name for name in names if not name.startswith(PREFIX))
        found.update({str(path.relative_to(root)): path for path in paths if path.is_file() and not path.is_symlink()})
    return found


def _pattern(name: str) -> str:
    """Return a name with its numbers replaced by "#": names that contain a time or process id differ in each run."""
    return re.sub(r"\d+", "#", name)


def _is_same(a: Path, b: Path) -> bool:
    return a.stat().st_size == b.stat().st_size and a.read_bytes() == b.read_bytes()


def _compare(found: Files, name: str, a: Path, b: Path, c: Path | None) -> None:
    ours, theirs, others = read_fields(a), read_fields(b), read_fields(c) if c is not None else []
    chance = by_chance(ours, others)
    if chance:
        found.ignored.append(name)
    if chance is None:
        found.ignored.append(name)
    elif (says := first_difference(ours, theirs, chance)) is not None:
        found.different.append({"name": name, "says": says})


def by_chance(ours: Fields, others: Fields) -> set[str] | None:
    """Return the names of fields that differ between two undisturbed runs; None if the runs have different fields."""
    if [name for name, _ in ours] != [name for name, _ in others]:
        return None
    return {name for (name, a), (_, b) in zip(ours, others, strict=True) if a != b}


def first_difference(ours: Fields, theirs: Fields, chance: set[str]) -> str | None:
    """Describe the first difference, ignoring the fields in `chance`; None if there is none."""
    ours, theirs = ([one for one in fields if one[0] not in chance] for fields in (ours, theirs))
    for (name, a), (other, b) in zip(ours, theirs, strict=False):
        if name != other:
            return f"{other} = {_short(b)}, where an undisturbed run has {name} = {_short(a)}"
        if a != b and a.startswith(_DIGEST):
            return f"{name} differs"
        if a != b:
            return f"{name}: {_short(b)} instead of {_short(a)}"
    if len(ours) != len(theirs):
        return f"{len(theirs)} values instead of {len(ours)}"
    return None


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"


# Reading


def read_fields(path: Path) -> Fields:
    """Return the fields of a file; if it has no known format or cannot be parsed, one field with its digest."""
    data = path.read_bytes()
    readers: list[Callable[[Path, bytes], Fields | None]] = [_torch_fields]
    if len(data) <= _LARGEST:
        readers += [_json_fields, _text_fields]
    for read in readers:
        try:
            if (found := read(path, data)) is not None:
                return found
        except (ValueError, RecursionError):  # not of this format
            continue
    return [("its content", _digest(data))]


def _torch_fields(_path: Path, data: bytes) -> Fields | None:
    if data[:2] != b"PK" or b"data.pkl" not in data[:400]:
        return None
    import torch

    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - not from torch.save, or with classes that are not loaded here
        return None
    walked = Walk().fields(loaded, "")
    return [
        (name or "its content", value.decode() if len(value) <= _SHOWN and value.isascii() else _digest(value))
        for _, name, value in walked
    ]


def _digest(data: bytes) -> str:
    return _DIGEST + xxhash.xxh3_128_hexdigest(data)


def _json_fields(path: Path, data: bytes) -> Fields | None:
    if path.suffix == ".json":
        return list(_flat(json.loads(data), ""))
    if path.suffix == ".jsonl":
        rows = (json.loads(line) for line in data.decode().splitlines() if line.strip())
        return [one for row in rows for one in _flat(row, "row")]
    return None


def _flat(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield f"length of {name or 'the list'}", str(len(value))
        for item in value:
            yield from _flat(item, f"{name}[*]")
    else:
        yield name, repr(value)


def _text_fields(_path: Path, data: bytes) -> Fields | None:
    if b"\0" in data[:4096]:
        return None
    found = []
    for line in data.decode().splitlines():
        kind = _NUMBER.sub("#", line)
        found.append((f"line {_short(kind)!r}", ""))
        found += [(f"{_short(kind)!r}, number {place}", one) for place, one in enumerate(_NUMBER.findall(line), 1)]
    return found
