"""Download outputs into a folder; existing files are kept, and files that differ are refused."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.output import ProgressLine, remark, warning
from ..shared.text import amount, duration, plural

if TYPE_CHECKING:
    from ...protocol.jobdir import JobDir
    from ...protocol.outputs import Output
    from ...storage.downloads import Download

JOURNAL = ".cloudgpu-download"
"""File in the folder, while a download is not complete."""
_SHOWN = 5  # maximum files named in an error
_RATE_S = 10.0  # period over which the rate is measured
_FIRST_RATE_S = 1.0  # minimum period, before which no rate is shown

Verified = Literal["sha256", "etag", "size"]
"""Property that was compared: the checksum that the node recorded; the store's ETag and the size; the size."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file of a finished download."""

    output: Output
    was_there: bool
    """It was not fetched, because the file was there."""
    verified: Verified


def download(job_dir: JobDir, outputs: Sequence[Output], folder: Path, *, force: bool) -> list[Fetched]:
    """Download outputs into a folder, which is created. Raises CommandError, JobDirError, OSError.

    force: replace files that are there and differ
    """
    from ...storage.downloads import DownloadError, fetch

    _refuse_own_names(outputs)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / JOURNAL) as journal:
        files = [_target(job_dir, output, folder) for output in outputs]
        there = _there(files, journal, force=force)
        todo = [file for file in files if file.entry.key not in there]
        _check_space(folder, sum(file.needs for file in todo))
        with ProgressLine() as line:
            rate = _Rate()
            try:
                fetch(todo, journal, lambda: None, lambda done, total: line(rate.text(done, total)))
            except KeyboardInterrupt:
                line.clear()
                remark("stopped: the same command goes on where it was")
                raise
            except DownloadError as error:
                hint = "the other files are complete; the damaged ones were not kept"
                raise CommandError(str(error), hint=hint, exit_code=Exit.UNAVAILABLE) from error
        for file in todo:
            os.utime(file.path, (file.entry.modified, file.entry.modified))
        journal.unlink(missing_ok=True)
    for file in files:
        if file.differs:
            warning(
                f"{file.path} is what the store has, but not what a machine recorded: it was written over, or damaged"
            )
    return [
        Fetched(output, file.entry.key in there, _verified(file)) for output, file in zip(outputs, files, strict=True)
    ]


def _verified(file: Download) -> Verified:
    if file.sha256 and not file.differs:
        return "sha256"
    return "etag" if file.entry.etag else "size"


def download_text(folder: Path, done: Sequence[Fetched]) -> str:
    """Return what a download has done, and what was verified."""
    if not done:
        return f"there is nothing to download into {folder}"
    size = sum(one.output.entry.size for one in done)
    counts = {kind: sum(one.verified == kind for one in done) for kind in _VERIFIED}
    verified = ", ".join(f"{plural(count, 'file')} by {_VERIFIED[kind]}" for kind, count in counts.items() if count)
    were = sum(one.was_there for one in done)
    kept = f"; {were:,} of them {'were' if were != 1 else 'was'} there already" if were else ""
    return f"{plural(len(done), 'file')}, {amount(size)}, in {folder}{kept}\nverified: {verified}"


_VERIFIED: dict[Verified, str] = {"sha256": "SHA-256", "etag": "size and ETag", "size": "size"}


def download_json(job_id: str, folder: Path, done: Sequence[Fetched]) -> dict[str, Any]:
    """Return the same for scripts; docs/reference/cli.md describes it."""
    files = [
        {
            "path": one.output.path,
            "size": one.output.entry.size,
            "attempt": one.output.attempt,
            "fetched": not one.was_there,
            "verified": one.verified,
        }
        for one in done
    ]
    return {"job": job_id, "folder": str(folder.absolute()), "files": files}


@contextlib.contextmanager
def _locked(journal: Path) -> Iterator[Path]:
    """Hold the journal, so that two downloads into a folder do not disturb each other."""
    with journal.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"another download into {journal.parent} is running", hint="wait for it", exit_code=Exit.UNAVAILABLE
            ) from None
        try:
            yield journal
        finally:
            if os.fstat(file.fileno()).st_size == 0:
                journal.unlink(missing_ok=True)


def _refuse_own_names(outputs: Sequence[Output]) -> None:
    """Raise CommandError for an output with the name of a file of the download itself."""
    from ...storage.downloads import PARTIAL

    for output in outputs:
        if output.path.partition("/")[0] == JOURNAL or output.path.endswith(PARTIAL):
            raise CommandError(
                f"the output {output.path} cannot be downloaded: a download keeps its own state in files of this name",
                hint=f"name the other outputs, or copy this one by the store's own tools: outputs/{output.path}",
                exit_code=Exit.USAGE,
            )


def _target(job_dir: JobDir, output: Output, folder: Path) -> Download:
    from ...storage.downloads import Download, safe_parts

    parts = safe_parts(output.path)
    assert parts is not None  # noqa: S101 - find_outputs() refuses others
    return Download(job_dir, output.entry, folder.joinpath(*parts), output.sha256)


def _there(files: Sequence[Download], journal: Path, *, force: bool) -> set[str]:
    """Return the keys of the files that are in the folder. Raises CommandError for files that differ, without
    `force`."""
    noted = set(journal.read_text(errors="replace").splitlines())
    there, differ = set(), []
    for file in files:
        if file.path.is_dir() or any(part.is_file() for part in file.path.parents):
            raise CommandError(
                f"{file.path} cannot be written: a file and a folder would have the same name",
                hint="give another folder",
                exit_code=Exit.USAGE,
            )
        if not file.path.exists():
            continue
        if _is_same(file, noted):
            there.add(file.entry.key)
            continue
        differ.append(str(file.path))
        if force and not file.missing(noted):
            file.path.unlink()  # it was changed after this download had fetched it
    if differ and not force:
        more = f" and {len(differ) - _SHOWN:,} more" if len(differ) > _SHOWN else ""
        raise CommandError(
            f"{plural(len(differ), 'file')} would be replaced by different ones: {', '.join(differ[:_SHOWN])}{more}",
            hint="give another folder, or --force to replace them",
            exit_code=Exit.USAGE,
        )
    return there


def _is_same(file: Download, noted: set[str]) -> bool:
    """Return whether the file that is there is the object: by its checksum or, if that is unknown or the object has
    another (`differs`), by size and time."""
    from ...storage.downloads import sha256_of

    status = file.path.stat()
    if status.st_size != file.entry.size:
        return False
    if file.sha256 and sha256_of(file.path) in file.sha256:
        return True
    if file.sha256 and not file.entry.etag:
        return False
    file.differs = bool(file.sha256)
    return abs(status.st_mtime - file.entry.modified) < 1e-3 or not file.missing(noted)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CommandError(
            f"{folder} has {amount(free)} free, and the files need {amount(needed)}",
            hint="give a folder on another disk, or name fewer files",
            exit_code=Exit.UNAVAILABLE,
        )


class _Rate:
    """Progress of a download with its recent rate."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def text(self, done: int, total: int) -> str:
        now = time.monotonic()
        self._seen = [*(one for one in self._seen if now - one[0] < _RATE_S), (now, done)]
        begun, before = self._seen[0]
        rate = (done - before) / (now - begun) if now - begun >= _FIRST_RATE_S else 0.0
        speed = f", {amount(rate)}/s, {duration((total - done) / rate)} left" if rate else ""
        return f"downloading: {amount(done)} of {amount(total)}{speed}"
