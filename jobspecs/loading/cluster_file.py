"""Load cluster.yaml into a ClusterFile; every mistake is reported at once, with line and column.

Keys shared with job files (name, resources, limits) are validated as in a job file. For the planner, a cluster file is
also converted to a job on the same machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..diagnostics import Diagnostic, Problem, SpecError
from ..fleets import ClusterFile
from ..models import JobSpec
from ..suggest import closest, one_of
from ..targets import FLEET_CLOUDS
from .draft import Draft
from .source import Source, read_source
from .yaml_reader import read_yaml

_OF_A_JOB = ("name", "resources", "limits")
"""Keys with the same meaning in both files."""
_JOB = {"run": "true", "code": None}
"""Placeholders for a job's required keys."""
_EXAMPLE = "a cluster file begins like this: name: my-cluster"
_UNSUPPORTED_LIMITS = {
    "cost": "what a cluster costs in all is not watched",
    "gpu_idle": "whether its GPUs do anything is not watched",
}
"""Job limits that a cluster cannot honour, with the reason."""


class LoadedCluster(NamedTuple):
    """Valid cluster file."""

    cluster: ClusterFile
    job: JobSpec
    """Job on the same machines, for the planner."""
    file: str
    """Name as given by the user."""
    warnings: tuple[Diagnostic, ...]


def load_cluster(path: str | os.PathLike[str]) -> LoadedCluster:
    """Load a cluster file. Raises SpecError with every mistake in it."""
    return load_cluster_source(read_source(path))


def load_cluster_source(source: Source) -> LoadedCluster:
    """Load a cluster file whose text was read already. Raises SpecError with every mistake in it."""
    document = read_yaml(source, _EXAMPLE)
    draft = Draft(document, document.value, Path.cwd())
    draft.diagnostics += document.diagnostics
    cluster = _cluster(draft)
    job = _job(draft)
    if cluster is not None and job is not None:
        draft.add_in_job(_not_honoured(cluster))
    draft.add_in_job(_endless(draft.job.get("limits")))
    found = draft.result()
    if cluster is None or job is None or draft.wrong:
        raise SpecError(found)
    return LoadedCluster(cluster, job, source.name, tuple(found))


def job_of(cluster: ClusterFile) -> JobSpec:
    """Return a job on the same machines, with the same limits."""
    values = {"name": cluster.name, "resources": cluster.resources, "limits": cluster.limits, **_JOB}
    return JobSpec.model_validate(values)


def _cluster(draft: Draft) -> ClusterFile | None:
    """Return the cluster; report its mistakes except those that _job() reports."""
    try:
        return ClusterFile.model_validate(draft.job)
    except ValidationError as error:
        from .pydantic_errors import shape_problems

        found = shape_problems(error, draft.job)
        draft.add_in_job(
            _for_cluster_file(problem) for problem in found if not _is_a_job_s(problem) or problem.loc == ("resources",)
        )
        return None


def _is_a_job_s(problem: Problem) -> bool:
    return bool(problem.loc) and problem.loc[0] in _OF_A_JOB


def _for_cluster_file(problem: Problem) -> Problem:
    """Adapt a problem to cluster files: hints name their keys, and the place of a bad-mix problem is `on_demand`."""
    if problem.code == "bad-mix":
        return problem._replace(loc=("on_demand",))
    if problem.code == "unknown-key" and len(problem.loc) == 1:
        key, known = str(problem.loc[0]), list(ClusterFile.model_fields)
        near = closest(key, known)
        belongs = "it belongs into a job file; " if key in JobSpec.model_fields else ""
        hint = f"did you mean {one_of(near)}?" if near else f"{belongs}known here: {', '.join(known)}"
        return problem._replace(hint=hint)
    if problem.code == "missing-key" and problem.loc == ("resources",):
        return problem._replace(hint="write resources: {accelerator: L4:1, cloud: aws}")
    return problem


def _job(draft: Draft) -> JobSpec | None:
    from ..rules.compatibility import check_names
    from .draft import build_models

    build_models()
    shared: Mapping[str, Any] = {key: value for key, value in draft.job.items() if key in _OF_A_JOB} | _JOB
    try:
        spec = JobSpec.model_validate(shared)
    except ValidationError as error:
        from .more_errors import problems_of

        draft.add_in_job(problems_of(error, shared, check_names))
        return None
    draft.add_in_job(check_names(spec))
    return spec


def _not_honoured(cluster: ClusterFile) -> Iterator[Problem]:
    """Yield problems for values that are valid in a job file, but not supported by clusters."""
    asked = cluster.resources.cloud or ()
    for place, cloud in enumerate(asked):
        if cloud not in FLEET_CLOUDS:
            loc = ("resources", "cloud", place) if len(asked) > 1 else ("resources", "cloud")
            hint = f"write {one_of(FLEET_CLOUDS)}"
            yield Problem(
                loc, "no-cluster-there", f"{cloud} has no machines that stay: a cluster cannot be there", hint
            )
    nodes = cluster.resources.nodes
    if nodes.least != nodes.most:
        message, hint = (
            "a cluster has one number of machines",
            f"write nodes: {nodes.most}; `cloudgpu cluster scale` changes it",
        )
        yield Problem(("resources", "nodes"), "elastic-cluster", message, hint)


def _endless(limits: object) -> Iterator[Problem]:
    """Yield problems for limits that clusters do not support; `limits` is the raw mapping, which may have mistakes."""
    for key, why in _UNSUPPORTED_LIMITS.items():
        if isinstance(limits, Mapping) and limits.get(key) is not None:
            hint = "write limits.price, limits.duration, or expires"
            yield Problem(("limits", key), "not-for-clusters", why, hint, in_key=True)
