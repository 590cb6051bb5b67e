"""`cloudgpu verify-resume`: verify that a program which is killed and resumed ends bit for bit like one that is not."""

from __future__ import annotations

from typing import Literal

import click

from ..exit_codes import Exit
from ..shared.options import json_option


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--at", default="random", show_default=True, metavar="STEP", help="Step to end it at, or `random`.")
@click.option(
    "--kill",
    "how",
    type=click.Choice(["kill", "term", "notice"]),
    default="kill",
    show_default=True,
    help="How it is ended: SIGKILL, SIGTERM, or a notice that the machine goes.",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="How often to end and resume it.")
@click.option("--timeout", type=click.FloatRange(1), default=3600.0, show_default=True, help="Seconds for all runs.")
@json_option
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    at: str,
    how: Literal["kill", "term", "notice"],
    runs: int,
    timeout: float,
    as_json: bool,
    program: tuple[str, ...],
) -> int:
    """Run PROGRAM undisturbed, and again with a kill, and say whether both end alike, bit for bit.

    \b
    cloudgpu verify-resume -- train.py --epochs 2
    cloudgpu verify-resume --runs 5 --kill term -- python -m trainer.task

    It is run as by `python -m cloudgpu.runtime run`, each time in a copy of the working directory, and checkpoints go
    into a folder of their own; all of it is removed. Compared are what is saved, what is logged, the files that the
    program writes and the variables that it ends with. If they differ: at which step, in which tensor, and what is
    likely not saved. Give it arguments that make it short: a few hundred steps are enough. Exit code 0: they agree, 1:
    they differ, 7: what is saved agrees, but files or variables differ, 4: nothing can be said (it fails, saves
    nothing, or is not deterministic), 5: out of time.
    """
    from .runs import Verification
    from .view import show

    if at != "random" and not (at.isdecimal() and int(at) > 0):
        raise click.UsageError(f"--at {at}: give the number of a step, from 1, or `random`.")
    step = None if at == "random" else int(at)
    with Verification(program, timeout) as verification:
        verdict = verification.verify(step, how, runs)
    show(verdict, as_json=as_json)
    return Exit[verdict.exit]
