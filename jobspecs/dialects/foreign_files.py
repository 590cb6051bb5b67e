"""Recognise files of unsupported tools, so that the first message names the tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..diagnostics import Problem
from .conversion import camel


class Tool(NamedTuple):
    """Kind of file of another tool."""

    what: str
    hint: str
    keys: frozenset[str]
    """Keys found in such files but not in job files: top-level keys in camelCase, and `resources.NAME` as written."""
    least: int
    """Minimum number of these keys that identifies the tool."""
    alone: bool
    """True: all other mistakes in the file follow from this one and are not reported."""


_LIKE = "write a job file, docs/reference/job-file.md; the hints below name its keys"
_NEW = "write a job file, docs/reference/job-file.md"
TOOLS = (
    Tool("a Kubernetes manifest", _NEW, frozenset({"apiVersion", "kind", "metadata", "spec"}), 2, alone=True),
    Tool(
        "a hyperparameter tuning job of Vertex AI",
        "cloudgpu runs one training per job: submit one job for each trial",
        frozenset({"studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount"}),
        2,
        alone=True,
    ),
    Tool(
        "a SkyPilot task",
        _LIKE,
        frozenset({"numNodes", "fileMounts", "workdir", "envs", "secrets", "service"})
        | {f"resources.{key}" for key in ("accelerators", "use_spot", "any_of", "infra", "instance_type", "disk_size")},
        2,
        alone=False,
    ),
    Tool(
        "a dstack configuration",
        _LIKE,
        frozenset({"type", "commands", "backends", "spotPolicy", "ide", "maxPrice", "maxDuration", "python", "ports"}),
        3,
        alone=False,
    ),
)


def recognise(document: Mapping[str, object]) -> tuple[Problem, bool] | None:
    """Return the problem for a file of another tool, and whether to report it alone; None if no tool matches."""
    names = {camel(str(key)) for key in document}
    resources = document.get("resources")
    if isinstance(resources, Mapping):
        names |= {f"resources.{key}" for key in resources}
    for tool in TOOLS:
        if len(names & tool.keys) >= tool.least:
            return Problem((), "foreign-file", f"this looks like {tool.what}, not a job file", tool.hint), tool.alone
    return None
