"""Becomes the user's program as one rank of an MPI world: `mpi_rank.py FOLDER LOCAL_RANK RANK COMMAND...`.

Run as a script with the standard library only. Waits until Open MPI has started this rank's stub, takes over its
variables (they name the daemon to register with), and executes the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_POLL_S = 0.02
_CANNOT_RUN, _NOT_FOUND = 126, 127  # as a shell says it


def main() -> None:
    folder, local, rank, *command = sys.argv[1:]
    given = Path(folder, f"{local}.env")
    while not given.exists():  # the daemon's failure ends us
        time.sleep(_POLL_S)
    variables = json.loads(given.read_text())
    if variables["OMPI_COMM_WORLD_RANK"] != rank:
        sys.exit(f"Open MPI made rank {variables['OMPI_COMM_WORLD_RANK']} of what must be rank {rank}")
    temporary = Path(folder, f"{local}.pid.tmp")
    temporary.write_text(str(os.getpid()))
    temporary.replace(Path(folder, f"{local}.pid"))
    # The daemon knows rank 0's settings only, which mpirun passed on; this node's own go before.
    settings = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
    try:
        os.execvpe(command[0], command, {**os.environ, **variables, **settings})  # noqa: S606 - what the user asked for
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN)


if __name__ == "__main__":
    main()
