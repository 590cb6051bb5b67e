"""Checks before a stack is created, updated or deleted: changes, price, and reasons to refuse. Pure functions."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .engine.events import Change, count_by_operation

_TABLE = Path(__file__).with_name("billing.csv")
BUCKETS = ("aws:s3/bucket:Bucket", "gcp:storage/bucket:Bucket", "azure-native:storage:StorageAccount")
_HOLDS_DATA = (*BUCKETS, "azure-native:storage:BlobContainer")
"""Types whose deletion also deletes their data, such as checkpoints."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    code: str
    severity: Literal["refused", "warning"]
    message: str
    hint: str = ""


class Price(NamedTuple):
    """Price of a whole stack."""

    usd_h: Decimal | None
    """US dollars per hour; None: unknown."""
    notes: tuple[str, ...]
    """Exclusions: usage-based charges, and resources without a known price."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of all checks before an operation."""

    changes: tuple[Change, ...]
    """Sorted by name."""
    price: Price | None
    """Price of the stack after the operation; None: the operation creates nothing."""
    quota: str = ""
    """Result of the quota check for the machines; "": the stack has no machines."""
    findings: tuple[Finding, ...] = ()

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "refused"]

    @property
    def changes_anything(self) -> bool:
        return any(change.changes for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": [
                {"op": change.op, "kind": change.kind, "name": change.name, "keys": list(change.keys)}
                for change in self.changes
                if change.changes
            ],
            "counts": dict(count_by_operation(self.changes)),
            "unchanged": sum(change.op == "same" for change in self.changes),
            "price_usd_h": None if self.price is None or self.price.usd_h is None else str(self.price.usd_h),
            "price_notes": [] if self.price is None else list(self.price.notes),
            "quota": self.quota,
            "findings": [
                {"code": one.code, "severity": one.severity, "message": one.message, "hint": one.hint}
                for one in self.findings
            ],
        }


def check_up(
    changes: Sequence[Change], *, machines: Decimal | None = Decimal(0), cap: Decimal | None = None, quota: str = ""
) -> Report:
    """Check the changes of an `up`.

    `machines`: US dollars per hour of all machines (None: unknown); `cap`: maximum price of the whole stack in US
    dollars per hour; `quota`: result of the quota check, or "".
    """
    price = price_of((change.kind for change in changes if change.op != "delete"), machines)
    changes = _by_name(changes)
    return Report(tuple(changes), price, quota, (*_destroyed(changes), *_too_dear(price, cap)))


def check_down(
    changes: Sequence[Change],
    *,
    running: Sequence[str],
    clusters: Sequence[str],
    force: bool,
    with_data: bool = False,
) -> Report:
    """Check the changes of a `down`.

    `running`: jobs that use the stack; `clusters`: names of clusters in it; `force`: running jobs are a warning only;
    `with_data`: checkpoints may be deleted as well.
    """
    findings = [] if with_data else list(_unprotected(changes))
    if running:
        severity: Literal["refused", "warning"] = "warning" if force else "refused"
        hint = "wait for them, or `cloudgpu cancel` them; --while-jobs-run takes down what they need"
        findings.append(Finding("jobs-run", severity, jobs_run(running), "" if force else hint))
    if clusters:
        hint = f"`cloudgpu cluster down {clusters[0]}` first"
        findings.append(Finding("clusters-there", "refused", f"clusters use it: {', '.join(clusters)}", hint))
    return Report(tuple(_by_name(changes)), None, "", tuple(findings))


def jobs_run(ids: Sequence[str]) -> str:
    """Return a message: `2 jobs run there: digits-1, digits-2`."""
    shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return f"{len(ids)} {'job runs' if len(ids) == 1 else 'jobs run'} there: {shown}"


def _by_name(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: (change.name, change.kind))


def _destroyed(changes: Iterable[Change]) -> Iterable[Finding]:
    for change in changes:
        if change.op not in ("delete", "replace"):
            continue
        why = f" (because of {', '.join(change.keys)})" if change.keys else ""
        what = f"{change.name} ({change.kind}) would be {'deleted' if change.op == 'delete' else 'replaced'}{why}"
        if change.kind in _HOLDS_DATA or change.protected:
            hint = "it holds checkpoints, and up never deletes it: `cloudgpu infra down --delete-bucket` would"
            yield Finding("protected", "refused", what, hint)
        else:
            yield Finding("destroyed", "warning", what)


def _unprotected(changes: Iterable[Change]) -> Iterator[Finding]:
    """Yield a refusal for each resource with data that would be deleted because it is unprotected, as after an
    interrupted `down --delete-bucket`."""
    for change in changes:
        if change.op == "delete" and change.kind in _HOLDS_DATA:
            message = f"{change.name} ({change.kind}) would be deleted with every checkpoint in it: it is not protected"
            yield Finding("protected", "refused", message, "`cloudgpu infra up` protects it again; or --delete-bucket")


def _too_dear(price: Price, cap: Decimal | None) -> Iterable[Finding]:
    if cap is None:
        return
    if price.usd_h is None:
        message = f"the price of the stack is unknown: it cannot be held to limits.price of {cap} USD/h"
        yield Finding("price-cap", "refused", message, "leave out limits.price")
    elif price.usd_h > cap:
        message = f"the stack costs {price.usd_h} USD/h, above limits.price of {cap} USD/h"
        yield Finding(
            "price-cap", "refused", message, f"ask for fewer machines, or set limits.price: {price.usd_h} USD/h"
        )


def price_of(kinds: Iterable[str], machines: Decimal | None) -> Price:
    """Return the price of a stack, given its resources' types (one entry per resource). Types missing in the table are
    listed in the notes."""
    total, notes, machines_counted = Decimal(0), dict[str, None](), False
    unknown = False
    for kind in kinds:
        row = _row(kind)
        bills = row["bills"] if row else "unknown"
        if bills == "hour" and row:
            total += Decimal(row["usd_h"])
            notes[f"by the hour: {_short(kind)} {row['usd_h']} USD: {row['note']}"] = None
        elif bills == "machines":
            machines_counted = True
        elif bills == "use" and row:
            notes[f"by use: {kind.partition(':')[0]} {_short(kind)}: {row['note']}"] = None
        elif bills == "unknown":
            unknown = True
            notes[f"price unknown: {_short(kind)}{': ' + row['note'] if row and row['note'] else ''}"] = None
    if machines_counted:
        unknown = unknown or machines is None
        total += machines or 0
    return Price(None if unknown else total, tuple(notes))


def _row(kind: str) -> Mapping[str, str] | None:
    """Return the first matching row of billing.csv."""
    return next((row for row in _rows() if fnmatchcase(kind, row["kind"])), None)


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _short(kind: str) -> str:
    """Return the class in a type: `Bucket` for `aws:s3/bucket:Bucket`."""
    return kind.rpartition(":")[2]
