"""Outputs of a training program: files in the job's outputs/, or in ./outputs outside a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from ..protocol.jobdir import JobDir, JobDirError, attempt_key, local_url

PARALLEL_UPLOADS = 8
"""Maximum number of files uploaded at a time; a large file is uploaded in several concurrent parts (objects.py)."""
_LARGE = 8 << 20
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


def upload_outputs(
    wanted: Sequence[str],
    folder: Path,
    job_dir: JobDir,
    *,
    attempt: int,
    prefix: str,
    seconds_left: Callable[[], float],
    say: Callable[[str], None],
) -> None:
    """Upload files and folders of the program's working folder, newest files first, until seconds_left() reaches 0.

    wanted  paths relative to `folder`
    prefix  of the keys in the job dir

    Failures are reported by `say`; nothing is raised. Each request carries a checksum, which the store verifies.
    """
    begun = time.monotonic()
    files, size = [], 0
    for path, name in _files(wanted, folder, say):
        files.append((path, f"{prefix}/{name}"))
        size += path.stat().st_size
    if not files:
        return
    try:
        _refuse_if_superseded(job_dir, attempt, "outputs")
    except JobDirError as error:
        say(str(error))
        return
    files.sort(key=lambda file: -file[0].stat().st_mtime)
    pool = ThreadPoolExecutor(PARALLEL_UPLOADS, "outputs")
    uploads = {pool.submit(_upload, job_dir, path, key): key for path, key in files}
    late = set(uploads)
    while late and (left := seconds_left()) > 0:
        late = wait(late, timeout=min(left, _POLL_S)).not_done
    pool.shutdown(wait=False, cancel_futures=True)
    for future in uploads.keys() - late:
        if (failed := future.exception()) is not None:
            say(f"{uploads[future]} could not be written: {failed}")
    if late:
        say(f"outputs: {len(late)} of {len(files)} files could not be written in time")
    else:
        say(f"outputs: {len(files):,} files, {size / 1e6:,.1f} MB, written in {time.monotonic() - begun:.1f} s")


def _files(wanted: Sequence[str], folder: Path, say: Callable[[str], None]) -> Iterator[tuple[Path, str]]:
    """Yield each file with its path relative to `folder`. Links that lead out of `folder` are omitted."""
    for name in wanted:
        place = folder / name
        if not place.exists():
            say(f"outputs: there is no {name}")
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
