"""Default job dir of a job whose file names none: in the bucket of the cloud's infra stack, if known here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...jobspecs.targets import FLEET_CLOUDS, info
from ...provisioners.shared import infra_outputs
from .. import paths
from ..errors import StoreError

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec
    from ...jobspecs.plan import Plan
    from ...provisioners.shared.infra_outputs import Infrastructure


def with_job_dir(loaded: LoadedSpec, plan: Plan) -> tuple[LoadedSpec, str]:
    """Return the job with the job dirs of the infra stacks known here, and a sentence about them; "": the job is
    unchanged.

    Uses one stack for each cloud: that of the best offer's region, else of any region. If the job may also run on
    this machine, that uses the local default folder. Raises StoreError if the record of a stack cannot be read.
    """
    if loaded.spec.job_dir is not None:
        return loaded, ""
    regions: dict[str, str] = {}
    for offer in plan.offers:
        regions.setdefault(offer.cloud, offer.region)
    dirs = {cloud: stack.job_dir for cloud, region in regions.items() if (stack := _stack(cloud, region))}
    if not dirs:
        return loaded, ""
    said = f"job_dir is that of the infra stack: {', '.join(dict.fromkeys(dirs.values()))}"
    dirs |= {cloud: paths.default_job_dir().as_uri() for cloud in regions if info(cloud).is_here}
    one = set(dirs.values()) if len(dirs) == len(regions) else set()
    job_dir = one.pop() if len(one) == 1 else dirs
    return loaded._replace(spec=loaded.spec.model_copy(update={"job_dir": job_dir})), said


def _stack(cloud: str, region: str) -> Infrastructure | None:
    host = info(cloud).host or cloud
    if host not in FLEET_CLOUDS:
        return None
    try:
        found = [one for one in infra_outputs.load_all(host) if one.job_dir]
    except ValueError as error:
        raise StoreError(str(error)) from error
    return min(found, key=lambda one: one.region != region, default=None)
