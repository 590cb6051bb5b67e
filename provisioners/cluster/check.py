"""Checks of the target `cluster`: the clusters that this computer knows, and their folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from ..checks.job_dirs import check_readable
from ..checks.results import CheckRequest, CheckResult, Step
from ..stacks import clusters
from ..stacks.clusters import Cluster


def steps(request: CheckRequest) -> list[Step]:  # noqa: ARG001 - clusters have their own regions and folders
    """Return the checks."""
    try:
        known = clusters.load_all()
    except ValueError as error:
        return [Step("clusters", partial(_unreadable, str(error)))]
    folders = [Step("job_dir", partial(_folder, one)) for one in known]
    return [Step("clusters", partial(_list, known), is_gate=True), *folders]


def _list(known: list[Cluster]) -> Iterator[CheckResult]:
    if not known:
        fix = "`cloudgpu cluster up cluster.yaml` brings one up, see docs/guides/clusters.md"
        yield CheckResult("clusters", "error", "no cluster is known on this computer", fix, {"clusters": []})
    for one in known:
        machines = f"{one.fleet.size} × {one.fleet.machine_type} in {one.cloud} {one.region}"
        values = {"clusters": [one.name], "expires": one.expires}
        if one.expires is not None and one.expires <= time.time():
            fix = f"`cloudgpu cluster extend {one.name} 7d`"
            yield CheckResult("clusters", "error", f"{one.name}, {machines}: it has expired", fix, values)
        else:
            yield CheckResult("clusters", "ok", f"{one.name}: {machines}", "", values)


def _unreadable(message: str) -> Iterator[CheckResult]:
    yield CheckResult("clusters", "error", message)


def _folder(cluster: Cluster) -> Iterator[CheckResult]:
    yield check_readable(cluster.fleet_dir)
