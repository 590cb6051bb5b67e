"""Convert the refusals of a job that has no offer to problems: one per cause, at the job file's key that causes it.

The planner returns refusals for each cloud. Those for one key and the same reason are merged into one problem. If the
reasons differ, those of the clouds closest to an offer are reported. Refusals of this machine are reported separately.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..diagnostics import Loc, Problem
from ..models import JobSpec
from ..plan import Refusal
from ..targets import info
from .base import listing
from .compatibility import RULES, TARGET_RULES

_ORDER = {name: place for place, name in enumerate((*(r.name for r in TARGET_RULES), *(r.name for r in RULES)))}
"""Position of each rule in the order of checking: the higher, the closer a refused cloud is to an offer. Rules on the
whole job are not in this table, and are the closest."""
_NAMES = {"machine-type-known", "region-known", "zone-known"}
"""Rules that refuse a cloud which lacks a name in the job file."""
_CLOUD = "{cloud}"


def problems_of(spec: JobSpec, refusals: Sequence[Refusal]) -> list[Problem]:
    """Return the problems for which no cloud can run the job, in the order of the refusals."""
    by_key: dict[tuple[Loc, bool], list[Refusal]] = {}
    for refusal in _meant(spec, refusals):
        by_key.setdefault((refusal.key, _is_here(refusal.cloud)), []).append(refusal)
    found: list[Problem] = []
    for (key, _), about in by_key.items():
        closest = max(map(_closeness, about))
        alike: dict[tuple[str, str], list[Refusal]] = {}
        for refusal in about:
            if _closeness(refusal) == closest:
                alike.setdefault((refusal.rule, _template(refusal)), []).append(refusal)
        found += [_problem(key, group) for group in alike.values()]
    return found


def _meant(spec: JobSpec, refusals: Sequence[Refusal]) -> list[Refusal]:
    """Return the refusals to report; of several because of `limits.price`, only that with the lowest price.

    If the job names no cloud, refusals of the local machine, and of clouds that lack the job's region or machine type,
    are left out, unless there are no others.
    """
    implausible = {refusal.cloud for refusal in refusals if refusal.rule in _NAMES or _is_here(refusal.cloud)}
    meant = [refusal for refusal in refusals if refusal.cloud not in implausible]
    kept = meant if meant and spec.resources.cloud is None else refusals
    capped = [refusal for refusal in kept if refusal.rule == "price-cap"]
    lowest = min(capped, key=lambda one: (one.price is None, one.price or 0), default=None)
    return [refusal for refusal in kept if refusal.rule != "price-cap" or refusal is lowest]


def _is_here(cloud: str | None) -> bool:
    return cloud is not None and info(cloud).is_here


def _closeness(refusal: Refusal) -> int:
    return _ORDER.get(refusal.rule, len(_ORDER))


def _template(refusal: Refusal) -> str:
    """Return the text of a refusal with a placeholder for its cloud."""
    return re.sub(rf"\b{re.escape(refusal.cloud or '')}\b", _CLOUD, f"{refusal.subject}: {refusal.message}")


def _problem(key: Loc, alike: Sequence[Refusal]) -> Problem:
    """Return one problem for refusals that differ only in their cloud and in their allowed alternatives."""
    first = alike[0]
    clouds = list(dict.fromkeys(refusal.cloud or "" for refusal in alike))
    message = f"{first.subject}: {first.message}"
    if len(clouds) > 1:
        message = _template(first).removeprefix(f"{_CLOUD} ").replace(_CLOUD, listing(clouds))
    allowed = dict.fromkeys(refusal.allowed for refusal in alike if refusal.allowed)
    if len(allowed) > 1:
        hint = "; ".join(f"{refusal.cloud}: {refusal.allowed}" for refusal in alike if refusal.allowed)
    else:
        hint = "".join(allowed)
    return Problem(key, first.rule, message, hint, in_key=True)
