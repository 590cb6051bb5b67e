"""What a program leaves behind: files in the job's outputs/, or in ./outputs outside a job."""

from __future__ import annotations

import os
from pathlib import Path

from .jobdir import JobDir, JobDirError, attempt_key, local_url


def write_output(name: str, data: bytes | str) -> str:
    """Write one file (a name may have folders, `plots/loss.json`), replacing it; its URL. Raises JobDirError.

    Refused once a newer attempt of the job has begun: a machine that was frozen and given up may wake again, and what
    it has to say must not replace what its successor says.
    """
    url = os.environ.get("CLOUDGPU_JOB_DIR")
    job_dir = JobDir(url or local_url(Path()), make=False)
    attempt = os.environ.get("CLOUDGPU_ATTEMPT", "")
    if url and attempt.isdecimal() and job_dir.exists(attempt_key(int(attempt) + 1)):
        raise JobDirError(f"{name} is not written: attempt {attempt} of this job has been superseded by a newer one")
    key = f"outputs/{name}"
    job_dir.put(key, data.encode() if isinstance(data, str) else data)
    return f"{job_dir.url}/{key}"
