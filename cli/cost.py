"""`cloudgpu cost`: show the cost of jobs to date."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from .shared.job.job_argument import NO_JOBS, find_job, job_argument
from .shared.options import json_option
from .shared.output import Column, echo_json, echo_table, remark
from .shared.text import duration, money

if TYPE_CHECKING:
    from .shared.job.job_view import JobView

_JOBS = (
    Column("job"),
    Column("state", spare=1),
    Column("attempts", right=True, spare=2),
    Column("paid time", right=True),
    Column("cost", right=True),
)
_ATTEMPTS = (
    Column("attempt", right=True),
    Column("outcome"),
    Column("where", least=8, spare=1),
    Column("price", right=True),
    Column("paid time", right=True, spare=2),
    Column("cost", right=True),
)


@click.command()
@job_argument(required=False)
@json_option
def command(job: str | None, as_json: bool) -> None:
    """Show what jobs have cost up to now, or JOB with each of its attempts.

    \b
    cloudgpu cost
    cloudgpu cost digits --json

    An attempt costs its price per hour, fixed when it was launched, times the time from asking for machines until all
    of them are gone. A price that is unknown makes the sum unknown; it never counts as 0.
    """
    from ..control.jobs import list_jobs
    from .shared.job.job_view import view

    if job is not None:
        seen = view(find_job(job, newest=True), machines=False)
        if as_json:
            echo_json(_json(seen))
        else:
            _show(seen)
        return
    all_seen = [view(found, machines=False) for found in list_jobs(limit=None)]
    total = _total([seen.cost for seen in all_seen])
    if as_json:
        echo_json({"jobs": [_json(seen) for seen in all_seen], "total_usd": None if total is None else str(total)})
        return
    if not all_seen:
        click.echo(NO_JOBS)
        return
    echo_table(
        _JOBS,
        [
            [seen.job.id, seen.job.state, str(len(seen.attempts)), duration(_paid(seen)), money(seen.cost)]
            for seen in all_seen
        ],
    )
    remark(f"total: {money(total)}")


def _show(seen: JobView) -> None:
    from ..control.accounting.cost import attempt_cost
    from .shared.job.job_view import attempt_seconds

    rows = [
        [
            str(attempt.number),
            attempt.outcome or attempt.state,
            attempt.offer.place,
            "unknown" if attempt.price is None else f"{money(attempt.price)}/h",
            duration(attempt_seconds(attempt, seen.now)),
            money(attempt_cost(attempt, seen.now)),
        ]
        for attempt in seen.attempts
    ]
    echo_table(_ATTEMPTS, rows)
    remark(f"total: {money(seen.cost)}")


def _json(seen: JobView) -> dict[str, Any]:
    from ..control.accounting.cost import attempt_cost
    from .shared.job.job_view import attempt_seconds

    return {
        "job": seen.job.id,
        "state": seen.job.state,
        "cost_usd": _text(seen.cost),
        "paid_seconds": round(_paid(seen), 3),
        "attempts": [
            {
                "attempt": attempt.number,
                "price_usd_h": _text(attempt.price),
                "paid_seconds": round(attempt_seconds(attempt, seen.now) or 0.0, 3),
                "cost_usd": _text(attempt_cost(attempt, seen.now)),
            }
            for attempt in seen.attempts
        ],
    }


def _paid(seen: JobView) -> float:
    from .shared.job.job_view import attempt_seconds

    return sum(attempt_seconds(attempt, seen.now) or 0.0 for attempt in seen.attempts)


def _total(costs: list[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
