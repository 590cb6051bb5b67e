"""Outputs of a training program: files in the job's outputs/, or in ./outputs outside a job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..protocol.jobdir import JobDir, JobDirError, attempt_key, local_url, node_key
from ..protocol.outputs import RECORD, OutputsRecord
from ..storage.downloads import sha256_of
from ..storage.durable import create

PARALLEL_UPLOADS = 8
"""Maximum number of files uploaded at a time; a large file is uploaded in several concurrent parts (objects.py)."""
_LARGE = 8 << 20
_HASHED_PER_S = 200e6  # bytes, on a slow disk
_HASHED_SHARE = 0.1  # maximum part of the time left that computing checksums may take
_POLL_S = 0.5  # seconds between two checks of the time left, which a termination notice may shorten


def write_output(name: str, data: bytes | str) -> str:
    """Write a file to the job's outputs/, or to ./outputs outside a job; return its URL.

    name   name of the file, which may contain folders: "plots/loss.json"; an existing file is replaced
    data   bytes, or text that is encoded as UTF-8

    Raises JobDirError if the file cannot be written, or if a newer attempt of the job has begun: a machine that was
    frozen and replaced may continue, and must not overwrite the outputs of its replacement.

        write_output("metrics.json", json.dumps({"accuracy": accuracy}))
    """
    url = os.environ.get("CLOUDGPU_JOB_DIR")
    job_dir = JobDir(url or local_url(Path()), make=False)
    attempt = os.environ.get("CLOUDGPU_ATTEMPT", "")
    if url and attempt.isdecimal():
        _refuse_if_superseded(job_dir, int(attempt), name)
    key = f"outputs/{name}"
    job_dir.put(key, data.encode() if isinstance(data, str) else data)
    return f"{job_dir.url}/{key}"


class Before:
    """Files that were in the place of outputs before the run: they came with the code or the inputs.

    The list is kept in a file on the machine, so that an agent that is started again there knows it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, wanted: Sequence[str], folder: Path) -> None:
        """Record the files that are there now, unless an earlier run of the agent has done so. Raises OSError."""
        if not self._path.exists():
            create(self._path, json.dumps(dict(_states(wanted, folder))).encode(), replace=False)

    def unchanged(self, wanted: Sequence[str], folder: Path) -> set[str]:
        """Return the names of the files that are as they were. Raises OSError, ValueError."""
        if not self._path.exists():
            return set()
        before = json.loads(self._path.read_bytes())
        return {name for name, state in _states(wanted, folder) if before.get(name) == state}


