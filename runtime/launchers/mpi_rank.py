"""Script that becomes the user's program as one rank of an MPI world: `mpi_rank.py FOLDER LOCAL_RANK RANK COMMAND...`.

Standard library only. It waits until Open MPI has started this rank's stub (mpi_stub.py), adopts the stub's variables,
which name the daemon to register with, and executes the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_POLL_S = 0.02
_CANNOT_RUN, _NOT_FOUND = 126, 127  # exit codes of a shell


def main() -> None:
    folder, local, rank, *command = sys.argv[1:]
    given = Path(folder, f"{local}.env")
    while not given.exists():  # without a timeout: if the daemon fails, the agent kills this process
        time.sleep(_POLL_S)
    variables = json.loads(given.read_text())
    if variables["OMPI_COMM_WORLD_RANK"] != rank:
        sys.exit(f"Open MPI made rank {variables['OMPI_COMM_WORLD_RANK']} of what must be rank {rank}")
    temporary = Path(folder, f"{local}.pid.tmp")
    temporary.write_text(str(os.getpid()))
    temporary.replace(Path(folder, f"{local}.pid"))
    # The stub has the settings of rank 0's node, from mpirun; this node's settings take precedence.
    settings = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
    try:
        os.execvpe(command[0], command, {**os.environ, **variables, **settings})  # noqa: S606 - the user's command
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN)


if __name__ == "__main__":
    main()
