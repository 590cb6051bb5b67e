"""Act as mpirun's remote shell: write a daemon's command line to the job dir, where the node's mpi_daemon.py reads it.

    python -m cloudgpu.runtime.launchers.mpi_rsh HOST COMMAND...

It exits when the command line is written, as ssh does when the daemon goes into the background. If the daemon does not
start, the other node's agent reports that.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

from ...protocol.jobdir import JobDir, JobDirError, node_key


def order_key(node: str) -> str:
    """Return the job dir key of a daemon's command line, a JSON list."""
    return node_key(int(os.environ["CLOUDGPU_ATTEMPT"]), node, f"mpi-{os.environ['CLOUDGPU_GENERATION']}.json")


def main(argv: Sequence[str]) -> int:
    host, *command = argv
    node = json.loads(os.environ["CLOUDGPU_MPI_NODES"]).get(host)
    if node is None:
        print(f"mpirun wants to start a daemon on {host}, which is no node of this job", file=sys.stderr)
        return 1
    words = shlex.split(" ".join(command))  # mpirun quotes for a remote shell; there is none
    try:
        JobDir(os.environ["CLOUDGPU_JOB_DIR"], make=False).put(order_key(node), json.dumps(words).encode())
    except JobDirError as error:
        print(f"the daemon of {node} cannot be asked for: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
