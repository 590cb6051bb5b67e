"""Script that Open MPI starts as a rank; it passes the rank's variables to the process that the agent has started.

Standard library only, because there is one stub per rank. It exits with 0 when the agent's process has ended, also if
that process has failed, since the agent reports its exit code.
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
    """Wait for the end of a process that is not a child, by polling: kernels before 5.3 have no pidfd."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:  # exists, as another user (setuid)
            pass
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
