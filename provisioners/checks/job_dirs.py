"""Check that a parent of job dirs exists and can be read. Writing is checked by the targets, from permissions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError

from ...storage.access import CredentialsError
from ...storage.errors import JobDirError, is_bucket_missing
from ...storage.stores import open_store
from .results import CheckResult, one_line

if TYPE_CHECKING:
    from ...storage.store import Store


def missing_job_dir(target: str, form: str, stack: str) -> CheckResult:
    """Return the result if no job dir is configured. `form`: of a URL; `stack`: the command that creates a bucket."""
    fix = f"write job_dir: {form} in job files, or make a bucket and its defaults with `{stack}`"
    return CheckResult("job_dir", "warning", f"no job dir for {target} is configured here", fix, {"url": None})


def check_readable(url: str) -> CheckResult:
    """Return whether the folder of a URL can be listed."""
    values = {"url": url}
    try:
        store = open_store(url, make=False)
        if store.folder is not None:
            return _check_folder(store.folder, values)
        try:
            _read(store)
        except (BaseError, OSError, ValueError) as error:
            said = store.explain(store.message_of(error), "listing job dirs")
            fix = f"create the bucket of {url}, or correct the URL" if is_bucket_missing(error) else ""
            return CheckResult("job_dir", "error", one_line(f"{url}: {said}"), fix, values)
    except (JobDirError, CredentialsError) as error:
        return CheckResult("job_dir", "error", one_line(str(error)), "", values)
    return CheckResult("job_dir", "ok", f"{url} can be read", "", values)


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def can_write(folder: Path) -> bool:
    """Return whether files can be created in a folder, without creating one."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _check_folder(folder: Path, values: Mapping[str, Any]) -> CheckResult:
    """Return whether a local folder can be written, or created by the first job."""
    there = existing(folder)
    if can_write(there):
        return CheckResult("job_dir", "ok", f"{folder} can be written", "", values)
    return CheckResult("job_dir", "error", f"{there} cannot be written", f"`chmod u+rwx {there}`", values)


def _read(store: Store) -> None:
    """List the beginning of a store's folder; once more if its bucket is in another region than expected."""
    try:
        next(iter(store.entries("", None)), None)
    except (BaseError, OSError, ValueError) as error:
        if not store.follow_region(store.message_of(error)):
            raise
        next(iter(store.entries("", None)), None)


def merge(url: str, readable: CheckResult, rights: Sequence[CheckResult], region: str) -> Iterator[CheckResult]:
    """Yield the results of a bucket: one if all is well, otherwise each of what is not."""
    if readable.status != "ok":
        yield readable
        return
    where = f", in {region}" if region else ""
    values = {"url": url, "region": region or None}
    bad = [one for one in rights if one.status != "ok"]
    for one in bad:
        yield CheckResult("job_dir", one.status, f"{url}: {one.message}", one.fix, {**values, **one.values})
    if not bad:
        can = "can be read" if not rights else "can be read and written"
        yield CheckResult("job_dir", "ok", f"{url} {can}{where}", "", values)
