"""`cloudgpu goodput`: show how the paid time of a job was used, and the goodput that was possible."""

from __future__ import annotations

from pathlib import Path

import click

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.job.job_argument import find_job, job_argument, watch
from ..shared.options import json_option
from ..shared.output import echo_json, remark


@click.command()
@job_argument()
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Write a picture.")
@json_option
def command(job: str, plot: Path | None, as_json: bool) -> None:
    """Show what the paid time of JOB went into: training, steps done again, saving, starting, ending.

    \b
    cloudgpu goodput digits
    cloudgpu goodput digits --plot goodput.svg

    The parts add up to the paid time, for jobs that run as well. Beside the goodput stands what the same interruptions
    would have allowed, and after the table a sentence on what costs most.
    """
    if plot is not None and plot.suffix.lower() != ".svg":
        raise click.UsageError(f"--plot {plot}: only SVG can be written; name it {plot.stem or 'goodput'}.svg")
    found = watch(find_job(job, newest=True))
    report = found.report()
    if plot is not None:
        from .plot import svg

        try:
            plot.write_text(svg(f"{found.id} {found.state}", report))
        except OSError as error:
            raise CommandError(f"{plot} cannot be written: {error.strerror}", exit_code=Exit.USAGE) from error
    if as_json:
        from ..shared.job.report_view import report_json

        echo_json({"job": found.id, "state": found.state, **report_json(report)})
        return
    from .view import goodput_text

    click.echo(goodput_text(found, report))
    if plot is not None:
        remark(f"written: {plot}")
