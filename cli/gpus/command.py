"""`cloudgpu gpus`: list the catalog's accelerators, machine types, regions and prices."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click

from ...jobspecs.targets import WITH_TABLES
from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.options import json_option
from ..shared.output import echo_json

if TYPE_CHECKING:
    from ...jobspecs.catalog import Accelerator
    from ...jobspecs.units import CountRange, SizeRange


@click.command()
@click.argument("query", metavar="[NAME[:COUNT]|MEMORY]", required=False)
@click.option("--cloud", type=click.Choice(WITH_TABLES), help="Only what this cloud sells.")
@click.option("--region", metavar="REGION", help="Only what is sold in this region, with its zones.")
@json_option
def command(query: str | None, cloud: str | None, region: str | None, as_json: bool) -> None:
    """List the accelerators that can be had, or with NAME the machine types that carry it.

    \b
    cloudgpu gpus
    cloudgpu gpus A100-80GB --cloud gcp
    cloudgpu gpus A100:8
    cloudgpu gpus 24GB..
    cloudgpu gpus nvidia-tesla-t4 --region europe-west4

    NAME is an accelerator's name or any name a provider or driver gives it, COUNT the GPUs of a machine, MEMORY that of
    one GPU: 24GB.. is that or more. Prices are list prices of the machine with its GPUs, without disk, on the day
    shown; cloudgpu asks no provider. Each price is the lowest of all regions, shown with its region.
    """
    from . import view as gpus_view
    from .data import Scope

    name, memory, gpus = _parse(query)
    scope = Scope(
        clouds=(cloud,) if cloud else WITH_TABLES,
        region=region if region is None else _known_region(region, cloud),
        today=datetime.datetime.now(datetime.UTC).date().isoformat(),
        memory=memory,
        gpus=gpus,
    )
    if name is None:
        summaries = scope.summaries()
        if as_json:
            echo_json([gpus_view.summary_json(summary) for summary in summaries])
        else:
            click.echo(gpus_view.summaries_text(summaries, scope))
        return
    accelerator = _known_accelerator(name)
    offers = scope.offers(accelerator.name)
    if as_json:
        echo_json(gpus_view.accelerator_json(accelerator, offers))
    else:
        click.echo(gpus_view.accelerator_text(accelerator, offers, scope))


def _parse(query: str | None) -> tuple[str | None, SizeRange | None, CountRange | None]:
    """Split a query such as `A100:8`, `24GB..` or `24GB..:2` into name, memory range and GPU count range."""
    from ...jobspecs.units import CountRange, SizeRange

    if query is None:
        return None, None, None
    what, colon, count = (part.strip() for part in query.partition(":"))
    try:
        gpus = CountRange.parse(count) if colon else None
        if what[:1] in {*".0123456789"}:  # no accelerator's name starts with these
            return None, SizeRange.parse(what), gpus
    except ValueError as error:
        raise CommandError(
            f"{query!r}: {error}", hint="cloudgpu gpus A100:8, or 24GB..", exit_code=Exit.USAGE
        ) from error
    return what, None, gpus


def _known_accelerator(name: str) -> Accelerator:
    from ...jobspecs import catalog
    from ...jobspecs.rules.machine_names import spelt_otherwise
    from ...jobspecs.suggest import did_you_mean

    found = catalog.find_accelerator(name)
    if found is not None:
        return found
    machine_type = spelt_otherwise(name, catalog.CLOUDS)
    carried = [
        machine.accelerator
        for cloud in catalog.CLOUDS
        for machine in catalog.machine_types(cloud).get(machine_type or "", ())
        if machine.accelerator is not None
    ]
    if carried:
        hint = f"{machine_type} is a machine type: see cloudgpu gpus {carried[0]}"
    else:
        names = [n for known in catalog.accelerators().values() for n in (known.name, *known.aliases)]
        hint = did_you_mean(name, names) or "cloudgpu gpus lists them all"
    raise CommandError(f"there is no accelerator named {name!r}", hint=hint, exit_code=Exit.USAGE)


def _known_region(region: str, cloud: str | None) -> str:
    from ...jobspecs import catalog
    from ...jobspecs.suggest import did_you_mean

    known = frozenset[str]().union(*map(catalog.regions, (cloud,) if cloud else catalog.CLOUDS))
    if region in known:
        return region
    where = f"{cloud} has" if cloud else "there is"
    hint = did_you_mean(region, sorted(known)) or "known: " + ", ".join(sorted(known))
    raise CommandError(f"{where} no region {region!r} with GPUs", hint=hint, exit_code=Exit.USAGE)
