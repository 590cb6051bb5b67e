"""Outputs of a job: the files under `outputs/` of its job dir, and the records of what each node wrote there.

A node that copies its `outputs` writes an OutputsRecord first, with the checksum of each file. A download can thus be
verified, and shows which attempt a file is from. Files that programs write by write_output() have no record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ..storage.downloads import safe_parts, without_markers
from ..storage.errors import RecordError
from ..storage.objects import JobDir
from ..storage.store import Entry
from .jobdir import Result, node_key
from .logs.format import attempt_numbers
from .records import Record

FOLDER = "outputs"
RECORD = "outputs.json"


@dataclass(frozen=True, slots=True)
class OutputsRecord(Record):
    """nodes/<node>/outputs.json: what a node copies to outputs/. Written before the first file, so that a node that is
    lost meanwhile leaves no file without a record."""

    MOST_BYTES: ClassVar[int] = 64 << 20
    sizes: dict[str, int] = field(default_factory=dict)
    """Key in the job dir -> bytes."""
    sha256: dict[str, str] = field(default_factory=dict)
    """Key in the job dir -> checksum, in hex; none where the time was short."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file in outputs/."""

    path: str
    """Relative to outputs/."""
    entry: Entry
    attempt: int | None = None
    """Attempt whose node wrote it; None: unknown, e.g. because the program wrote it by write_output()."""
    sha256: frozenset[str] = frozenset()
    """Checksums that nodes have recorded for a file of this name and size; empty: none, or a node has copied such a
    file without a checksum."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files in a job's outputs/."""

    found: list[Output]
    refused: list[str]
    """Keys that lead out of the folder."""

    @property
    def size(self) -> int:
        return sum(output.entry.size for output in self.found)


def find_outputs(job_dir: JobDir, attempts: Mapping[int, JobDir] | None = None) -> Outputs:
    """Return the outputs in a job dir, by path. Raises JobDirError.

    attempts: number -> job dir in which its nodes' records are; omitted: all are in this one
    """
    entries = [entry for entry in without_markers(job_dir.entries(FOLDER)) if _is_inside(job_dir, entry)]
    places = dict.fromkeys(attempt_numbers(job_dir), job_dir) if attempts is None else attempts
    recorded = _records(places, {entry.key: entry.size for entry in entries}) if entries else {}
    found, refused = [], []
    for entry in entries:
        path = entry.key.removeprefix(f"{FOLDER}/")
        if safe_parts(path) is None:
            refused.append(entry.key)
            continue
        known = recorded.get(entry.key, [])
        newest = known[0].attempt if known else None
        checksums = frozenset(one.sha256 for one in known)
        found.append(Output(path, entry, newest, frozenset() if "" in checksums else checksums))
    return Outputs(found, refused)


def missing_outputs(job_dir: JobDir, attempt: int, nodes: Iterable[str]) -> list[str]:
    """Return the job's `outputs` of which these nodes of an attempt found nothing. Invalid results count as none.
    Raises JobDirError."""
    missing: list[str] = []
    for node in nodes:
        with contextlib.suppress(RecordError):
            result = Result.read(job_dir, node_key(attempt, node, "result.json"))
            missing += [] if result is None else result.missing_outputs
    return list(dict.fromkeys(missing))


def _is_inside(job_dir: JobDir, entry: Entry) -> bool:
    """Return whether an object of a local folder is no link to a file elsewhere."""
    folder = job_dir.folder
    return folder is None or (folder / entry.key).resolve().is_relative_to((folder / FOLDER).resolve())


class _Recorded(NamedTuple):
    """Record of a file by one attempt."""

    attempt: int
    sha256: str
    """"": not computed, as the time was short."""


def _records(places: Mapping[int, JobDir], sizes: Mapping[str, int]) -> dict[str, list[_Recorded]]:
    """Return key -> what attempts have recorded of a file of this size, newest attempt first.

    A file of another size is of an attempt that has not copied it. The record is written before the files: the newest
    attempt with one may have been lost before it copied the file, so all attempts are read. Does without invalid
    records.
    """
    found: dict[str, list[_Recorded]] = {}
    for number in sorted(places, reverse=True):
        for record in _records_of(places[number], number):
            for key in sizes.keys() & record.sizes.keys():
                if record.sizes[key] == sizes[key]:
                    found.setdefault(key, []).append(_Recorded(number, record.sha256.get(key, "")))
    return found


def _records_of(job_dir: JobDir, attempt: int) -> Iterator[OutputsRecord]:
    for node in job_dir.folders(f"attempts/{attempt:04d}/nodes"):
        try:
            record = OutputsRecord.read(job_dir, node_key(attempt, node, RECORD))
        except RecordError:
            continue
        if record is not None:
            yield record
