"""Jobs as text and as JSON, for `cloudgpu status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from ...storage.urls import local_folder
from ..events import event_json, event_line
from ..shared.job.job_view import JobView, attempt_seconds, job_json, view
from ..shared.job.report_view import outputs_lines, report_json, report_lines
from ..shared.output import STATE_TONES, Column, clean, columns, style, table, warning
from ..shared.text import ago, clock, duration, iso, money

if TYPE_CHECKING:
    from ...control.jobs import Job
    from ...control.store.model import Attempt, Source

_T = TypeVar("_T")

_EVENTS = 8
_LIST = (
    Column("job"),
    Column("state"),
    Column("submitted"),
    Column("lasted", right=True, spare=4),
    Column("where", least=8, spare=2),
    Column("attempts", right=True, spare=5),
    Column("step", right=True, spare=3),
    Column("cost", right=True, spare=1),
)
_ATTEMPTS = (
    Column("attempt", right=True),
    Column("outcome"),
    Column("where", least=8, spare=3),
    Column("paid time", right=True, spare=2),
    Column("cost", right=True, spare=1),
    Column("step", right=True),
    Column("reason", least=16),
)
_NODES = (
    Column("node"),
    Column("rank", right=True),
    Column("phase"),
    Column("heartbeat", right=True),
    Column("step", right=True),
    Column("reason", least=16),
)


_REMOVED = {
    "remove": " (its removal was interrupted: cloudgpu rm {} goes on)",
    "removed": " (its files are removed)",
}
"""Goal of a job -> remark on its folder."""


def list_text(jobs: Sequence[Job]) -> str:
    return table(_LIST, _each(jobs, _list_row))


def list_json(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return _each(jobs, _json)


def _each(jobs: Sequence[Job], show: Callable[[JobView], _T]) -> list[_T]:
    """Return the result of `show` for each job. A job with a damaged row in the store is skipped with a warning."""
    from ...control.errors import DamagedRowError

    shown = []
    for job in jobs:
        try:
            shown.append(show(view(job, machines=False)))
        except (DamagedRowError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            reason = str(error) if isinstance(error, DamagedRowError) else f"its row in the store is damaged: {error!r}"
            warning(f"{job.id} cannot be shown: {reason}")
    return shown


def _list_row(seen: JobView) -> list[str]:
    job = seen.job
    return [
        job.id,
        job.state,
        ago(job.created, seen.now),
        duration(seen.lasted),
        job.offer.place,
        str(len(seen.attempts)),
        _number(seen.step),
        money(seen.cost),
    ]


def job_text(job: Job) -> str:
    """Return all details of one job, in paragraphs."""
    seen = view(job, machines=not job.done)
    parts = [_head(seen), _attempts(seen), _refused(seen)]
    if seen.nodes:
        parts.append(_nodes(seen))
    events = [event_line(event, columns() - 2) for event in job.events()[-_EVENTS:]]
    parts.append("\n".join([style("last events", "title"), *(f"  {line}" for line in events)]))
    if job.done:
        lines = [*report_lines(job.report()), *_outputs(job)]
        parts.append("\n".join([style("report", "title"), *(f"  {line}" for line in lines)]))
    return "\n\n".join(filter(None, parts))


def _outputs(job: Job) -> list[str]:
    """Return where the outputs of an ended job are. A bucket is not listed: the status must be there at once, also
    without credentials."""
    if local_folder(job.job_dir) is not None:
        return outputs_lines(job)
    return [f"outputs   {clean(job.job_dir)}/outputs", f"          list them: cloudgpu outputs {job.id}"]


def status_json(job: Job) -> dict[str, Any]:
    """Return all details of one job for scripts; docs/reference/cli.md describes them."""
    seen = view(job)
    return {
        **_json(seen),
        "queue_place": job.queue_place,
        "priority": job.row.policy.priority,
        "nodes": [
            {
                "node": node.node,
                "rank": node.rank,
                "phase": node.phase,
                "heartbeat": iso(node.heartbeat.time) if node.heartbeat else None,
                "step": node.step,
                "exit_code": node.result.exit_code if node.result else None,
                "reason": node.result.reason if node.result else "",
            }
            for node in seen.nodes
        ],
        "outputs_url": f"{job.job_dir}/outputs",
        "missing_outputs": [name for node in seen.nodes if node.result for name in node.result.missing_outputs],
        "events": [event_json(event) for event in job.events()[-_EVENTS:]],
        "report": report_json(job.report()) if job.done else None,
    }


def _json(seen: JobView) -> dict[str, Any]:
    return {
        **job_json(seen.job),
        "cost_usd": None if seen.cost is None else str(seen.cost),
        "step": seen.step,
        "attempts": [
            {
                "attempt": attempt.number,
                "state": attempt.state,
                "outcome": attempt.outcome or None,
                "cause": attempt.cause or None,
                "reason": attempt.reason,
                "exit_code": attempt.exit_code,
                "offer": attempt.offer.to_json(),
                "job_dir": seen.job.job_dir_of(attempt),
                "launched": iso(attempt.launched),
                "ended": iso(attempt.ended),
                "cost_usd": None if attempt.cost is None else str(attempt.cost),
                "progress": asdict(attempt.progress) if attempt.progress else None,
                "heartbeat": iso(attempt.seen.time if attempt.seen else None),
                "restarts": len(attempt.generations),
            }
            for attempt in seen.attempts
        ],
    }


def _head(seen: JobView) -> str:
    job = seen.job
    state = style(job.state, STATE_TONES[job.state]) if job.state in STATE_TONES else job.state
    reason = f": {clean(job.reason)}" if job.reason else ""
    ended = f", ended {ago(job.ended, seen.now)}, lasted {duration(seen.lasted)}" if job.ended is not None else ""
    then, place = job.next_try, job.queue_place
    facts = [
        *([] if then is None else [("next try", f"in {duration(then - seen.now)}, at {clock(then)}")]),
        *([] if place is None else [("queue", f"place {place}, priority {job.row.policy.priority}")]),
        ("submitted", f"{ago(job.created, seen.now)}{ended}"),
        ("where", seen.job.offer.place),
        ("cost", money(seen.cost) + ("" if job.done else " so far")),
        ("job dir", clean(job.job_dir) + _REMOVED.get(job.row.goal, "").format(job.id)),
        *([] if job.row.source is None else [("from", _source(job.row.source))]),
        *([] if (command := job.resume_command) is None else [("go on", command)]),
    ]
    return "\n".join([f"{style(job.id, 'title')}  {state}{reason}", *(f"  {name:10} {text}" for name, text in facts)])


def _source(source: Source) -> str:
    return clean(f"step {source.step:,} of {source.job}, {source.job_dir}")


def _attempts(seen: JobView) -> str:
    """Return a table of attempts; consecutive refused attempts share a line (see _refused())."""
    rows: list[list[str]] = []
    for was_refused, found in groupby(seen.attempts, key=lambda attempt: attempt.outcome == "refused"):
        attempts = list(found)
        rows += [_refused_row(attempts, seen.now)] if was_refused else [_attempt_row(seen, one) for one in attempts]
    return table(_ATTEMPTS, rows, indent=2) if rows else ""


def _refused_row(attempts: Sequence[Attempt], now: float) -> list[str]:
    from ...control.accounting.cost import total
    from ...control.reconcile.refusal_report import CLASSES, group
    from ...control.store.model import Refused

    first, last = attempts[0].number, attempts[-1].number
    groups = group([Refused.of(attempt) for attempt in attempts])
    places = sorted({(attempt.offer.place, attempt.offer.region) for attempt in attempts})
    return [
        str(first) if first == last else f"{first}-{last}",
        "refused",
        places[0][0] if len(places) == 1 else f"{len(places)} places",
        duration(None),
        money(total(attempts, now)),
        _number(None),
        ", ".join(dict.fromkeys(CLASSES.get(one.kind, one.kind) for one in groups)),
    ]


def _refused(seen: JobView) -> str:
    """Return each place that refused, when and why; "" if the job's reason already lists them."""
    from ...control.reconcile.refusal_report import group, lines
    from ...control.store.model import Refused

    found = [Refused.of(attempt) for attempt in seen.attempts if attempt.outcome == "refused"]
    if not found or "\n" in seen.job.reason:
        return ""
    shown = [f"  {line}" for line in lines(group(found), clock)]
    return "\n".join([style("no machines at", "title"), *map(clean, shown)])


def _attempt_row(seen: JobView, attempt: Attempt) -> list[str]:
    from ...control.accounting.cost import attempt_cost

    return [
        str(attempt.number),
        attempt.outcome or attempt.state,
        attempt.offer.place,
        duration(attempt_seconds(attempt, seen.now)),
        money(attempt_cost(attempt, seen.now)),
        _number(seen.step_of(attempt)),
        _reason(attempt),
    ]


def _reason(attempt: Attempt) -> str:
    count = len(attempt.generations)
    restarts = f"{count} restart{'s' * (count != 1)} in place" if count else ""
    return "; ".join(filter(None, [restarts, attempt.reason]))


def _nodes(seen: JobView) -> str:
    rows = [
        [
            node.node,
            str(node.rank),
            node.phase,
            ago(node.heartbeat.time if node.heartbeat else None, seen.now),
            _number(node.step),
            node.result.reason if node.result else "",
        ]
        for node in seen.nodes
    ]
    return table(_NODES, rows, indent=2)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
