"""What Open MPI starts as a rank: passes the rank's variables on to the process that the agent has started for it.

Run as a script with the standard library only: there is one per rank. Ends with 0 when that process has ended, however
it ended: its exit code is the agent's to tell.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_MPI_OWN = ("OMPI_", "PMIX_", "ORTE_", "OPAL_")
_POLL_S = 0.05


def main() -> None:
    folder, local = Path(os.environ["CLOUDGPU_MPI_FOLDER"]), os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
    variables = {name: value for name, value in os.environ.items() if name.startswith(_MPI_OWN)}
    temporary = folder / f"{local}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(variables))
    temporary.replace(folder / f"{local}.env")
    taken = folder / f"{local}.pid"
    while not taken.exists():
        time.sleep(_POLL_S)
    wait_for_end(int(taken.read_text()))


def wait_for_end(pid: int) -> None:
    """Until a process that is no child of ours is gone. Polls: kernels before 5.3 know no pidfd."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:  # setuid: it is there
            pass
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
