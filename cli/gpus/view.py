"""`cloudgpu gpus` as text of at most 100 columns and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from typing import Any

from ...jobspecs.catalog import CLOUDS, Accelerator, host_cloud
from ...jobspecs.rules.base import listing, refresh_command
from ..shared.output import Column, columns, style, table
from .data import Cheapest, MachineOffer, Scope, Summary

_MARKETS = ("on-demand", "spot", "flex-start", "reservation")
"""Markets in display order."""
_MILL = Decimal("0.001")
_UNKNOWN = "unknown"
_SUMMARY = (
    Column("accelerator"),
    Column("memory", right=True, spare=1),
    Column("architecture", least=9, spare=4),
    Column("clouds"),
    Column("USD/GPU-h", right=True),
    Column("on demand in", least=17, spare=2),
    Column("price of", spare=3),
)
_MACHINES = (
    Column("machine type"),
    Column("GPUs", right=True),
    Column("vCPUs", right=True, spare=3),
    Column("memory", right=True, spare=2),
)
_ON_DEMAND = Column("USD/h", least=16)
_SPOT = Column("spot USD/h", least=16, spare=1)
_DATE = Column("price of", spare=4)
_ANYWHERE = Column("regions", right=True, spare=5)
_IN_REGION = Column("zones", least=8)


def summaries_text(summaries: Sequence[Summary], scope: Scope) -> str:
    """Return the table of accelerators, and the announced ends of support."""
    if not summaries:
        kind = f" with {scope.memory} each" if scope.memory else ""
        return f"No {_number(scope)}accelerator{kind} is sold {_where(scope)}."
    remarks = [
        *_ends(summaries),
        "A machine's list price for each of its GPUs. cloudgpu gpus NAME shows machine types.",
    ]
    lines = [line for remark in remarks for line in textwrap.wrap(remark, columns())]
    return "\n".join([table(_SUMMARY, [_summary_row(summary) for summary in summaries]), "", *lines])


def _ends(summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield sentences such as `T4: gcp and vertex end it on 2027-08-01.`"""
    for summary in summaries:
        for end in sorted({end for end in summary.clouds.values() if end is not None}):
            clouds = [cloud for cloud in summary.clouds if summary.clouds[cloud] == end]
            yield f"{summary.accelerator.name}: {' and '.join(clouds)} end{'s' * (len(clouds) == 1)} it on {end}."


def _summary_row(summary: Summary) -> list[str]:
    accelerator, cheapest = summary.accelerator, summary.cheapest
    return [
        accelerator.name,
        f"{accelerator.memory_gb:g} GB",
        accelerator.architecture,
        " ".join(summary.clouds),
        _UNKNOWN if cheapest is None else _amount(cheapest.per_gpu),
        "" if cheapest is None else f"{cheapest.cloud} {cheapest.region}",
        "" if cheapest is None else cheapest.date,
    ]


def accelerator_text(accelerator: Accelerator, offers: Sequence[MachineOffer], scope: Scope) -> str:
    """Return the accelerator's description, then its machine types, grouped by cloud and markets."""
    parts = [_description(accelerator)]
    sold = [offer for offer in offers if not offer.retired]
    gone = [offer for offer in offers if offer.retired]
    parts += [_group_text(list(group), scope) for _, group in groupby(sorted(sold, key=_group_key), key=_group_key)]
    if not sold:
        parts.append(f"No machine with {_number(scope)}{accelerator.name} can be had {_where(scope)}.")
        parts += _other_counts(accelerator, scope)
    if gone:
        parts.append(_gone_text(gone))
    return "\n\n".join(parts)


