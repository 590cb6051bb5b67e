"""Which offers of a plan a job can be submitted with from here, and why the others cannot. Nobody is asked but this
computer: no cloud, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ..jobspecs.plan import Offer, Plan
from ..provisioners import is_set_up, launchable
from .errors import SubmitError
from .tried import place

if TYPE_CHECKING:
    from ..jobspecs.models import JobSpec

MAX_WAYS = 40
"""Kept with a job: so many ways to run it, each in one region with all its zones."""

# The job dirs that a target's machines reach with nothing but what they are given. Those of a cloud have a role there,
# which no other cloud knows; this machine uses the credentials of whoever submits.
_REACHES = {
    "local": ("file", "s3", "gs", "az"),
    "aws": ("s3",),
    "gcp": ("gs",),
    "vertex": ("gs",),
    "azure": ("az",),
}
# How a URL of each kind is written, for advice.
_FORMS = {
    "s3": "s3://BUCKET/FOLDER",
    "gs": "gs://BUCKET/FOLDER",
    "az": "az://CONTAINER@ACCOUNT/FOLDER",
    "file": "file:///FOLDER",
}
_HOW_TO_SET_UP = {
    "aws": "aws is not set up here: it needs boto3 (pip install 'cloudgpu[aws]') and credentials (`aws configure`, "
    "`aws sso login`, or AWS_PROFILE), see docs/aws.md",
    "gcp": "gcp is not set up here: it needs Google's SDK (pip install 'cloudgpu[gcp]') and credentials "
    "(`gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS), see docs/gcp.md",
    "vertex": "vertex is not set up here: it needs Google's SDK (pip install 'cloudgpu[gcp]') and credentials "
    "(`gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS), see docs/vertex.md",
    "azure": "azure is not set up here: it needs Azure's SDK (pip install 'cloudgpu[azure]'), a subscription and "
    "credentials (`az login`, or AZURE_SUBSCRIPTION_ID with AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET), "
    "see docs/azure.md",
}


def usable_offers(spec: JobSpec, plan: Plan) -> list[Offer]:
    """Those to submit the job with, in order. Raises SubmitError if there are none.

    Of clouds that the job names, each must be usable as far as this version goes: what a user asks for is not left out.
    Where it names none, it is offered to every target that is set up and reaches the job dir.
    """
    if not plan.offers:
        raise SubmitError("nothing can run this job: `cloudgpu plan` shows every refusal")
    clouds = list(dict.fromkeys(offer.cloud for offer in plan.offers))
    obstacles = {cloud: why for cloud in clouds if (why := obstacle(spec, cloud, look=True))}
    named = [cloud for cloud in clouds if spec.resources.cloud is not None and cloud in launchable()]
    wrong = [cloud for cloud in named if cloud in obstacles] or (clouds if len(obstacles) == len(clouds) else [])
    if wrong:
        raise SubmitError("; ".join(dict.fromkeys(obstacles[cloud] for cloud in wrong)))
    able = [offer for offer in plan.offers if offer.cloud not in obstacles]
    if spec.limits.cost is not None:
        priced = [offer for offer in able if offer.price is not None]
        if not priced:
            raise SubmitError(f"limits.cost cannot be kept: the price of {place(able[0])} is unknown")
        able = priced
    return keep(able)


def obstacle(spec: JobSpec, cloud: str, *, look: bool) -> str:
    """Why the job cannot be submitted to a cloud from here, and what to do about it; "" if it can.

    `look`: also whether the cloud's SDK and credentials are there, which takes as long as importing the SDK.
    """
    if cloud not in launchable():
        return f"this version plans for {cloud}, but launches only on: {', '.join(sorted(launchable()))}"
    if job_dir_scheme(spec.job_dir) not in _REACHES[cloud]:
        needed = " or ".join(_FORMS[scheme] for scheme in _REACHES[cloud])
        where = "a folder of this computer" if spec.job_dir is None else spec.job_dir
        return f"machines of {cloud} cannot reach the job dir, {where}: write job_dir: {needed}"
    for path, url in spec.inputs.items():
        if url.partition("://")[0] not in _REACHES[cloud]:
            needed = " or ".join(f"{scheme}://" for scheme in _REACHES[cloud])
            return f"machines of {cloud} cannot reach inputs.{path}, {url}: they read from {needed}"
    if look and not is_set_up(cloud):
        return _HOW_TO_SET_UP[cloud]
    return ""


def job_dir_scheme(given: str | None) -> str:
    """Of a spec's job_dir: a path, or none, is a local folder."""
    return given.partition("://")[0] if given and "://" in given else "file"


def keep(offers: Sequence[Offer], most: int = MAX_WAYS) -> list[Offer]:
    """The ways that go with the job, in order: the best, but of every region and of every kind (market and GPUs) the
    best first, then the second best; for the more alike the places are, the more likely they are full together."""
    ways = [list(group) for _, group in groupby(offers, key=lambda offer: offer._replace(zone=None))]
    if len(ways) <= most:
        return list(offers)
    of_region = _places(way[0][:2] for way in ways)
    of_kind = _places((way[0].market, *((role.accelerator, role.count) for role in way[0].roles)) for way in ways)
    turns = sorted(range(len(ways)), key=lambda index: min(of_region[index], of_kind[index]))
    return [offer for index in sorted(turns[:most]) for offer in ways[index]]


def _places(keys: Iterable[object]) -> list[int]:
    """How many of the same came before each."""
    seen: Counter[object] = Counter()
    places = []
    for key in keys:
        places.append(seen[key])
        seen[key] += 1
    return places
