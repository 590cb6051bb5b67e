"""What a container of a Vertex AI custom job runs: the bootstrap, in whatever image the job has.

A worker pool has one command for all of its replicas: so the record names no node, and what is sent along says which
node is which replica of which pool. The files are an argument, unpacked into a folder of the container's own.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

from .files import MAIN, boot_files
from .record import BootRecord

MAX_ARGUMENT_BYTES = 100_000
"""Of all arguments together: Vertex AI, "Configure container settings" says 100k characters of Python packages' own."""

# Process 1 of the container is the bootstrap: Vertex's SIGTERM reaches it, and its exit code is the container's.
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
    """`command` and `args` of a container, the same for all of a job.

    `pools`: Vertex's task type, `workerpool0` and so on, -> the nodes of its replicas in the order of their indices;
    the record's own node is "". Raises ValueError.
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