def _description(accelerator: Accelerator) -> str:
    facts = [f"{accelerator.vendor} {accelerator.architecture}", f"{accelerator.memory_gb:g} GB"]
    if accelerator.bandwidth_gb_s:
        facts.append(f"{accelerator.bandwidth_gb_s:,g} GB/s")
    if accelerator.compute_capability:
        facts.append(f"compute capability {accelerator.compute_capability}")
    if accelerator.fp16_tflops:
        facts.append(f"{accelerator.fp16_tflops:,g} TFLOPS in fp16")
    if accelerator.mig_slices:
        facts.append(f"up to {accelerator.mig_slices} MIG slices")
    lines = textwrap.wrap(", ".join(facts), columns() - 2, initial_indent="  ", subsequent_indent="  ")
    if accelerator.aliases:
        names = "also: " + ", ".join(accelerator.aliases)
        lines += textwrap.wrap(names, columns() - 2, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([style(accelerator.name, "title"), *lines])


def _group_key(offer: MachineOffer) -> tuple[int, tuple[str, ...], str, str]:
    machine = offer.machine
    return (CLOUDS.index(machine.cloud), _markets(offer), machine.ends or "", machine.arch)


def _markets(offer: MachineOffer) -> tuple[str, ...]:
    return tuple(market for market in _MARKETS if market in offer.machine.markets)


def _group_text(offers: Sequence[MachineOffer], scope: Scope) -> str:
    machine = offers[0].machine
    title = f"{machine.cloud}: {', '.join(_markets(offers[0]))}"
    if machine.arch != "x86_64":
        title += f"; {machine.arch}"
    if machine.ends:
        title += f"; support ends {machine.ends}"
    markets = [("on-demand", _ON_DEMAND)]
    if any("spot" in offer.prices for offer in offers):
        markets.append(("spot", _SPOT))
    heads = [*_MACHINES, *(column for _, column in markets), _DATE, _IN_REGION if scope.region else _ANYWHERE]
    prices = [_prices(offers, market, scope) for market, _ in markets]
    rows = [
        [
            *_size(offer),
            *cells,
            _date(offer),
            _zones(offer.places[scope.region]) if scope.region else str(len(offer.places)),
        ]
        for offer, *cells in zip(offers, *prices, strict=True)
    ]
    lines = [style(title, "title"), table(heads, rows, indent=2)]
    for text in _notes(offers):
        lines += textwrap.wrap(text, columns() - 2, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _size(offer: MachineOffer) -> list[str]:
    machine = offer.machine
    return [
        machine.name,
        ", ".join(map(str, offer.counts)),
        _UNKNOWN if machine.vcpus is None else str(machine.vcpus),
        _UNKNOWN if machine.memory_gb is None else f"{machine.memory_gb:g} GB",
    ]


def _prices(offers: Sequence[MachineOffer], market: str, scope: Scope) -> list[str]:
    """Return each offer's lowest price in the market, with its region unless the query names one."""
    amounts = [_price(offer, market) for offer in offers]
    width = max(map(len, amounts))
    cells = []
    for offer, amount in zip(offers, amounts, strict=True):
        place = offer.prices[market].region if market in offer.prices and not scope.region else ""
        cells.append(f"{amount:>{width}} {place}".rstrip())
    return cells


def _date(offer: MachineOffer) -> str:
    """Return the oldest date of the shown prices; "" if no price is known."""
    return min((found.price.date for found in offer.prices.values()), default="")


def _notes(offers: Sequence[MachineOffer]) -> list[str]:
    """Return the catalog's notes on these machine types, each once."""
    names: dict[str, list[str]] = {}
    for offer in offers:
        if offer.machine.note:
            names.setdefault(offer.machine.note, []).append(offer.machine.name)
    notes = [note if len(found) == len(offers) else f"{', '.join(found)}: {note}" for note, found in names.items()]
    if "spot" in offers[0].machine.markets and not any("spot" in offer.prices for offer in offers):
        cloud = offers[0].machine.cloud
        asks = f"; {refresh_command(cloud)}" if host_cloud(cloud) == cloud else ""  # no table has Vertex AI's prices
        notes.append(f"spot prices unknown{asks}")
    placeless = [offer.machine.name for offer in offers if not offer.places]
    if placeless:
        cloud = offers[0].machine.cloud
        notes.append(f"{', '.join(placeless)}: no region is known; {refresh_command(cloud)}")
    return notes


def _zones(zones: Sequence[str]) -> str:
    """Return zones as `us-central1-a, -b, -f`; `any` if the provider chooses or the zones are unknown."""
    if not zones:
        return "any"
    return ", ".join([zones[0], *("-" + zone.rpartition("-")[2] for zone in zones[1:])])


def _gone_text(offers: Sequence[MachineOffer]) -> str:
    lines = [style("No longer to be had:", "title")]
    for (cloud, ends, note), group in groupby(sorted(offers, key=_gone_key), key=_gone_key):
        names = ", ".join(offer.machine.name for offer in group)
        text = f"{cloud}{' since ' + ends if ends else ''}: {names}{f' ({note})' if note else ''}"
        lines += textwrap.wrap(text, columns() - 2, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _gone_key(offer: MachineOffer) -> tuple[str, str, str]:
    return (offer.machine.cloud, offer.machine.ends or "", offer.machine.note)


def _other_counts(accelerator: Accelerator, scope: Scope) -> list[str]:
    """Return a line with the available GPU counts, if the query asked for another count."""
    others = replace(scope, gpus=None).offers(accelerator.name) if scope.gpus else []
    counts = sorted({count for offer in others if not offer.retired for count in offer.counts})
    return [f"Machines have {listing(list(map(str, counts)), 12)}."] if counts else []


def _number(scope: Scope) -> str:
    """Return the requested GPU count with a trailing space, such as `8 `; "" without one."""
    return f"{scope.gpus} " if scope.gpus else ""


def _where(scope: Scope) -> str:
    place = f"in {scope.region}" if scope.region else "today"
    return f"{place} on {scope.clouds[0]}" if len(scope.clouds) == 1 else place


def _price(offer: MachineOffer, market: str) -> str:
    if market not in offer.machine.markets:
        return "-"
    return _amount(offer.prices[market].price.amount) if market in offer.prices else _UNKNOWN


def _amount(amount: Decimal) -> str:
    return f"{amount.quantize(_MILL, ROUND_HALF_UP):,}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def summary_json(summary: Summary) -> dict[str, Any]:
    return {
        **_facts_json(summary.accelerator),
        "clouds": {cloud: {"ends": end} for cloud, end in summary.clouds.items()},
        "cheapest_on_demand": None if summary.cheapest is None else _cheapest_json(summary.cheapest),
    }


def accelerator_json(accelerator: Accelerator, offers: Sequence[MachineOffer]) -> dict[str, Any]:
    return {
        **_facts_json(accelerator),
        "aliases": list(accelerator.aliases),
        "machine_types": [_offer_json(offer) for offer in offers],
    }


def _facts_json(accelerator: Accelerator) -> dict[str, Any]:
    return {
        "name": accelerator.name,
        "vendor": accelerator.vendor,
        "kind": accelerator.kind,
        "architecture": accelerator.architecture,
        "memory_gb": accelerator.memory_gb,
        "bandwidth_gb_s": accelerator.bandwidth_gb_s,
        "compute_capability": accelerator.compute_capability or None,
        "fp16_tflops": accelerator.fp16_tflops,
        "bf16_tflops": accelerator.bf16_tflops,
        "fp32_tflops": accelerator.fp32_tflops,
        "mig_slices": accelerator.mig_slices,
    }


def _cheapest_json(cheapest: Cheapest) -> dict[str, Any]:
    return {
        "usd_gpu_h": str(cheapest.per_gpu),
        "cloud": cheapest.cloud,
        "region": cheapest.region,
        "machine_type": cheapest.machine_type,
        "date": cheapest.date,
    }


def _offer_json(offer: MachineOffer) -> dict[str, Any]:
    machine = offer.machine
    return {
        "cloud": machine.cloud,
        "machine_type": machine.name,
        "counts": [str(count) for count in offer.counts],
        "vcpus": machine.vcpus,
        "memory_gb": machine.memory_gb,
        "arch": machine.arch,
        "markets": list(_markets(offer)),
        "status": "retired" if offer.retired else machine.status,
        "ends": machine.ends,
        "note": machine.note,
        "places": {region: list(zones) for region, zones in offer.places.items()},
        "cheapest": {
            market: {
                "usd_h": str(found.price.amount),
                "region": found.region,
                "date": found.price.date,
                "source": found.price.source,
            }
            for market, found in offer.prices.items()
        },
    }
