"""A Plan as text of at most 100 columns: offers, refusals with reasons, and the resources that `submit` would
create."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ....jobspecs.targets import info
from ....jobspecs.unit_text import format_duration, format_size
from ..output import Column, clean, columns, style, table
from ..text import money

if TYPE_CHECKING:
    from ....jobspecs.models import JobSpec, Limits
    from ....jobspecs.plan import Offer, Plan, Refusal, RoleOffer

MAX_OFFERS = 10
MAX_REFUSALS = 8
UNKNOWN = "unknown"
_CENT = Decimal("0.01")
_HEADS = (
    Column("#", right=True),
    Column("cloud"),
    Column("region, zones", least=10),
    Column("machine", least=14),
    Column("GPUs", least=8, spare=1),
    Column("market", spare=2),
    Column("USD/h", right=True),
    Column("price of", spare=3),
)
Places = tuple["Offer", ...]
"""Offers that differ only by their zone, shown as one table row."""


def plan_text(plan: Plan, spec: JobSpec, *, show_all: bool = False) -> str:
    """Return the whole plan: offers, cheaper refused ones, other refusals, what `submit` would create, limits."""
    parts = [offers_text(plan, show_all=show_all), refusals_text(plan, show_all=show_all)]
    if plan.best is not None:
        parts.append(creation_text(plan.best, spec))
    return "\n\n".join(filter(None, parts))


def plan_json(plan: Plan, spec: JobSpec) -> dict[str, Any]:
    """Return the plan for scripts. docs/explanation/planning.md describes the keys; new versions may add keys, but
    remove none."""
    return {"name": spec.name, **plan.to_json()}


def offers_text(plan: Plan, *, show_all: bool = False) -> str:
    """Return the table of offers and the notes on them; "" without offers."""
    rows = one_row_per_region(plan.offers)
    if not rows:
        return ""
    shown = rows if show_all else rows[:MAX_OFFERS]
    lines = [table(_HEADS, [line for number, row in enumerate(shown, 1) for line in _lines(number, row)])]
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown):,} more (--all)")
    notes: dict[str, list[int]] = {}
    for number, row in enumerate(shown, 1):
        for note in row[0].notes:
            notes.setdefault(note, []).append(number)
    lines += [_wrapped(f"{_numbers(found)}: {note}", "  ") for note, found in notes.items()]
    return "\n".join(lines)


def refusals_text(plan: Plan, *, show_all: bool = False) -> str:
    """Return the refused options cheaper than the best offer, with prices and reasons; then the other refusals."""
    best = None if plan.best is None else plan.best.price
    cheaper = [r for r in plan.refusals if r.price is not None and (best is None or r.price < best)]
    cheaper.sort(key=lambda refusal: refusal.price or Decimal(0))
    others = sorted((r for r in plan.refusals if r not in cheaper), key=_by_rule_and_price)
    sections = []
    for title, refusals in (("Cheaper, but refused", cheaper), ("Refused", others)):
        if plan.best is None and title.startswith("Cheaper"):
            title = "Refused, with known prices"  # noqa: PLW2901 - without an offer, "cheaper" has no meaning
        if refusals:
            sections.append("\n".join([style(f"{title}:", "title"), *_refusal_lines(refusals, show_all=show_all)]))
    return "\n\n".join(sections)


def _by_rule_and_price(refusal: Refusal) -> tuple[str, bool, Decimal]:
    return (refusal.rule, refusal.price is None, refusal.price or Decimal(0))


def offer_text(offer: Offer) -> str:
    """Return an offer as `gcp us-central1-a spot: 2 × g2-standard-4 + L4:1, 0.56 USD/h`; a price of 0 is left out."""
    machines = ", ".join(
        (f"{role.nodes} × " if role.nodes > 1 else "")
        + (role.role if info(offer.cloud).is_here else role.machine_type)
        + (f" + {accelerator_text(role)}" if role.accelerator else "")
        for role in offer.roles
    )
    price = "price unknown" if offer.price is None else f"{money(offer.price)}/h"
    if offer.price_at_most:
        price = f"at most {price}"
    elif offer.price_from is not None:
        price = f"from {money(offer.price_from)}/h"
    return f"{offer.place}: {machines}" + ("" if offer.price == 0 else f", {price}")


def creation_text(offer: Offer, spec: JobSpec) -> str:
    """Return what submitting would create (or use, on a cluster) for this offer, and the job's limits."""
    stays = info(offer.cloud).outlives_jobs
    lines = [style("It would use:" if stays else "It would create:", "title")]
    lines += [f"  {_machines(role, offer)}" for role in offer.roles]
    if not info(offer.cloud).is_here and not stays:
        lines.append(f"  {_count(offer.nodes, 'disk')} of {format_size(offer.disk_gb)}, deleted with the machines")
    if spec.recover == "fleet" and not stays:
        lines.append("  1 group of these machines, which replaces lost ones, and is empty when the job has ended")
    lines.append(f"  1 folder for the job's code, logs, checkpoints and outputs in {_job_dir(offer, spec)}")
    limits = _limits(offer, spec.limits)
    if limits:
        lines += ["", style("Limits:", "title"), *(f"  {line}" for line in limits)]
    return "\n".join(_wrapped(line, "    ") if line else "" for line in lines)


