"""Select the offers of a plan that can be submitted from here, and explain the others. Uses only this computer's
state: no calls to clouds, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ...jobspecs.fields import FORMS
from ...jobspecs.plan import Offer, Plan
from ...jobspecs.rules.stores import reaches
from ...jobspecs.targets import info, is_name
from ...provisioners import can_launch, is_set_up, launchable, setup_hint
from ..errors import SubmitError
from .job_group_offers import RULE, with_groups

if TYPE_CHECKING:
    from ...jobspecs.models import JobSpec

MAX_WAYS = 40
"""Maximum number of ways to run a job that are stored with it; a way is one region with all its zones."""


def usable_offers(spec: JobSpec, plan: Plan) -> list[Offer]:
    """Return the offers to submit the job with, in order. Raises SubmitError if there are none.

    If the job file names clouds, each that this version supports must be usable: a requested cloud is not dropped
    silently. Otherwise the offers of all targets that are set up and reach the job dir are used.
    """
    if not plan.offers:
        raise SubmitError("nothing can run this job: `cloudgpu plan` shows every refusal")
    plan = _with_groups(spec, plan)
    clouds = list(dict.fromkeys(offer.cloud for offer in plan.offers))
    obstacles = {cloud: why for cloud in clouds if (why := obstacle(spec, cloud, look=True))}
    named = [cloud for cloud in clouds if spec.resources.cloud is not None and can_launch(cloud)]
    wrong = [cloud for cloud in named if cloud in obstacles] or (clouds if len(obstacles) == len(clouds) else [])
    if wrong:
        apart = [cloud for cloud in wrong if can_launch(cloud) and not _reaches_job_dir(spec, cloud)]
        reasons = [_unreachable_message(spec, apart) if cloud in apart else obstacles[cloud] for cloud in wrong]
        raise SubmitError("; ".join(dict.fromkeys(reasons)))
    able = [offer for offer in plan.offers if offer.cloud not in obstacles]
    if spec.limits.cost is not None:
        priced = [offer for offer in able if offer.price is not None]
        if not priced:
            raise SubmitError(f"limits.cost cannot be kept: the price of {able[0].label} is unknown")
        able = priced
    return limit_offers(able)


def _with_groups(spec: JobSpec, plan: Plan) -> Plan:
    """Return the plan without offers that lack a `recover: fleet` group. Raises SubmitError, like usable_offers()."""
    found = with_groups(spec, plan)
    able = {offer.cloud for offer in found.offers}
    refusals = [one for one in found.refusals if one.rule == RULE and one.cloud not in able]
    if refusals and (spec.resources.cloud is not None or not able):
        messages = [": ".join(filter(None, (one.subject, one.message, one.allowed))) for one in refusals]
        raise SubmitError("; ".join(messages))
    return found


def obstacle(spec: JobSpec, cloud: str, *, look: bool) -> str:
    """Return why the job cannot be submitted to a cloud from here, and the remedy; "" if it can.

    `look`: also check for the cloud's SDK and credentials, which takes as long as importing the SDK.
    """
    if not can_launch(cloud):
        names = ", ".join(filter(is_name, sorted(launchable())))
        return f"this version plans for {cloud}, but launches only on: {names}"
    if not _reaches_job_dir(spec, cloud):
        return _unreachable_message(spec, [cloud])
    for path, url in spec.inputs_on(cloud).items():
        needed = " or ".join(f"{scheme}://" for scheme in info(cloud).schemes)
        if url is None:
            return f"inputs.{path} names none for {cloud}, whose machines read from {needed}"
        if not reaches(cloud, url):
            return f"machines of {cloud} cannot reach inputs.{path}, {url}: they read from {needed}"
    if look and not is_set_up(cloud):
        return setup_hint(cloud)
    return ""


def _reaches_job_dir(spec: JobSpec, cloud: str) -> bool:
    given = spec.job_dir_on(cloud)
    if given is None and spec.job_dir is not None:
        return False  # only other clouds have one
    return reaches(cloud, given)


def _unreachable_message(spec: JobSpec, clouds: Sequence[str]) -> str:
    """Return the message if machines of these clouds cannot reach the job dir."""
    names = " and ".join(clouds)
    if isinstance(spec.job_dir, str | None):
        where = "a folder of this computer" if spec.job_dir is None else spec.job_dir
        return f"machines of {names} cannot reach the job dir, {where}: write job_dir: {_to_write(spec, clouds)}"
    return f"job_dir names none that machines of {names} can reach: write job_dir: {_to_write(spec, clouds)}"


def _to_write(spec: JobSpec, clouds: Sequence[str]) -> str:
    """Return a job dir to write for these clouds and for all others that the job names or has a job dir for."""
    others = [*(spec.job_dir if isinstance(spec.job_dir, dict) else ()), *(spec.resources.cloud or ())]
    together = list(dict.fromkeys([*others, *clouds]))
    common = [scheme for scheme in info(clouds[0]).schemes if all(scheme in info(one).schemes for one in together)]
    if common and not isinstance(spec.job_dir, dict):
        return " or ".join(FORMS[scheme] for scheme in common)
    folders = {
        cloud: spec.job_dir_on(cloud) if _reaches_job_dir(spec, cloud) else FORMS[info(cloud).schemes[0]]
        for cloud in together
    }
    return "{" + ", ".join(f"{cloud}: {url or FORMS['file']}" for cloud, url in folders.items()) + "}"


def limit_offers(offers: Sequence[Offer], most: int = MAX_WAYS) -> list[Offer]:
    """Return the offers to store with the job, in order: at most `most` ways. Each region and each kind (market and
    GPUs) contributes its best way first, then its second best, because similar places are likely to be full
    together."""
    ways = [list(group) for _, group in groupby(offers, key=lambda offer: offer._replace(zone=None))]
    if len(ways) <= most:
        return list(offers)
    of_region = _places(way[0][:2] for way in ways)
    of_kind = _places((way[0].market, *((role.accelerator, role.count) for role in way[0].roles)) for way in ways)
    turns = sorted(range(len(ways)), key=lambda index: min(of_region[index], of_kind[index]))
    return [offer for index in sorted(turns[:most]) for offer in ways[index]]


def _places(keys: Iterable[object]) -> list[int]:
    """Return for each key the number of equal keys before it."""
    seen: Counter[object] = Counter()
    places = []
    for key in keys:
        places.append(seen[key])
        seen[key] += 1
    return places
