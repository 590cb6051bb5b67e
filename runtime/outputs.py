"""What a program leaves behind: files in the job's outputs/, or in ./outputs outside a job."""

from __future__ import annotations

import os
from pathlib import Path

from .jobdir import JobDir, local_url


def write_output(name: str, data: bytes | str) -> str:
    """Write one file (a name may have folders, `plots/loss.json`), replacing it; its URL. Raises JobDirError."""
    url = os.environ.get("CLOUDGPU_JOB_DIR") or local_url(Path())
    key = f"outputs/{name}"
    JobDir(url, make=False).put(key, data.encode() if isinstance(data, str) else data)
    return f"{url.rstrip('/')}/{key}"
