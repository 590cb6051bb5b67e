"""Find and cancel custom jobs labelled by cloudgpu, of all owners, for `cloudgpu gc`.

A launch creates one custom job and nothing else. Ended jobs are kept as records, which cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...jobspecs.suggest import did_you_mean
from ..base import ProvisionError
from ..tagged_resources import Leftover, Listing, Resource, Tagged, group_by_launch
from . import clients as vertex
from .job_cache import JobCache, JobState
from .teardown import Teardown

_REGIONS_AT_ONCE = 8


def find(regions: Sequence[str], clients: vertex.Clients | None = None) -> Listing:
    """Return the jobs of every owner in these regions (none: all) that have not ended. One call for each region.
    Raises ProvisionError."""
    sightings = JobCache(clients or vertex.Clients())
    known = vertex.regions()
    for region in regions:
        if region not in known:
            meant = did_you_mean(region, known) or f"there are {', '.join(known)}"
            raise ProvisionError("invalid", f"Vertex AI is not in {region}; {meant}", scope="region")
    asked = list(dict.fromkeys(regions)) or known
    with ThreadPoolExecutor(_REGIONS_AT_ONCE, "cloudgpu-find") as pool:
        looks = {region: pool.submit(sightings.of_all_owners, region) for region in asked}
        found: list[Tagged] = []
        missed: dict[str, str] = {}
        refusals: list[ProvisionError] = []
        for number, (region, look) in enumerate(looks.items(), start=1):
            try:
                found += [Tagged(_thing(job), job.tags) for job in look.result()]
            except ProvisionError as error:
                missed[region] = str(error)
                refusals.append(error)
            if number == _REGIONS_AT_ONCE and [one.error_class for one in refusals] == ["transient"] * number:
                # Probably the network or the credentials fail: give up, as each of the other regions would take
                # minutes, too.
                pool.shutdown(wait=False, cancel_futures=True)
                raise refusals[0]
    if len(refusals) == len(asked):
        raise refusals[0]
    return Listing(group_by_launch("vertex", found), missed)


def remove(leftover: Leftover, clients: vertex.Clients | None = None) -> None:
    """Cancel all jobs of a leftover. Idempotent; returns when nothing is billed any more. Raises ProvisionError."""
    clients = clients or vertex.Clients()
    for region in leftover.regions:
        names = [thing.id for thing in leftover.things if thing.region == region]
        Teardown(clients, JobCache(clients), region, leftover.token, names).run()


def _thing(job: JobState) -> Resource:
    nodes = len(job.replicas)
    detail = f"{nodes} node{'' if nodes == 1 else 's'} {job.market}, {job.state}"
    return Resource("custom job", job.name, job.region, detail, None, job.created)
