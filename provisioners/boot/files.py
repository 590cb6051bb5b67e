"""The files a machine begins with, for every way of sending them: the bootstrap, what it imports, and its record."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import io
import json
import tarfile
import tokenize
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
    files = {name: without_prose(here.joinpath(source).read_text()).encode() for name, source in names.items()}
    stop = stop_script(record.cloud)
    files |= {} if stop is None else {NAME: stop}
    return {RECORD: json.dumps(told, sort_keys=True).encode(), **files}


def without_prose(program: str) -> str:
    """Return a program without docstrings and comment lines, which would be half of what is sent.

    Every other line keeps its number, for tracebacks.
    """
    lines, blank = program.split("\n"), set[int]()
    for node in ast.walk(ast.parse(program)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            blank.update(number for one in body if _is_text(one) for number in range(one.lineno, one.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            blank.add(token.start[0])
    return "\n".join("" if number in blank else line for number, line in enumerate(lines, 1))


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def packed(files: Mapping[str, bytes]) -> bytes:
    """As a .tar.gz, the same bytes for the same files: packed together they are half of what they are one by one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)
