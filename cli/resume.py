"""`cloudgpu resume`: go on with a job that has ended, from its newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .exit_codes import Exit
from .shared.job.job_argument import find_job, job_argument
from .shared.job.start import attend, confirm, first_offer, start
from .shared.jobfile.job_file_options import (
    hide_values,
    overrides,
    say_outside_end,
    say_remarks,
    say_tables,
    spec_options,
)
from .shared.jobfile.plan_view import offer_text, plan_json, plan_text
from .shared.jobfile.program_args import ProgramArgsCommand
from .shared.options import json_option, yes_option
from .shared.output import can_ask, echo_json, remark, warning

if TYPE_CHECKING:
    from ..control.submit.resumption import Resumption
    from ..jobspecs.plan import Plan


@click.command(cls=ProgramArgsCommand)
@job_argument()
@click.option("-d", "--detach", is_flag=True, help="Return when the job is resumed; print its id.")
@click.option("--dry-run", is_flag=True, help="Show where it would go on, and the plan; start nothing.")
@click.option("--start-over", is_flag=True, help="Keep the job and its history, but drop its progress.")
@click.option(
    "--code",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Ship this folder instead of the job's code.",
)
@click.option("--cluster", metavar="NAME", help="On this cluster's machines, in its turn; default: the last run's.")
@yes_option
@json_option
@spec_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    job: str,
    detach: bool,
    dry_run: bool,
    start_over: bool,
    code: Path | None,
    cluster: str | None,
    yes: bool,
    as_json: bool,
) -> Exit | None:
    """Go on with JOB, which has ended, from its newest intact checkpoint, and follow its log until it ends again.

    \b
    cloudgpu resume digits
    cloudgpu resume digits --set limits.cost='20 USD'
    cloudgpu resume digits --code .
    cloudgpu resume digits --cloud gcp --market spot -- --epochs 20
    cloudgpu resume digits --start-over

    The job keeps its id, folder, code, settings and history; attempts are numbered on. Limits and retries count anew
    for this run; flags change them, or any other key, as for submit. A job can be resumed however it ended: by a limit,
    cancelled, failed (--code ships the mended program) or succeeded.

    --start-over begins with step 0: checkpoints of earlier runs are never restored again, and are removed as new ones
    take their place.
    """
    found = find_job(job)
    draft = found.draft_resumption(overrides(ctx), code=code, start_over=start_over)
    hide_values(draft.spec)
    say_remarks(draft.loaded)
    draft, plan = _plan(draft, cluster or draft.cluster)
    if dry_run:
        return _show(draft, plan, as_json=as_json)
    offer = first_offer(plan, draft.spec, as_json=as_json)
    remark(f"{found.id}: {draft.describe_start()}; {offer_text(offer)}")
    say_outside_end(plan)
    _confirm_loss(draft, yes=yes)
    confirm(offer, draft.spec, yes=yes)
    resumed, interrupted = start(lambda on_progress: found.begin_run(draft, plan, on_progress=on_progress))
    return attend(resumed, interrupted=interrupted, detach=detach, as_json=as_json, verb="resumed")


def _plan(draft: Resumption, cluster: str | None) -> tuple[Resumption, Plan]:
    """Return the run with what its cluster sets, and its plan."""
    from dataclasses import replace

    if cluster is not None:
        from .cluster.on_cluster import plan_on_cluster

        loaded, plan = plan_on_cluster(draft.loaded, cluster)
        return replace(draft, loaded=loaded), plan
    from ..control.submit.job_group_offers import with_groups
    from ..control.submit.planning import plan_today

    plan = plan_today(draft.spec)
    say_tables()
    return draft, with_groups(draft.spec, plan)


def _confirm_loss(draft: Resumption, *, yes: bool) -> None:
    """Say which checkpoints are dropped and, on a terminal, ask."""
    loss = draft.describe_loss()
    if not loss:
        return
    warning(loss)
    if can_ask() and not yes:
        click.confirm("start over?", default=False, err=True, abort=True)


def _show(draft: Resumption, plan: Plan, *, as_json: bool) -> Exit:
    if as_json:
        echo_json({"job": draft.row.id, "step": draft.step, **plan_json(plan, draft.spec)})
    else:
        remark(f"{draft.row.id}: {draft.describe_start()}")
        click.echo(plan_text(plan, draft.spec))
    return Exit.OK if plan.offers else Exit.IMPOSSIBLE
