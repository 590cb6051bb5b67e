"""`cloudgpu catalog`: show and refresh the tables of machine types, places, prices and quotas that planning uses."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from ...jobspecs.targets import WITH_TABLES
from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.options import json_option
from ..shared.output import Column, ProgressLine, echo_json, echo_table, remark

if TYPE_CHECKING:
    from ...provisioners.shared.refresh import Outcome
    from .data import Entry

_OUTCOMES = (Column("table"), Column("state"), Column("facts", right=True))
_TABLES = (
    Column("table"),
    Column("from"),
    Column("oldest row"),
    Column("newest", spare=1),
    Column("rows", right=True),
    Column("regions asked", least=14),
)


@click.group()
def command() -> None:
    """Look at the tables that plans are made from, and ask a provider for newer ones.

    \b
    cloudgpu catalog refresh --cloud aws --region us-east-1 --region eu-west-1
    cloudgpu catalog refresh --cloud gcp --region us-central1
    cloudgpu catalog refresh --cloud azure --region eastus
    cloudgpu catalog show
    cloudgpu catalog reset

    The tables that come with cloudgpu are months old, as `show` says; Spot prices of AWS and Azure, and your account's
    quotas, are not among them.
    """


@command.command(short_help="Ask a provider for types, places, prices and quotas.")
@click.option(
    "--cloud", type=click.Choice(WITH_TABLES), default=WITH_TABLES[0], show_default=True, help="The provider to ask."
)
@click.option("--region", "regions", metavar="REGION", multiple=True, help="Only these; else all that are enabled.")
@json_option
def refresh(*, cloud: str, regions: tuple[str, ...], as_json: bool) -> Exit:
    """Ask a provider for machine types, places, prices and quotas, with your credentials; nothing is created.

    A table that cannot be had whole, or whose answer looks wrong, is left as it was: it is named with the reason, and
    the exit code is 6. What is known of regions that are not asked stays. Vertex AI's machines are Compute Engine's:
    `vertex` asks what `gcp` does.
    """
    from ...jobspecs.catalog import host_cloud
    from ...provisioners.shared.refresh import ask

    host = host_cloud(cloud)
    if host != cloud:
        remark(f"the machines of {cloud} are those of {host}: both are refreshed")
    with ProgressLine() as progress:
        outcomes = list(ask(host, regions, lambda done, of: progress(f"asking {host}: {done:,} of {of:,} answers")))
    if as_json:
        echo_json([_outcome_json(outcome) for outcome in outcomes])
    else:
        echo_table(_OUTCOMES, [_outcome_row(outcome) for outcome in outcomes])
    for outcome in outcomes:
        if outcome.reason and outcome.state == "refreshed":
            remark(f"{outcome.table}: {outcome.reason}")
    kept = [outcome for outcome in outcomes if outcome.state == "kept"]
    if not kept:
        return Exit.OK
    reasons = "\n".join(f"  {outcome.table}: {outcome.reason}" for outcome in kept)
    raise CommandError(
        f"{len(kept)} of {len(outcomes)} tables were left as they were:\n{reasons}",
        hint="--region leaves out regions that cannot be asked; docs/guides/catalog.md lists the permissions",
        exit_code=Exit.UNAVAILABLE,
    )


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {"table": outcome.table, "state": outcome.state, "facts": outcome.facts, "reason": outcome.reason}


def _outcome_row(outcome: Outcome) -> list[str]:
    return [outcome.table, outcome.state, f"{outcome.facts:,}" if outcome.state == "refreshed" else "-"]


@command.command(short_help="List the tables in use, their age and where they are from.")
@click.argument("table", required=False)
@json_option
def show(*, table: str | None, as_json: bool) -> None:
    """List the tables in use, the days of their rows and where they are from; or print the rows of TABLE.

    \b
    cloudgpu catalog show
    cloudgpu catalog show quotas_aws
    """
    from . import data as catalog_data

    if table is not None:
        columns, rows = catalog_data.rows(table)
        if as_json:
            echo_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            echo_table([Column(name, least=8) for name in columns], rows)
        return
    now = datetime.datetime.now(datetime.UTC)
    found = catalog_data.tables()
    if as_json:
        echo_json([entry._asdict() for entry in found])
        return
    echo_table(_TABLES, [_table_row(entry, now) for entry in found])
    for entry in found:
        if entry.remark:
            remark(f"{entry.table}: {entry.remark}")


def _table_row(entry: Entry, now: datetime.datetime) -> list[str]:
    from .data import age

    origin = f"{entry.origin} {entry.written[:10]}".rstrip()
    oldest = f"{entry.oldest} ({age(entry.oldest, now)})" if entry.oldest else "-"
    return [entry.table, origin, oldest, entry.newest or "-", f"{entry.rows:,}", ", ".join(entry.regions) or "-"]


@command.command(short_help="Go back to the tables that come with cloudgpu.")
def reset() -> None:
    """Go back to the tables that come with cloudgpu: remove those that were refreshed."""
    from ...provisioners.shared.refresh import reset as forget

    removed = forget()
    remark(f"removed: {', '.join(removed)}" if removed else "nothing to do: no table was refreshed")