def _job_dir(offer: Offer, spec: JobSpec) -> str:
    given = spec.job_dir_on(offer.cloud)
    if given is not None:
        return clean(given)
    if info(offer.cloud).is_here:
        return "the default job dir on this machine"
    return "a bucket both sides reach: name it with `job_dir`"


def one_row_per_region(offers: Sequence[Offer]) -> list[Places]:
    """Group consecutive offers that differ only by their zone; the planner ranks them next to each other."""
    return [tuple(group) for _, group in groupby(offers, key=_all_but_zone)]


def _all_but_zone(offer: Offer) -> Offer:
    return offer._replace(zone=None)


def _lines(number: int, row: Places) -> list[list[str]]:
    """Return one table line; with several roles, a line for the shared cells and one per role."""
    offer = row[0]
    shared = [str(number), offer.cloud, _places(row)]
    price = [offer.market, offer_price_text(offer), offer.price_date or "-"]
    if len(offer.roles) == 1:
        return [[*shared, *_machine(offer.roles[0]), *price]]
    roles = [["", "", f"  {role.role}", *_machine(role), "", "", ""] for role in offer.roles]
    return [[*shared, "", "", *price], *roles]


def _machine(role: RoleOffer) -> list[str]:
    several = f"{role.nodes} × " if role.nodes > 1 else ""
    return [f"{several}{role.machine_type}", accelerator_text(role)]


def _places(row: Places) -> str:
    """Return `us-central1 a,b,f` or `us-east-1 az1,az4`; the region alone if the provider chooses the zone."""
    if info(row[0].cloud).is_here:
        return "this machine"
    zones = [offer.zone.rpartition("-")[2] for offer in row if offer.zone]
    return " ".join(filter(None, (row[0].region, ",".join(zones))))


def accelerator_text(role: RoleOffer) -> str:
    """Return `L4:1`, as in the job file; `-` without an accelerator."""
    return f"{role.accelerator}:{role.count}" if role.accelerator else "-"


def price_text(price: Decimal | None) -> str:
    """Return US dollars to four places; `unknown` if there is no figure, never 0."""
    return UNKNOWN if price is None else f"{price:,.4f}"


def offer_price_text(offer: Offer) -> str:
    """Return `0.7068`; `≤ 1.0060` for an upper bound, `from 0.7068` for a lower one."""
    if offer.price_from is not None:
        return f"from {price_text(offer.price_from)}"
    return f"≤ {price_text(offer.price)}" if offer.price_at_most else price_text(offer.price)


def _refusal_lines(refusals: Sequence[Refusal], *, show_all: bool) -> list[str]:
    shown = refusals if show_all else refusals[:MAX_REFUSALS]
    lines = [_wrapped("  " + refusal_text(refusal), "    ") for refusal in shown]
    if len(refusals) > len(shown):
        lines.append(f"  … and {len(refusals) - len(shown):,} more (--all)")
    return lines


def refusal_text(refusal: Refusal) -> str:
    """Return `0.5000 USD/h  gcp g2-standard-4 + L4:3: what is wrong; what is allowed [rule]`; the price only if
    known."""
    price = "" if refusal.price is None else f"{price_text(refusal.price)} USD/h  "
    allowed = f"; {refusal.allowed}" if refusal.allowed else ""
    return clean(f"{price}{refusal.subject}: {refusal.message}{allowed} [{refusal.rule}]")


def _machines(role: RoleOffer, offer: Offer) -> str:
    if info(offer.cloud).is_here:
        what = f"{_count(role.nodes, 'process group')} ({role.role}) on {offer.place}"
        return f"{what}, each with {accelerator_text(role)}" if role.accelerator else what
    size = ", ".join(
        filter(
            None,
            (
                accelerator_text(role) if role.accelerator else "",
                f"{role.vcpus} vCPU" if role.vcpus else "",
                format_size(role.memory_gb) if role.memory_gb else "",
            ),
        )
    )
    return f"{_count(role.nodes, 'machine')} {role.machine_type} ({role.role}; {size}) in {offer.place}"


def _limits(offer: Offer, limits: Limits) -> list[str]:
    lines = []
    if limits.duration is not None:
        most = f"at most {format_duration(limits.duration)}, all attempts together"
        if offer.price is None:
            lines.append(f"{most}: cost unknown, for the price is")
        else:
            cost = (offer.price * limits.duration / 3600).quantize(_CENT)
            lines.append(f"{most}: at this price at most {cost:,} USD")
    if limits.cost is not None and offer.price is None:
        lines.append(f"{limits.cost} USD cannot be kept at an unknown price: `submit` leaves such offers out")
    elif limits.cost is not None:
        lines.append(f"at most {limits.cost} USD, all attempts together: then a checkpoint, then the end")
    if limits.price is not None:
        lines.append(f"at most {limits.price} USD/h for the whole job")
    if limits.gpu_idle is not None:
        lines.append(f"ends when no GPU did anything for {format_duration(limits.gpu_idle)}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _numbers(numbers: Iterable[int]) -> str:
    """Return 1, 2, 3, 7 as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(line, columns(), subsequent_indent=indent, break_long_words=True, break_on_hyphens=False)
