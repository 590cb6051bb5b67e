"""`cloudgpu supervise`: run the loop that advances all jobs, in the foreground."""

from __future__ import annotations

import logging
import sys

import click

from .exit_codes import Exit
from .shared.options import DURATION
from .shared.output import remark


@click.command()
@click.option("--idle-exit", type=DURATION, help="End when no job was active for so long, e.g. 60s.")
def command(idle_exit: float | None) -> Exit:
    """Run the supervisor in the foreground; `submit` starts one in the background when none runs.

    Ctrl-C or SIGTERM ends it after the step under way. Jobs go on: their machines need no supervisor to train, only to
    be replaced and to be ended; the next one finds them.
    """
    from ..control.supervisor.daemon import run

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for library in ("botocore", "boto3", "urllib3"):  # they log the source of each setting for every client
        logging.getLogger(library).setLevel(logging.WARNING)
    if not run(idle_exit_s=idle_exit):
        remark("a supervisor runs already")
    return Exit.OK
