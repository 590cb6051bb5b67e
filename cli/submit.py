"""`cloudgpu submit`: start the job of a file and follow its log until it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..jobspecs.dialects.gcloud_flags import take
from .exit_codes import Exit
from .shared.job.start import attend, confirm, first_offer, start
from .shared.jobfile.gcloud import GcloudCommand, gcloud_options
from .shared.jobfile.job_file_options import (
    STDIN,
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
from .shared.jobfile.plan_view import offer_text, plan_json, plan_text
from .shared.options import json_option, yes_option
from .shared.output import echo_json, remark

if TYPE_CHECKING:
    from ..jobspecs.loading.draft import LoadedSpec
    from ..jobspecs.plan import Plan


@click.command(cls=GcloudCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-d", "--detach", is_flag=True, help="Return when the job is submitted; print its id.")
@click.option("--dry-run", is_flag=True, help="Show the plan; ship and start nothing.")
@click.option("--cluster", metavar="NAME", help="On machines that `cluster up` has brought up, in its turn.")
@click.option("--from", "start_from", metavar="JOB[@STEP]", help="Start from a copy of that job's checkpoint.")
@yes_option
@json_option
@spec_options
@click.option("--config", "gcloud_config", type=click.Path(path_type=Path), help="config.yaml; FILE is then the name.")
@gcloud_options()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    file: Path,
    detach: bool,
    dry_run: bool,
    cluster: str | None,
    start_from: str | None,
    yes: bool,
    as_json: bool,
    **gcloud: Any,  # the flags of gcloud_flags.FLAGS
) -> Exit | None:
    """Run the job of FILE on the best offer and follow its log; the exit code is the job's outcome.

    \b
    cloudgpu submit job.yaml
    cloudgpu submit job.yaml --region us-east1 --market spot --market on-demand
    cloudgpu submit job.yaml --set limits.cost='20 USD' -- --epochs 10
    cloudgpu submit job.yaml --detach
    cloudgpu submit job.yaml --cluster big
    cloudgpu submit job.yaml --from digits-a1b2c3d4
    cloudgpu submit job.yaml --from s3://bucket/jobs/digits-a1b2c3d4@1200

    Flags win over the file, and ARGS replace its args. Ctrl-C asks whether to detach or to cancel; without a terminal
    it detaches, and the job goes on. With --json the command does not follow: it prints the job and returns.

    A paid offer is asked for on a terminal; --yes answers. Without a terminal, --yes or a limit in the job file
    (limits.price or limits.cost) is needed. FILE - is standard input.

    --from starts the training from a copy of the newest intact checkpoint of a job (id, name or URL of its folder), or
    from that of a step. To go on with the job itself: cloudgpu resume.
    """
    written = _load(ctx, file, gcloud)
    say_remarks(written)
    loaded, plan = _plan(written, cluster)
    if dry_run:
        exit_code = _show_plan(plan, loaded, as_json=as_json)
        if cluster is None:
            refuse_unreachable(written)
        return exit_code
    from ..control.jobs import find_origin, submit

    offer = first_offer(plan, loaded.spec, as_json=as_json)
    origin = None if start_from is None else find_origin(start_from)  # before anything is asked or uploaded
    begin = "" if origin is None else f" from a checkpoint of {origin.job}"
    remark(f"{loaded.spec.name}{begin}: {offer_text(offer)}")
    say_launcher(loaded, offer)
    say_outside_end(plan)
    confirm(offer, loaded.spec, yes=yes)
    job, interrupted = start(lambda on_progress: submit(loaded, plan, start_from=origin, on_progress=on_progress))
    return attend(job, interrupted=interrupted, detach=detach, as_json=as_json, verb="submitted")


def _plan(loaded: LoadedSpec, cluster: str | None) -> tuple[LoadedSpec, Plan]:
    """Return the job with a job_dir, and its plan."""
    if cluster is not None:
        from .cluster.on_cluster import plan_on_cluster

        return plan_on_cluster(loaded, cluster)
    plan = plan_spec(loaded)
    say_tables()
    return take_stacks(loaded, plan)


def _load(ctx: click.Context, word: Path, gcloud: dict[str, Any]) -> LoadedSpec:
    """Load the job of the file `word`. With --config, or with gcloud's flags but no such file, `word` is its name."""
    config, flags = gcloud.pop("gcloud_config"), take(gcloud)
    if config is not None or (flags and not _looks_like_a_file(word)):
        return load_spec(config, overrides(ctx), flags, job=str(word))
    return load_spec(word, overrides(ctx), flags)


def _looks_like_a_file(word: Path) -> bool:
    return str(word) == STDIN or word.suffix in {".yaml", ".yml", ".json"} or len(word.parts) > 1 or word.is_file()


def _show_plan(plan: Plan, loaded: LoadedSpec, *, as_json: bool) -> Exit:
    if as_json:
        echo_json(plan_json(plan, loaded.spec))
    else:
        click.echo(plan_text(plan, loaded.spec))
    if plan.best is not None:
        say_launcher(loaded, plan.best)
        say_outside_end(plan)
    return Exit.OK if plan.offers else Exit.IMPOSSIBLE
