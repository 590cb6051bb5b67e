"""`cloudgpu events`: print the events of a job in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from .shared.job.job_argument import find_job, job_argument, watch
from .shared.options import json_option
from .shared.output import clean, echo_json_line, shorten, style
from .shared.text import clock, iso

if TYPE_CHECKING:
    from ..control.store.model import Event

_POLL_S = 0.5


@click.command()
@job_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@json_option
def command(job: str, follow: bool, as_json: bool) -> None:
    """Print what happened to JOB: states, attempts, machines got and lost, notices, retries.

    \b
    cloudgpu events digits
    cloudgpu events digits --follow --json | jq .message

    With --json: one object a line with seq, time, attempt, kind and message.
    """
    found = find_job(job, newest=True)
    last = 0
    while True:
        ended = found.done  # read before the events, so that later ones are printed in the next round
        for event in found.events(after=last):
            last = event.seq
            if as_json:
                echo_json_line(event_json(event))
            else:
                click.echo(event_line(event))
        if ended or not follow:
            return
        time.sleep(_POLL_S)
        watch(found.refresh())


def event_line(event: Event, width: int | None = None) -> str:
    """Return a line such as `14:03:07  attempt 2   state       running`, its message shortened to fit `width`
    columns."""
    time_and_attempt = f"{clock(event.time)}  {f'attempt {event.attempt}' if event.attempt else '':10}  "
    kind, message = f"{event.kind:10}", clean(event.message)
    if width is not None:
        message = shorten(message, width - len(time_and_attempt) - len(kind) - 2)
    return f"{time_and_attempt}{style(kind, 'note')}  {message}".rstrip()


def event_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "time": iso(event.time),
        "attempt": event.attempt,
        "kind": event.kind,
        "message": event.message,
    }
