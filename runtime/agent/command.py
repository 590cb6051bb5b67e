"""The command line of `python -m cloudgpu.runtime.agent`: its options, and the exit codes of errors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ...protocol.jobdir import JobDirError
from ..notices import CLOUDS
from ..processes.program import adopt_orphans
from .agent import BUG, JOB_DIR_LOST, Agent, note

RESTART_LATE_S = 900.0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cloudgpu.runtime.agent", description="Runs one node of a job.")
    parser.add_argument("--job-dir", required=True, metavar="URL", help="of this job's own folder")
    parser.add_argument("--attempt", required=True, type=int, metavar="N")
    parser.add_argument("--node", required=True, metavar="NAME", help="e.g. worker-0.1")
    parser.add_argument("--job-sha256", required=True, metavar="HEX", help="of job.json")
    parser.add_argument("--home", required=True, metavar="DIR", help="this machine's own folder")
    parser.add_argument("--host", metavar="NAME", help="by which the other nodes reach this one")
    parser.add_argument("--of-fleet", action="store_true", help="a lost node's place is taken without a supervisor")
    parser.add_argument("--lifetime-s", type=float, metavar="S", help="seconds after which the machine ends itself")
    parser.add_argument(
        "--notices",
        choices=(*CLOUDS, "none"),
        default=os.environ.get("CLOUDGPU_NOTICES", "none"),
        help="whose metadata server is watched",
    )
    parser.add_argument(
        "--capacity-block-end",
        type=float,
        metavar="EPOCH",
        default=os.environ.get("CLOUDGPU_CAPACITY_BLOCK_END"),
        help="end of this machine's Capacity Block (AWS), in epoch seconds",
    )
    parser.add_argument(
        "--patience-s", type=float, metavar="S", help="how long a failing job dir is tried again; default: by phase"
    )
    parser.add_argument(
        "--restart-late-s",
        type=float,
        default=RESTART_LATE_S,
        metavar="S",
        help="how much later than announced a restart of this machine by its provider may come",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; return its exit code."""
    options = parse(argv)
    home = Path(options.home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / "started").touch()  # first of all: shows that the agent has been started on this machine
        adopt_orphans()
        return Agent(options).run()
    except JobDirError as error:
        note(str(error))
        return JOB_DIR_LOST
    except OSError as error:
        note(f"{error.filename or home}: {error.strerror or error}")
        return BUG
