"""Start of a job by `submit` and `resume`: choice and consent, progress of the upload, and following until it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ....jobspecs.targets import info
from ...exit_codes import Exit
from ..errors import CommandError
from ..jobfile.plan_view import plan_json, refusals_text
from ..output import ProgressLine, can_ask, echo_json, remark, warning
from .follow import Follower, Interrupts, LineFormat, LogFilter
from .job_argument import OUTCOMES, watch
from .job_view import job_json

if TYPE_CHECKING:
    from ....control.jobs import Job
    from ....control.submit.upload import ProgressCallback
    from ....jobspecs.models import JobSpec
    from ....jobspecs.plan import Offer, Plan


def first_offer(plan: Plan, spec: JobSpec, *, as_json: bool) -> Offer:
    """Return the offer on which the job starts. Raises CommandError or SubmitError if there is none; nothing is
    created."""
    if plan.best is None:
        if as_json:
            echo_json(plan_json(plan, spec))
        click.echo(refusals_text(plan), err=True)
        raise CommandError("nothing can run this job", hint=_HINT_ALL, exit_code=Exit.IMPOSSIBLE)
    from ....control.submit.submittable_offers import usable_offers

    return usable_offers(spec, plan)[0]


_HINT_ALL = "`cloudgpu plan FILE --all` shows every way that was looked at"


def confirm(offer: Offer, spec: JobSpec, *, yes: bool) -> None:
    """Require consent to spend money: --yes, an answer at the terminal, or a price or cost limit in the job file."""
    limits = spec.limits
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


def start(begin: Callable[[ProgressCallback], Job]) -> tuple[Job, bool]:
    """Call a function that uploads and starts a job, with a progress line; return the job, and whether Ctrl-C was
    pressed after it could have been created."""
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

        job = begin(on_progress)
    return job, interrupts.pending


def _progress_text(what: str, done: int, total: int) -> str:
    """Return a progress text: `uploading code: 1.2 of 3.4 MB`."""
    code = f"{what} code" if what in ("packing", "uploading") else what
    return f"{code}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else code


def attend(job: Job, *, interrupted: bool, detach: bool, as_json: bool, verb: str) -> Exit | None:
    """Print the job that was just started (`verb`: "submitted" or "resumed"), and follow it unless that is not wanted.

    interrupted: Ctrl-C was pressed already
    """
    if as_json:
        echo_json(job_json(job))
        return None
    if detach:
        click.echo(job.id)
        _say_how_to_go_on(job)
        return None
    remark(f"{verb} {job.id}")
    return _follow(job, interrupted=interrupted)


def _say_how_to_go_on(job: Job) -> None:
    remark(f"follow it:  cloudgpu logs {job.id} --follow\ncancel it:  cloudgpu cancel {job.id}")


def _follow(job: Job, *, interrupted: bool) -> Exit:
    """Follow the current run of a job."""
    follower = Follower(
        job,
        LineFormat(job),
        LogFilter(since=job.row.run.begun),
        events=True,
        after_event=_resumed_at(job),
        keep_alive=lambda: watch(job),
    )
    with Interrupts() as interrupts:
        interrupts.pending = interrupted
        while not _followed(follower, interrupts):
            if _interrupted(job) == "detach":
                remark(f"detached: {job.id} goes on")
                _say_how_to_go_on(job)
                return Exit.INTERRUPTED
    from .report_view import summary

    sys.stdout.flush()  # the log's last line comes before the summary
    click.echo(summary(job, said=follower.said_reason), err=True)
    return OUTCOMES[job.state]


def _resumed_at(job: Job) -> int:
    """Return the sequence number of the event that began the job's run; 0: it is the first run."""
    if job.row.run.begun is None:
        return 0
    return max((event.seq for event in job.events() if event.kind == "resumed"), default=0)


def _followed(follower: Follower, interrupts: Interrupts) -> bool:
    """Follow the job; return True when it has ended, False after Ctrl-C. KeyboardInterrupt, raised by a second
    Ctrl-C while a step hangs, has the same effect as the first."""
    from ....protocol.jobdir import JobDirError

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
