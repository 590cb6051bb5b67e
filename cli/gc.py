"""`cloudgpu gc`: machines that no job needs any more."""

from __future__ import annotations

import click

from .exits import Exit
from .options import json_option, yes_option
from .output import Column, can_ask, echo_json, echo_table, remark

_MACHINES = (
    Column("target"),
    Column("job"),
    Column("attempt", right=True),
    Column("machines", right=True),
    Column("ids", least=16),
)


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Only show them.")
@yes_option
@json_option
def command(*, dry_run: bool, yes: bool, as_json: bool) -> Exit | None:
    """Find machines tagged as cloudgpu's whose job has ended or is unknown, and end them.

    \b
    cloudgpu gc --dry-run
    cloudgpu gc --yes

    Without --yes they are shown and asked for; where nobody can be asked, nothing is ended.
    """
    from ..control.jobs import orphans, terminate_orphan

    found = orphans()
    if as_json:
        echo_json([allocation.to_json() for allocation in found])
    elif found:
        echo_table(
            _MACHINES,
            [[a.target, a.job_id, str(a.attempt), str(len(a.machines)), ", ".join(a.machines.values())] for a in found],
        )
    else:
        remark("nothing to do: every machine belongs to a job that runs")
    if not found or dry_run:
        return None
    if not yes:
        if not can_ask():
            remark("nothing was ended: add --yes")
            return Exit.USAGE
        click.confirm(f"end the machines of {len(found)} attempts?", err=True, abort=True)
    for allocation in found:
        terminate_orphan(allocation)
        remark(f"ended {len(allocation.machines)} machines of {allocation.job_id}, attempt {allocation.attempt}")
    return None