def _states(wanted: Sequence[str], folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield each file below the wanted paths with what changes when it is written or replaced."""
    for path, name in _files(wanted, folder):
        status = path.stat()
        yield name, [status.st_size, status.st_mtime_ns, status.st_ino]


@dataclass(frozen=True)
class Destination:
    """Where a node's outputs go."""

    job_dir: JobDir
    attempt: int
    node: str
    """Name of the node, whose folder gets the record."""
    prefix: str
    """Folder in the job dir."""


def upload_outputs(
    wanted: Sequence[str],
    folder: Path,
    to: Destination,
    *,
    unchanged: Container[str],
    seconds_left: Callable[[], float],
    say: Callable[[str], None],
) -> list[str]:
    """Upload files and folders of the program's working folder, newest files first, until `seconds_left` reaches 0.

    Return the wanted paths of which there is nothing: neither here nor in the job dir, from an earlier attempt or by
    write_output(). Files in `unchanged` were there before the run and are left out. Failures are reported by `say`;
    nothing is raised. Each request carries a checksum, which the store verifies.
    """
    files = [(path, f"{to.prefix}/{name}") for path, name in _files(wanted, folder) if name not in unchanged]
    try:
        _refuse_if_superseded(to.job_dir, to.attempt, "outputs")
    except JobDirError as error:
        say(str(error))
        return []
    written: set[str] = set()
    if files:
        files.sort(key=lambda file: -file[0].stat().st_mtime)
        _record(files, to, seconds_left, say)
        written = _upload_all(files, to.job_dir, seconds_left, say)
    return _missing(wanted, written, to, say) if seconds_left() > 0 else []


def _record(
    files: Sequence[tuple[Path, str]], to: Destination, seconds_left: Callable[[], float], say: Callable[[str], None]
) -> None:
    """Write the record of what is about to be uploaded. Without it, or where the time is short, files are uploaded all
    the same."""
    record = OutputsRecord()
    left = sum(path.stat().st_size for path, _ in files)
    try:
        for path, key in files:
            if left / _HASHED_PER_S > _HASHED_SHARE * seconds_left():
                say(f"outputs: the time is too short for the checksums of {len(files) - len(record.sizes):,} files")
                break
            record.sizes[key], record.sha256[key] = path.stat().st_size, sha256_of(path)
            left -= record.sizes[key]
        data = record.to_bytes()
        if len(data) > OutputsRecord.MOST_BYTES:
            say(f"outputs: the checksums of {len(files):,} files are too many to record")
        elif record.sizes:
            to.job_dir.put(node_key(to.attempt, to.node, RECORD), data)
    except (OSError, JobDirError) as error:
        say(f"outputs: their checksums could not be recorded: {error}")


def _upload_all(
    files: Sequence[tuple[Path, str]], job_dir: JobDir, seconds_left: Callable[[], float], say: Callable[[str], None]
) -> set[str]:
    """Upload files in parallel; return the keys that were written."""
    begun, size = time.monotonic(), sum(path.stat().st_size for path, _ in files)
    pool = ThreadPoolExecutor(PARALLEL_UPLOADS, "outputs")
    uploads = {pool.submit(_upload, job_dir, path, key): key for path, key in files}
    late = set(uploads)
    while late and (left := seconds_left()) > 0:
        late = wait(late, timeout=min(left, _POLL_S)).not_done
    pool.shutdown(wait=False, cancel_futures=True)
    written = set()
    for future in uploads.keys() - late:
        if (failed := future.exception()) is None:
            written.add(uploads[future])
        else:
            say(f"{uploads[future]} could not be written: {failed}")
    if late:
        say(f"outputs: {len(late)} of {len(files)} files could not be written in time")
    else:
        say(f"outputs: {len(files):,} files, {size / 1e6:,.1f} MB, written in {time.monotonic() - begun:.1f} s")
    return written


def _missing(wanted: Sequence[str], written: set[str], to: Destination, say: Callable[[str], None]) -> list[str]:
    """Return the wanted paths of which nothing was written, now or earlier."""
    missing = []
    for name in wanted:
        place = f"{to.prefix}/{PurePosixPath(name)}"
        if any(key == place or key.startswith(f"{place}/") for key in written):
            continue
        try:
            if to.job_dir.exists(place) or to.job_dir.list(place):
                continue
        except JobDirError as error:
            say(f"outputs: whether there is {name} is not known: {error}")
            continue
        say(f"outputs: there is no {name}, or nothing in it that this job has written")
        missing.append(name)
    return missing


def _files(wanted: Sequence[str], folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file with its name in outputs/. Links to folders, and files outside of `folder`, are left out."""
    for name in wanted:
        place = folder / name
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in found:
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                yield path, path.relative_to(folder).as_posix()


def _upload(job_dir: JobDir, path: Path, key: str) -> None:
    if path.stat().st_size >= _LARGE:
        job_dir.upload_file(key, path, lambda _done, _total: None)
    else:
        job_dir.put(key, path)


def _refuse_if_superseded(job_dir: JobDir, attempt: int, name: str) -> None:
    if job_dir.exists(attempt_key(attempt + 1)):
        raise JobDirError(f"{name} is not written: attempt {attempt} of this job has been superseded by a newer one")
