"""The files a machine begins with, for every way of sending them: the bootstrap, what it imports, and its record."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from importlib import resources

from .record import BootRecord
from .stop_script import NAME, stop_script

MODULES = {
    "aws": {"bucket.py": "bucket_s3.py", "host.py": "host_ec2.py"},
    "gcp": {"bucket.py": "bucket_gs.py", "host.py": "host_gce.py"},
    "vertex": {"bucket.py": "bucket_gs.py", "host.py": "host_container.py"},
    "azure": {"bucket.py": "bucket_az.py", "host.py": "host_azure.py"},
}
"""Target -> what a file is called on its machines -> what it is called here. A key for each of record.STORES."""
GROUPS = {"aws": "group_aws.py", "gcp": "group_gcp.py", "azure": "group_azure.py"}
"""Cloud -> what is `group.py` on a fleet's machines."""
RECORD = "boot.json"
MAIN = "bootstrap.py"


def boot_files(record: BootRecord, pools: Mapping[str, Sequence[str]] | None = None) -> dict[str, bytes]:
    """Name -> content, the same bytes for the same record, which is first. `pools`: container.py."""
    told = dataclasses.asdict(record)
    if pools is not None:
        told["pools"] = {pool: list(nodes) for pool, nodes in pools.items()}
    here = resources.files(__package__)
    names = {MAIN: MAIN, "common.py": "common.py", **MODULES[record.cloud]}
    names |= {"group.py": GROUPS[record.cloud]} if record.fleet else {}
    files = {name: here.joinpath(source).read_bytes() for name, source in names.items()}
    stop = stop_script(record.cloud)
    files |= {} if stop is None else {NAME: stop}
    return {RECORD: json.dumps(told, sort_keys=True).encode(), **files}


def packed(files: Mapping[str, bytes]) -> bytes:
    """As a .tar.gz, the same bytes for the same files: packed together they are half of what they are one by one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)
