"""Command of a Vertex AI custom job's containers: it runs the bootstrap, in any image.

A worker pool has one command for all of its replicas. The record therefore names no node, and a mapping from the
replicas of each pool to nodes is sent with it. The files are passed as an argument and unpacked into a temporary
folder.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

from .files import MAIN, boot_files
from .record import BootRecord

MAX_ARGUMENT_BYTES = 100_000
"""Limit of all arguments together, in bytes. Vertex AI documents 100k characters for the arguments of Python packages
("Configure container settings")."""

# `exec` makes the bootstrap process 1, so that it receives Vertex's SIGTERM and sets the container's exit code.
_SHELL = (
    "for python in python3 python; do command -v $python > /dev/null && "
    'exec $python -c "$0" "$1"; done; '
    "echo 'cloudgpu: the image has no python3: choose another image' >&2; exit 127"
)
_UNPACK = f"""\
import base64, json, os, sys, tempfile, zlib
home = tempfile.mkdtemp(prefix="cloudgpu-")
for name, text in json.loads(zlib.decompress(base64.b64decode(sys.argv[1]))).items():
    with open(os.path.join(home, name), "w") as file:
        file.write(text)
os.execv(sys.executable, [sys.executable, os.path.join(home, "{MAIN}")])
"""


def container_command(record: BootRecord, pools: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return `command` and `args`, the same for all containers of a job.

    `pools`: Vertex's task type (`workerpool0`, ...) -> nodes of its replicas, in the order of their indices.
    `record.node` must be "". Raises ValueError if it is not, or if the arguments are too long.
    """
    if record.node:
        raise ValueError(f"all containers of a job are told the same, so none can be told to be {record.node}")
    if not any(pools.values()):
        raise ValueError("the job has no nodes")
    files = {name: data.decode() for name, data in boot_files(record, pools).items()}
    packed = base64.b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()
    if len(packed) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"the container's argument has {len(packed)} bytes, more than {MAX_ARGUMENT_BYTES}")
    return ["/bin/sh", "-c", _SHELL], [_UNPACK, packed]
