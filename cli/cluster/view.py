"""Show clusters: machines, those that answer, running jobs and the queue."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from ..shared.output import Column, clean, echo_json, echo_table, style, warning
from ..shared.text import duration
from .expiry import expiry_cell

if TYPE_CHECKING:
    from ...provisioners.cluster.cluster_state import QueuedJob, Snapshot
    from ...provisioners.stacks.clusters import Cluster

_HEADS = (
    Column("cluster"),
    Column("cloud"),
    Column("region"),
    Column("machines"),
    Column("type", least=10),
    Column("GPUs"),
    Column("market"),
    Column("USD/h", right=True),
    Column("expires"),
)
_QUEUE = (Column("job"), Column("attempt", right=True), Column("machines"), Column("state"))
_SHOWN = 5
"""Maximum number of unusable machines to list, newest first."""


def echo_clusters(found: Sequence[Cluster], *, as_json: bool) -> None:
    """Print the clusters with the state in their folders, if it can be read."""
    both = [(one, _state_of(one)) for one in found]
    if as_json:
        echo_json([{**one.to_json(), "now": seen and seen.to_json()} for one, seen in both])
        return
    echo_table(_HEADS, [_row(one, seen) for one, seen in both])
    for one, seen in both:
        if seen is not None:
            _echo_seen(one, seen)


def _state_of(cluster: Cluster) -> Snapshot | None:
    from ...provisioners import ProvisionError
    from ...provisioners.cluster.cluster_state import snapshot

    try:
        return snapshot(cluster)
    except ProvisionError as error:
        warning(f"what the machines of {cluster.name} do is not known: {error}")
        return None


def _row(cluster: Cluster, seen: Snapshot | None) -> list[str]:
    fleet = cluster.fleet
    price = None if cluster.price_usd_h is None else Decimal(cluster.price_usd_h) * fleet.size
    gpus = f"{fleet.accelerator}:{fleet.gpus}" if fleet.accelerator else "-"
    shown = "unknown" if price is None else f"{price:,.4f}"
    machines = f"{'?' if seen is None else seen.answering} of {fleet.size}"
    where = [cluster.name, fleet.cloud, fleet.region, machines]
    return [*where, fleet.machine_type, gpus, fleet.market, shown, expiry_cell(cluster.expires)]


def _echo_seen(cluster: Cluster, seen: Snapshot) -> None:
    if seen.queue:
        click.echo(f"\n{style(f'jobs on {cluster.name}', 'title')}")
        rows = [[one.job_id, str(one.attempt), f"{one.machines} of {one.nodes}", _state(one)] for one in seen.queue]
        echo_table(_QUEUE, rows, indent=2)
    for machine in seen.suspects:
        warning(f"{machine} of {cluster.name} may be broken, for jobs fail there: it gets none while others are free")
    for failed in seen.unusable[:_SHOWN]:
        ago = duration(failed.seconds_ago)
        warning(f"{failed.machine} of {cluster.name} could not be used, {ago} ago: {clean(failed.reason)}")
    if len(seen.unusable) > _SHOWN:
        warning(f"{len(seen.unusable) - _SHOWN} more machines of {cluster.name} could not be used before")


def _state(turn: QueuedJob) -> str:
    """Return the state of a queued job: `runs`, `waits for machines`, `waits, after 2 other jobs`."""
    if turn.machines == turn.nodes:
        return "runs"
    others = "job" if turn.after == 1 else "jobs"
    return f"waits, after {turn.after} other {others}" if turn.after else "waits for machines"
