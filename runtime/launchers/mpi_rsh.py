"""mpirun's remote shell: leaves the daemon's command line in the job dir, where the node's agent takes it up.

    python -m cloudgpu.runtime.launchers.mpi_rsh HOST COMMAND...

Ends as soon as the command is written, as ssh does when the daemon goes into the background; a daemon that then does
not come is the other agent's failure to tell.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

from ...protocol.jobdir import JobDir, JobDirError, node_key


def order_key(node: str) -> str:
    """Where a node finds its daemon's command line: a JSON list."""
    return node_key(int(os.environ["CLOUDGPU_ATTEMPT"]), node, f"mpi-{os.environ['CLOUDGPU_GENERATION']}.json")


def main(argv: Sequence[str]) -> int:
    host, *command = argv
    node = json.loads(os.environ["CLOUDGPU_MPI_NODES"]).get(host)
    if node is None:
        print(f"mpirun wants to start a daemon on {host}, which is no node of this job", file=sys.stderr)
        return 1
    words = shlex.split(" ".join(command))  # quoted for a shell at the other end; there is none
    try:
        JobDir(os.environ["CLOUDGPU_JOB_DIR"], make=False).put(order_key(node), json.dumps(words).encode())
    except JobDirError as error:
        print(f"the daemon of {node} cannot be asked for: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
