"""`cloudgpu plan`: show where a job can run and its price there. Nothing is started, no network is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Exit
from .shared.jobfile.gcloud import GcloudCommand, gcloud_options, take_flags
from .shared.jobfile.job_file_options import (
    load_spec,
    overrides,
    plan_spec,
    refuse_unreachable,
    say_outside_end,
    say_remarks,
    say_tables,
    spec_options,
    take_stacks,
)
from .shared.jobfile.launch_view import say_launcher
from .shared.options import json_option
from .shared.output import echo_json, remark, style

if TYPE_CHECKING:
    from ..jobspecs.loading.draft import LoadedSpec
    from ..jobspecs.plan import Offer


@click.command(cls=GcloudCommand)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--all", "show_all", is_flag=True, help="Show every offer and every refusal.")
@json_option
@spec_options
@gcloud_options()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    show_all: bool,
    as_json: bool,
    **gcloud: Any,  # the flags of gcloud_flags.FLAGS
) -> Exit:
    """Show where the job of FILE can run, what it costs there, and why other ways cannot be.

    \b
    cloudgpu plan job.yaml
    cloudgpu plan job.yaml --cloud gcp --cloud aws --market spot
    cloudgpu plan job.yaml --set limits.price='2 USD/h' --all

    Offers stand in the order of preference of the file, then by the price per hour of the whole job: all machines,
    GPUs and disks. A price that the tables lack is unknown and ranks last. Exit code 4: nothing can run the job.

    FILE - is standard input. Without a FILE the flags of `gcloud ai-platform jobs submit training` describe the job
    alone; a program may be named later. Credentials and quotas are not looked at: see `cloudgpu check`.
    """
    from .shared.jobfile.plan_view import plan_json, plan_text

    flags = take_flags(ctx, gcloud, has_file=file is not None)
    written = load_spec(file, overrides(ctx), flags, needs_program=False)
    say_remarks(written)
    plan = plan_spec(written)
    say_tables()
    loaded, plan = take_stacks(written, plan)
    if as_json:
        echo_json(plan_json(plan, loaded.spec))
    else:
        click.echo(plan_text(plan, loaded.spec, show_all=show_all))
    refuse_unreachable(written)
    if plan.best is not None:
        say_launcher(loaded, plan.best)
        _say_obstacle(plan.best, loaded)
        say_outside_end(plan)
        return Exit.OK
    click.echo(f"{style('error', 'bad', err=True)}: nothing can run this job", err=True)
    return Exit.IMPOSSIBLE


def _say_obstacle(best: Offer, loaded: LoadedSpec) -> None:
    """Print why `submit` cannot use the best offer's cloud from this computer, if so; credentials are not checked."""
    from ..control.submit.submittable_offers import obstacle
    from ..jobspecs.targets import info

    why = obstacle(loaded.spec, best.cloud, look=False)
    if why:
        remark(f"note: {why}")
    elif info(best.cloud).has_tables:
        remark(f"whether {best.cloud} can be used from here: `cloudgpu check {best.cloud}`")
