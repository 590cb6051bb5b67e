"""`cloudgpu submit`: start the job of a file and follow its log until it ends."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..jobspecs.dialects.gcloud_flags import take
from ..jobspecs.targets import info
from .exit_codes import Exit
from .shared.errors import CommandError
from .shared.job.follow import Follower, Interrupts, LineFormat, LogFilter
from .shared.job.job_argument import OUTCOMES, watch
from .shared.job.job_view import job_json
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
from .shared.jobfile.plan_view import offer_text, plan_json, plan_text, refusals_text
from .shared.options import json_option, yes_option
from .shared.output import ProgressLine, can_ask, echo_json, remark, warning

if TYPE_CHECKING:
    from ..control.jobs import Job
    from ..jobspecs.loading.draft import LoadedSpec
    from ..jobspecs.plan import Offer, Plan


@click.command(cls=GcloudCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-d", "--detach", is_flag=True, help="Return when the job is submitted; print its id.")
@click.option("--dry-run", is_flag=True, help="Show the plan; ship and start nothing.")
@click.option("--cluster", metavar="NAME", help="On machines that `cluster up` has brought up, in its turn.")
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

    Flags win over the file, and ARGS replace its args. Ctrl-C asks whether to detach or to cancel; without a terminal
    it detaches, and the job goes on. With --json the command does not follow: it prints the job and returns.

    A paid offer is asked for on a terminal; --yes answers. Without a terminal, --yes or a limit in the job file
    (limits.price or limits.cost) is needed. FILE - is standard input.
    """
    written = _load(ctx, file, gcloud)
    say_remarks(written)
    loaded, plan = _plan(written, cluster)
    if dry_run:
        exit_code = _show_plan(plan, loaded, as_json=as_json)
        if cluster is None:
            refuse_unreachable(written)
        return exit_code
    offer = _first_offer(plan, loaded, as_json=as_json)
    remark(f"{loaded.spec.name}: {offer_text(offer)}")
    say_launcher(loaded, offer)
    say_outside_end(plan)
    _confirm(offer, loaded, yes=yes)
    job, interrupted = _ship(loaded, plan)
    if as_json:
        echo_json(job_json(job))
        return None
    if detach:
        click.echo(job.id)
        _say_how_to_go_on(job)
        return None
    remark(f"submitted {job.id}")
    return _follow(job, interrupted=interrupted)


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


def _first_offer(plan: Plan, loaded: LoadedSpec, *, as_json: bool) -> Offer:
    """Return the offer on which the job starts. Raises CommandError or SubmitError if there is none; nothing is
    created."""
    if plan.best is None:
        if as_json:
            echo_json(plan_json(plan, loaded.spec))
        click.echo(refusals_text(plan), err=True)
        raise CommandError("nothing can run this job", hint=_HINT_ALL, exit_code=Exit.IMPOSSIBLE)
    from ..control.submit.submittable_offers import usable_offers

    return usable_offers(loaded.spec, plan)[0]


_HINT_ALL = "`cloudgpu plan FILE --all` shows every way that was looked at"


def _confirm(offer: Offer, loaded: LoadedSpec, *, yes: bool) -> None:
    """Require consent to spend money: --yes, an answer at the terminal, or a price or cost limit in the job file."""
    limits = loaded.spec.limits
    if yes or offer.price == 0 or info(offer.cloud).outlives_jobs:  # a cluster's machines are paid for anyway
        return
    if can_ask():
        click.confirm("start it?", default=True, err=True, abort=True)
    elif limits.price is None and limits.cost is None:
        # A limit in USD refuses an offer of unknown price.
        ways = "add --yes" if offer.price is None else "add --yes, or set limits.price or limits.cost in the job file"
        raise CommandError(
            "this offer costs money, and there is no terminal to ask at", hint=ways, exit_code=Exit.USAGE
        )


_LARGE_CODE_BYTES = 100_000_000
"""Code size above which a warning is printed: every submit packs and copies all of it."""
_LARGE_CODE = (
    "the code folder has {:,.0f} MB, which every submit packs and copies: name what the program does not need in "
    ".cloudgpuignore, and give data as `inputs:`"
)


def _ship(loaded: LoadedSpec, plan: Plan) -> tuple[Job, bool]:
    """Submit the job; return the job, and whether Ctrl-C was pressed while it was being stored."""
    from ..control.jobs import submit

    interrupts, is_large = Interrupts(), False
    with ExitStack() as held, ProgressLine() as progress:

        def on_progress(what: str, done: int, total: int) -> None:
            nonlocal is_large
            if what == "packing" and total > _LARGE_CODE_BYTES and not is_large:
                is_large = True
                progress.clear()
                warning(_LARGE_CODE.format(total / 1e6))
            if what == "submitting":  # a job may exist from here on: Ctrl-C waits until its id is known
                held.enter_context(interrupts)
            progress(_progress_text(what, done, total))

        job = submit(loaded, plan, on_progress=on_progress)
    return job, interrupts.pending


def _progress_text(what: str, done: int, total: int) -> str:
    """Return a progress text: `uploading code: 1.2 of 3.4 MB`."""
    code = f"{what} code" if what in ("packing", "uploading") else what
    return f"{code}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else code


def _say_how_to_go_on(job: Job) -> None:
    remark(f"follow it:  cloudgpu logs {job.id} --follow\ncancel it:  cloudgpu cancel {job.id}")


def _follow(job: Job, *, interrupted: bool) -> Exit:
    follower = Follower(job, LineFormat(job), LogFilter(), events=True, keep_alive=lambda: watch(job))
    with Interrupts() as interrupts:
        interrupts.pending = interrupted
        while not _followed(follower, interrupts):
            if _interrupted(job) == "detach":
                remark(f"detached: {job.id} goes on")
                _say_how_to_go_on(job)
                return Exit.INTERRUPTED
    from .shared.job.report_view import summary

    sys.stdout.flush()  # the log's last line comes before the summary
    click.echo(summary(job, said=follower.said_reason), err=True)
    return OUTCOMES[job.state]


def _followed(follower: Follower, interrupts: Interrupts) -> bool:
    """Follow the job; return True when it has ended, False after Ctrl-C. KeyboardInterrupt, raised by a second
    Ctrl-C while a step hangs, has the same effect as the first."""
    from ..protocol.jobdir import JobDirError

    try:
        return follower.follow(interrupts)
    except KeyboardInterrupt:
        return False
    except JobDirError as error:  # the job has ended, and the store knows its outcome
        warning(f"the rest of the log cannot be read: {error}")
        return True


def _interrupted(job: Job) -> str:
    """Ask what to do after Ctrl-C; return "detach" (also for a second Ctrl-C), "cancel" or "follow"."""
    if not can_ask():
        return "detach"
    answers = {"d": "detach", "c": "cancel", "f": "follow"}
    held: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = click.prompt(
            f"\n{job.id}: [d]etach, [c]ancel or [f]ollow on?",
            type=click.Choice(list(answers)),
            show_choices=False,
            default="d",
            err=True,
        )
    except click.Abort:
        return "detach"
    finally:
        signal.signal(signal.SIGINT, held)
    if answer == "c":
        job.cancel("cancelled with Ctrl-C")
        remark(f"cancelling {job.id}")
    return answers[answer]
