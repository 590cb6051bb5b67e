"""`submit --cluster NAME`: adapt a job to an existing cluster and plan its only offer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.output import remark, warning
from .expiry import is_over, moment

if TYPE_CHECKING:
    from ...jobspecs.loading.draft import LoadedSpec
    from ...jobspecs.models import JobSpec
    from ...jobspecs.plan import Plan
    from ...provisioners.stacks.clusters import Cluster


def plan_on_cluster(loaded: LoadedSpec, name: str) -> tuple[LoadedSpec, Plan]:
    """Return the job and its plan on a cluster. The job gets its job_dir for the cluster's cloud, by default the one
    of the infra stack. Raises CommandError."""
    from ...provisioners.cluster.offer import plan_on
    from ...provisioners.stacks import clusters

    try:
        cluster = clusters.load(name)
        known = [] if cluster else clusters.load_all()
    except ValueError as error:
        raise CommandError(str(error), exit_code=Exit.UNAVAILABLE) from error
    if cluster is None:
        names = ", ".join(one.name for one in known)
        hint = f"known here: {names}" if names else "`cloudgpu cluster up cluster.yaml` brings one up"
        raise CommandError(f"no cluster {name} is known here", hint=hint, exit_code=Exit.USAGE)
    _say_expiry(loaded.spec, cluster)
    job_dir = loaded.spec.job_dir_on(cluster.cloud) or cluster.infrastructure.job_dir
    spec = loaded.spec.model_copy(update={"job_dir": job_dir})
    return loaded._replace(spec=spec), plan_on(spec, cluster)


def _say_expiry(spec: JobSpec, cluster: Cluster) -> None:
    """Warn if the cluster may expire before the job ends. Raises CommandError if it has expired."""
    if cluster.expires is None:
        return
    later, when = f"`cloudgpu cluster extend {cluster.name} 7d`", moment(cluster.expires)
    if is_over(cluster.expires):
        message = f"the cluster {cluster.name} has expired ({when})"
        raise CommandError(message, hint=f"{later} brings its machines back", exit_code=Exit.IMPOSSIBLE)
    limit = spec.limits.duration
    if limit is None:
        remark(f"the cluster {cluster.name} expires: {when}; {later} puts that off")
    elif limit > cluster.expires - time.time():
        warning(f"the cluster {cluster.name} expires before limits.duration is over: {when}; {later} puts that off")
