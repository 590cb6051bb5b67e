"""`cloudgpu metrics`: print the metrics that a training program logged, each step once."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.job_argument import find_job, job_argument
from .shared.options import json_option
from .shared.output import Column, clean, columns, echo_json_line, echo_table, is_terminal, remark

if TYPE_CHECKING:
    from ..protocol.jobdir import JobDir
    from ..protocol.metrics import Row

_HEADS = (
    Column("metric"),
    Column("steps", right=True, spare=4),
    Column("first", right=True, spare=1),
    Column("last", right=True),
    Column("lowest", right=True, spare=2),
    Column("highest", right=True, spare=3),
    Column("from first to last", least=10),
)
_LEVELS = "▁▂▃▄▅▆▇█"


@click.command()
@job_argument(required=False)
@click.option("--folder", metavar="PATH|URL", help="Read a folder of checkpoints that belongs to no job.")
@click.option("--node", metavar="NAME", help="Of nodes that train each for itself: this one, e.g. worker-1.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table for spreadsheets, a step a line.")
@json_option
def command(*, job: str | None, folder: str | None, node: str | None, as_csv: bool, as_json: bool) -> None:
    """Show what the program of JOB logged with ckpt.log(), up to its newest checkpoint.

    \b
    cloudgpu metrics digits
    cloudgpu metrics digits --csv > digits.csv
    cloudgpu metrics --folder ./checkpoints

    Each step is there once, however often the job was interrupted: as the history that counts did it.
    """
    if (job is None) == (folder is None):
        raise click.UsageError("give a JOB, or --folder of checkpoints that belong to no job")
    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be printed at once")
    found = None if job is None else find_job(job, newest=True)
    rows = _of_folder(folder or "", node) if found is None else _read(found.open_dir(), "checkpoints", node)
    if as_json:
        for row in rows:
            echo_json_line(row.to_json())
    elif as_csv:
        _print_csv(rows)
    elif not rows:
        click.echo(_NOTHING_YET if found is not None and not found.done else _NOTHING)
    else:
        _show(rows)


_NOTHING_YET = "nothing was logged yet; ckpt.log(loss=...) in the program's loop does, and the next save keeps it"
_NOTHING = (
    "nothing was logged: a program with a Checkpointer logs metrics by ckpt.log(loss=...), and its next save keeps them"
)


def _of_folder(folder: str, node: str | None) -> list[Row]:
    from pathlib import Path

    from ..protocol.jobdir import JobDir, local_url

    if "://" not in folder and not Path(folder).is_dir():
        raise CommandError(f"{folder} is no folder", exit_code=Exit.USAGE)
    return _read(JobDir(folder if "://" in folder else local_url(Path(folder)), make=False), "", node)


def _read(job_dir: JobDir, folder: str, node: str | None) -> list[Row]:
    from ..protocol.metrics import read_metrics, trainings

    found = trainings(job_dir, folder)
    if node is None and len(found) > 1:
        names = ", ".join(name.rpartition("/")[2] for name in found)
        raise CommandError(
            f"its nodes train each for itself: {names}", hint="--node says whose metrics", exit_code=Exit.USAGE
        )
    chosen = [name for name in found if node is None or name.rpartition("/")[2] == node]
    if node is not None and not chosen:
        raise CommandError(f"there are no checkpoints of a node {node}", exit_code=Exit.USAGE)
    return read_metrics(job_dir, chosen[0]) if chosen else []


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of all metrics in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def _print_csv(rows: Sequence[Row]) -> None:
    names = _names(rows)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["step", "time", *(map(clean, names) if is_terminal() else names)])
    for row in rows:
        writer.writerow([row.step, f"{row.time:.3f}", *(row.values.get(name, "") for name in names)])


def _show(rows: Sequence[Row]) -> None:
    """Print a table with one row per metric, which shows its values as a small curve."""
    lines = []
    for name in _names(rows):
        values = [float(row.values[name]) for row in rows if name in row.values]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        few = [f"{value:.4g}" for value in (values[0], values[-1], min(finite), max(finite))]
        lines.append([name, f"{len(values):,}", *few, curve(values, max(10, min(40, columns() - 60)))])
    echo_table(_HEADS, lines)
    remark(f"{len(rows):,} steps, the last is {rows[-1].step:,}; --csv or --json prints them all")


def curve(values: Sequence[float], width: int) -> str:
    """Return a line of bars, each for the mean of an equal share of the values; `!` marks a share with a non-finite
    value."""
    bars = min(width, len(values))
    parts = [values[len(values) * bar // bars : len(values) * (bar + 1) // bars] for bar in range(bars)]
    means = [sum(part) / len(part) for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return "!" * len(means)
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / span * top)] if math.isfinite(mean) else "!" for mean in means)
