"""Outputs of a training program: files in the job's outputs/, or in ./outputs outside a job."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..protocol.jobdir import JobDir, JobDirError, attempt_key, local_url, node_key
from ..protocol.outputs import RECORD, OutputsRecord
from ..storage.downloads import sha256_of
from ..storage.durable import create

PARALLEL_UPLOADS = 8
"""Maximum number of files uploaded at a time; a large file is uploaded in several concurrent parts (objects.py)."""
_LARGE = 8 << 20
_HASHED_PER_S = 200e6  # bytes, on a slow disk
_HASHED_SHARE = 0.1  # maximum part of the time left that computing checksums may take
_MOST_HASHED_S = 60.0  # maximum seconds that it may take in all: a notice may shorten the time left at any moment
_POLL_S = 0.5  # seconds between two checks of the time left, which a termination notice may shorten


class SupersededError(JobDirError):
    """A newer attempt of the job has begun."""


class _LateError(Exception):
    """The time for computing checksums is over."""


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


class _File(NamedTuple):
    """A file of the program's working folder."""

    path: Path
    name: str
    """In outputs/."""
    status: os.stat_result


def _states(wanted: Sequence[str], folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield each file below the wanted paths with what changes when it is written or replaced."""
    for _, name, status in _files(wanted, folder):
        yield name, [status.st_size, status.st_mtime_ns, status.st_ino]


@dataclass(frozen=True)
class Destination:
    """Destination of a node's outputs."""

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

    Return the wanted paths that are missing: some of the program's files there were not written, or it left none and
    there is none in the job dir, from an earlier attempt or by write_output(), as far as is known. Files in `unchanged`
    were there before the run and are left out. Failures are reported by `say`; nothing is raised. Each request carries
    a checksum, which the store verifies.
    """
    try:
        _refuse_if_superseded(to.job_dir, to.attempt, "outputs")
    except SupersededError as error:
        say(str(error))
        return []
    except JobDirError as error:
        say(f"outputs: whether a newer attempt has begun is not known: {error}")
    files = {f"{to.prefix}/{file.name}": file for file in _files(wanted, folder) if file.name not in unchanged}
    files = dict(sorted(files.items(), key=lambda item: -item[1].status.st_mtime))
    written: set[str] = set()
    if files:
        _record(files, to, seconds_left, say)
        written = _upload_all(files, to.job_dir, seconds_left, say)
    return _missing(wanted, files, written, to, seconds_left=seconds_left, say=say)


def _record(
    files: Mapping[str, _File], to: Destination, seconds_left: Callable[[], float], say: Callable[[str], None]
) -> None:
    """Write the record of what is about to be uploaded. Without it, files are uploaded all the same."""
    data = _described(files, seconds_left, say).to_bytes()
    if len(data) > OutputsRecord.MOST_BYTES:
        say(f"outputs: the checksums of {len(files):,} files are too many to record")
        return
    try:
        to.job_dir.put(node_key(to.attempt, to.node, RECORD), data)
    except JobDirError as error:
        say(f"outputs: their checksums could not be recorded: {error}")


def _described(
    files: Mapping[str, _File], seconds_left: Callable[[], float], say: Callable[[str], None]
) -> OutputsRecord:
    """Return the record of files. Where the time is short, it has sizes without checksums: readers then know that those
    of earlier attempts do not count."""
    begun = time.monotonic()

    def left() -> float:
        return min(_MOST_HASHED_S, _HASHED_SHARE * seconds_left()) - (time.monotonic() - begun)

    def check() -> None:
        if left() <= 0:
            raise _LateError

    record, late = OutputsRecord(), 0
    for key, (path, _, status) in files.items():
        record.sizes[key] = status.st_size
        try:
            if status.st_size / _HASHED_PER_S > left():
                raise _LateError
            record.sha256[key] = sha256_of(path, check)
        except _LateError:
            late += 1
        except OSError as error:
            say(f"outputs: the checksum of {path} could not be computed: {error}")
    if late:
        say(f"outputs: the time is too short for the checksums of {late:,} files")
    return record


def _upload_all(
    files: Mapping[str, _File], job_dir: JobDir, seconds_left: Callable[[], float], say: Callable[[str], None]
) -> set[str]:
    """Upload files in parallel; return the keys that were written."""
    begun, size = time.monotonic(), sum(file.status.st_size for file in files.values())
    pool = ThreadPoolExecutor(PARALLEL_UPLOADS, "outputs")
    uploads = {pool.submit(_upload, job_dir, file, key): key for key, file in files.items()}
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


def _missing(
    wanted: Sequence[str],
    files: Mapping[str, _File],
    written: set[str],
    to: Destination,
    *,
    seconds_left: Callable[[], float],
    say: Callable[[str], None],
) -> list[str]:
    """Return the wanted paths of which some file was not written, or of which there is nothing, here and in the job
    dir."""
    missing = []
    for name in wanted:
        place = f"{to.prefix}/{PurePosixPath(name)}"
        own = [key for key in files if key == place or key.startswith(f"{place}/")]
        lost = sum(key not in written and _is_file(files[key].path) for key in own)  # others have vanished
        if lost:
            say(f"outputs: {name} is incomplete: {lost:,} of its {len(own):,} files could not be written")
        elif not written.isdisjoint(own) or _is_there(place, to.job_dir, seconds_left, say):
            continue
        else:
            say(f"outputs: there is no {name}, or nothing in it that this job has written")
        missing.append(name)
    return missing


def _is_there(place: str, job_dir: JobDir, seconds_left: Callable[[], float], say: Callable[[str], None]) -> bool:
    """Return whether there is a file or folder in the job dir; False if that cannot be known in time."""
    if seconds_left() <= 0:
        return False
    try:
        return job_dir.exists(place) or bool(job_dir.list(place))
    except JobDirError as error:
        say(f"outputs: whether there is {place} is not known: {error}")
        return False


def _files(wanted: Sequence[str], folder: Path) -> Iterator[_File]:
    """Yield each file below the wanted paths. Links to folders, files outside of `folder`, and files that vanish
    meanwhile are left out."""
    root = folder.resolve()
    for name in wanted:
        for path in _below(folder / name):
            try:
                status = path.stat()
                is_inside = path.resolve().is_relative_to(root)
            except (OSError, RuntimeError):  # RuntimeError: links in a circle
                continue
            if stat.S_ISREG(status.st_mode) and is_inside:
                yield _File(path, path.relative_to(folder).as_posix(), status)


def _is_file(path: Path) -> bool:
    """Return whether there is a file, also where that cannot be known."""
    try:
        return path.is_file()
    except OSError:
        return True


def _below(place: Path) -> Iterator[Path]:
    """Yield a path that is no folder, or all that are below it."""
    if not place.is_dir():
        yield place
        return
    for parent, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(parent) / name for name in sorted(names))


def _upload(job_dir: JobDir, file: _File, key: str) -> None:
    if file.status.st_size >= _LARGE:
        job_dir.upload_file(key, file.path, lambda _done, _total: None)
    else:
        job_dir.put(key, file.path)


def _refuse_if_superseded(job_dir: JobDir, attempt: int, name: str) -> None:
    if job_dir.exists(attempt_key(attempt + 1)):
        raise SupersededError(
            f"{name} is not written: attempt {attempt} of this job has been superseded by a newer one"
        )
