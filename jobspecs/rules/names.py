"""Check the names in a job file: a name that exists on none of the requested clouds is a mistake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from .. import catalog
from ..diagnostics import Loc, Problem, quote
from ..models import AcceleratorRequest, JobSpec
from ..suggest import did_you_mean, odd_character
from ..targets import info
from ..units import CountRange
from .accelerator_hints import accelerator_hint
from .base import Request, listing
from .machine_names import machine_type_hint
from .machines import accelerator_known
from .places import zone_hint, zone_regions
from .stores import check_variables


class _Kind(NamedTuple):
    """Kind of name, such as regions, of which each cloud has its own."""

    code: str
    what: str
    names: Callable[[str], Collection[str]]
    """Function that returns a cloud's names of this kind."""


_MACHINE_TYPES = _Kind("unknown-machine-type", "machine type", catalog.machine_types)
_REGIONS = _Kind("unknown-region", "region", catalog.regions)
_ZONES = _Kind("unknown-zone", "zone", catalog.zones)


def check_names(spec: JobSpec) -> list[Problem]:
    """Return problems with names, such as those unknown on all requested clouds.

    A name that is unknown on some clouds is no problem: the planner refuses these clouds. Accelerators and machine
    types that are retired everywhere are warnings: the name is valid, and the planner reports when it was retired and
    what replaces it.
    """
    asked = [cloud for cloud in spec.resources.cloud or catalog.CLOUDS if cloud in catalog.CLOUDS]
    problems = [*_accelerators(spec, asked), *_repeated(spec), *check_variables(spec)]
    if asked:  # a job for `local` only: the planner refuses fields that the target cannot honour
        problems += _machine_types(spec, asked)
        problems += _unknown(_REGIONS, _listed("region", spec.resources.region), asked)
        problems += _zones(spec, asked)
    return problems


def _accelerators(spec: JobSpec, clouds: Sequence[str]) -> Iterator[Problem]:
    for loc, name in _accelerator_names(spec):
        verdict = accelerator_known(Request(cloud="", today="", accelerator=name))
        if verdict is not None:
            hint = accelerator_hint(name) or verdict.allowed
            yield Problem(loc, "unknown-accelerator", verdict.message, _with_odd_character(hint, name))
            continue
        found = catalog.find_accelerator(name)
        known = catalog.accelerator_status(found.name) if found else {}
        status = [known[cloud] for cloud in clouds if cloud in known]
        if status and all(value == "retired" for value in status):
            yield _gone(loc, "retired-accelerator", name, clouds)


def _with_odd_character(hint: str, name: str) -> str:
    return "; ".join(filter(None, (hint, odd_character(name) and f"there is {odd_character(name)}")))


def _repeated(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each accelerator that is in a list twice, under two names."""
    for loc, requests in _accelerator_lists(spec):
        seen: dict[tuple[str, CountRange], AcceleratorRequest] = {}
        for index, request in enumerate(requests if len(requests) > 1 else ()):
            found = catalog.find_accelerator(request.name) if request.name else None
            first = seen.setdefault((found.name, request.count), request) if found else request
            if first is not request:
                message = f"{quote(request)} is the same as {quote(first)}, which stands in this list"
                yield Problem((*loc, index), "duplicate-entry", message, "delete one of them")


def _accelerator_names(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    for loc, requests in _accelerator_lists(spec):
        for index, request in enumerate(requests):
            if request.name is not None:
                yield (*loc, index), request.name


def _accelerator_lists(spec: JobSpec) -> Iterator[tuple[Loc, Sequence[AcceleratorRequest]]]:
    yield ("resources", "accelerator"), spec.resources.accelerator
    for name, role in (spec.roles or {}).items():
        yield ("roles", name, "accelerator"), role.accelerator


def _machine_types(spec: JobSpec, clouds: Sequence[str]) -> Iterator[Problem]:
    named: list[tuple[Loc, str | None]] = [(("resources", "machine_type"), spec.resources.machine_type)]
    named += [(("roles", name, "machine_type"), role.machine_type) for name, role in (spec.roles or {}).items()]
    names = [(loc, name) for loc, name in named if name is not None]
    yield from _unknown(_MACHINE_TYPES, names, clouds)
    for loc, name in names:
        found = [m for cloud in clouds for m in catalog.machine_types(cloud).get(name, ())]
        if found and all(machine.status == "retired" for machine in found):
            yield _gone(loc, "retired-machine-type", name, clouds)


def _gone(loc: Loc, code: str, name: str, clouds: Sequence[str]) -> Problem:
    message = f"{name} is no longer available on {listing(list(clouds))}"
    return Problem(loc, code, message, "`cloudgpu plan` names the closest that is", severity="warning")


def _zones(spec: JobSpec, asked: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each zone that is unknown or outside of the requested regions.

    If no requested cloud lets a job choose its zone, the planner reports that (rule `zone-choice`).
    """
    clouds = [cloud for cloud in asked if info(cloud).zones]
    if not clouds:
        return
    named = _listed("zone", spec.resources.zone)
    yield from _unknown(_ZONES, named, clouds)
    regions = spec.resources.region
    for loc, zone in named:
        homes = {zone_regions(cloud)[zone] for cloud in clouds if zone in zone_regions(cloud)}
        if regions is not None and homes and homes.isdisjoint(regions):
            (home,) = homes
            yield Problem(
                loc, "zone-in-region", f"{zone} is a zone of {home}, not of {listing(list(regions))}", f"region: {home}"
            )


def _listed(field: str, values: Sequence[str] | None) -> list[tuple[Loc, str]]:
    return [(("resources", field, index), value) for index, value in enumerate(values or ())]


def _unknown(kind: _Kind, named: Sequence[tuple[Loc, str]], clouds: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each name that no requested cloud has; it names clouds that have it, else similar names."""
    for loc, name in named:
        if any(name in kind.names(cloud) for cloud in clouds):
            continue
        elsewhere = [cloud for cloud in catalog.CLOUDS if name in kind.names(cloud)]
        if elsewhere:
            message = f"{name} is a {kind.what} of {listing(elsewhere)}; the job asks for {listing(list(clouds))}"
            yield Problem(loc, kind.code, message, f"cloud: {elsewhere[0]}")
            continue
        message = f"{listing(list(clouds))}: no {kind.what} named {name!r} in the tables"
        yield Problem(loc, kind.code, message, _with_odd_character(_hint(kind, name, clouds), name))


def _hint(kind: _Kind, name: str, clouds: Sequence[str]) -> str:
    """Return a hint with similar names; "" if there are none."""
    if kind is _MACHINE_TYPES:
        return machine_type_hint(name, clouds)
    options = sorted({option for cloud in clouds for option in kind.names(cloud)})
    return (zone_hint(name) if kind is _ZONES else "") or did_you_mean(name, options)
