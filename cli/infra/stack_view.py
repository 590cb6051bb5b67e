"""Show stacks: planned changes, progress of steps, and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shared.output import Column, style, table
from ..shared.text import duration

if TYPE_CHECKING:
    from ...infra.engine.events import Step
    from ...infra.preflight import Price, Report

_HEADS = (Column(""), Column("what"), Column("kind", least=16))
_BECAUSE = Column("because of", least=10)
_SIGNS = {"create": "+", "update": "~", "replace": "±", "delete": "-", "refresh": "~"}
_DONE = {"create": "made", "update": "changed", "replace": "replaced", "delete": "deleted", "refresh": "looked at"}
_DOING = {
    "create": "making",
    "update": "changing",
    "replace": "replacing",
    "delete": "deleting",
    "refresh": "looking at",
}
_WORDS = {"create": "to make", "update": "to change", "replace": "to replace", "delete": "to delete"}


def step_text(step: Step) -> str:
    """Return the line of a step: `+ made      network-vpc  Vpc  3s`; for one that begins, `making network-vpc (Vpc)
    …`."""
    change = step.change
    if step.state == "begun":
        return f"{_DOING.get(change.op, change.op)} {change.name} ({_short(change.kind)}) …"
    word = "FAILED" if step.state == "failed" else _DONE.get(change.op, change.op)
    return f"{_SIGNS.get(change.op, ' ')} {word:<8}  {change.name}  {_short(change.kind)}  {duration(step.seconds)}"


def report_text(report: Report) -> str:
    """Return the table of changes, then their counts, the price, and the findings of the checks."""
    shown = [change for change in report.changes if change.changes]
    rows = [[_SIGNS[change.op], change.name, _short(change.kind), ", ".join(change.keys)] for change in shown]
    heads = (*_HEADS, _BECAUSE) if any(change.keys for change in shown) else _HEADS
    lines = [table(heads, [row[: len(heads)] for row in rows]), ""] if rows else []
    lines += [_counts(report), *_price(report.price)]
    if report.quota:
        lines.append(f"quota: {report.quota}")
    for finding in report.findings:
        tone = "bad" if finding.severity == "refused" else "warn"
        lines.append(f"{style(finding.severity, tone)}: {finding.message}")  # type: ignore[arg-type]  # two of Tone's
        if finding.hint:
            lines.append(f"  {finding.hint}")
    return "\n".join(lines)


def _counts(report: Report) -> str:
    counts = report.to_json()["counts"]
    words = [f"{number} {_WORDS[op]}" for op, number in counts.items()]
    same = sum(change.op == "same" for change in report.changes)
    return ", ".join([*words, *([f"{same} as they are"] if same else [])]) or "nothing to do"


def _price(price: Price | None) -> list[str]:
    if price is None:
        return []
    shown = "unknown" if price.usd_h is None else f"{price.usd_h:,.4f} USD/h"
    return [f"price: {shown}", *(f"  {note}" for note in price.notes)]


def _short(kind: str) -> str:
    """Return the last part of a resource type: `Bucket` of `aws:s3/bucket:Bucket`."""
    return kind.rpartition(":")[2]
