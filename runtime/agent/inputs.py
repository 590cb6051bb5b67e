"""Download of a job's inputs before its setup: folders of an object store, with parallel ranged reads.

A restarted machine fetches only missing parts, see storage/downloads.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ...storage.downloads import PART, Download, DownloadError, fetch, safe_parts, without_markers
from ...storage.objects import JobDir

__all__ = ["PART", "InputsError", "fetch_inputs"]

_REPORT_INTERVAL_S = 10.0
_SPARE = 1.02  # required free space per byte of input: file systems have overhead


class InputsError(Exception):
    """The inputs cannot be fetched; the message says which and why."""


def fetch_inputs(
    inputs: Mapping[str, str], folder: Path, journal: Path, check: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Fetch every input (path -> URL; paths are relative to `folder`, or absolute).

    `journal` is the path of the journal file. `check` is called periodically; an exception that it raises stops the
    download. Raises InputsError, JobDirError, OSError.
    """
    begun = reported_at = time.monotonic()
    is_announced = False
    files = [file for path, url in inputs.items() for file in _list(url, folder / path)]
    _check_space(folder / next(iter(inputs)), sum(file.needs for file in files))

    def on_progress(done: int, total: int) -> None:
        nonlocal reported_at, is_announced
        if not is_announced:
            is_announced = True
            say(f"inputs: {len(files):,} files; {_amount(total)} to fetch")
        if time.monotonic() - reported_at > _REPORT_INTERVAL_S:
            reported_at = time.monotonic()
            say(f"inputs: {_amount(done)} of {_amount(total)}")

    try:
        fetch(files, journal, check, on_progress)
    except DownloadError as error:
        raise InputsError(str(error)) from error
    say(f"inputs: {len(files):,} files are there, after {time.monotonic() - begun:.1f} s")


def _list(url: str, path: Path) -> Iterator[Download]:
    """Yield the objects below a URL, or the one object that it names. Raises InputsError, JobDirError."""
    store = JobDir(url, make=False)
    entries = store.entries("")
    if not entries:
        parent, _, name = url.rstrip("/").rpartition("/")
        alone = JobDir(parent, make=False) if parent.partition("://")[2] else store
        found = alone.entry(name)
        if found is None:
            raise InputsError(f"there is nothing at {url}")
        yield Download(alone, found, path)
    for entry in without_markers(entries):
        parts = safe_parts(entry.key)
        if parts is None:
            raise InputsError(f"{url}: the object {entry.key!r} has a name that leads out of the folder")
        yield Download(store, entry, path.joinpath(*parts))


def _check_space(place: Path, needed: int) -> None:
    """Raise InputsError if the file system of `place`, the first input, has less free space than all inputs need."""
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed * _SPARE > free:
        raise InputsError(
            f"the inputs need {_amount(needed)} on {place}, where {_amount(free)} are free: "
            "write more in resources.disk"
        )


def _amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
