"""Cache of Vertex AI's job lists, one call for each region shared by all jobs of a process, and mapping to node
states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ..base import NodeState, ProvisionError
from ..gcp import labels
from ..shared import tags
from ..shared.errors import classify
from ..shared.poll_cache import PollCache
from . import worker_pools
from .clients import READ_S, Clients
from .request import MARKET

if TYPE_CHECKING:
    from google.cloud import aiplatform_v1

# Job state -> phase. A job that is being cancelled still runs and is billed.
_PHASES: dict[str, Literal["pending", "running", "gone"]] = {
    "QUEUED": "pending",
    "PENDING": "pending",
    "RUNNING": "running",
    "UPDATING": "running",
    "PAUSED": "running",
    "CANCELLING": "running",
    "SUCCEEDED": "gone",
    "FAILED": "gone",
    "CANCELLED": "gone",
    "EXPIRED": "gone",
    "PARTIALLY_SUCCEEDED": "gone",
}
_LIVE = " AND ".join(f'state!="JOB_STATE_{state}"' for state in ("SUCCEEDED", "FAILED", "CANCELLED"))
"""Filter for jobs that have not ended; ended jobs stay in lists forever."""
_FIELDS = ("name", "state", "create_time", "start_time", "end_time", "error", "labels")
"""Field mask of lists; it leaves out the commands, which are most of a job's size."""
_PAGE = 100
_REFUSALS = frozenset({"capacity", "quota", "not_offered", "auth", "invalid"})
_RAN = re.compile(r"\breplicas?\b.*\b(exited|ran)\b|non-zero status", re.IGNORECASE)
"""Pattern of messages about a program's exit. Programs may exit before the job has started: containers run as soon as
their machines are ready."""
_NO_PLACE = re.compile(r"non-zero status of 3\b")
"""Pattern of messages about exit code 3, the agent's if another machine has claimed its node in the job dir (CLAIMED in
runtime/agent/agent.py)."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Custom job as last listed."""

    name: str
    """`projects/NUMBER/locations/REGION/customJobs/ID`."""
    state: str
    """Vertex AI's JobState without `JOB_STATE_`."""
    tags: Mapping[str, str]
    replicas: Mapping[str, str]
    """Node -> replica, e.g. `workerpool1-0`."""
    market: str
    created: float
    """Creation time in epoch seconds."""
    started: bool
    """True if it has a start time, i.e. it got all of its machines."""
    ended: float | None
    """End in epoch seconds; None: it has not ended."""
    code: int
    """Value of google.rpc.Code; 0: no error."""
    message: str

    @property
    def token(self) -> str:
        """Return the token of its launch; "": the label is missing."""
        return self.tags.get(tags.TOKEN, "")

    @property
    def region(self) -> str:
        return self.name.split("/")[3]

    @property
    def is_gone(self) -> bool:
        return _PHASES.get(self.state, "running") == "gone"

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for machines."""
        return _PHASES.get(self.state, "running") == "pending"

    @property
    def found_no_place(self) -> bool:
        """Return whether it failed because another job had claimed its nodes in the job dir."""
        return self.state == "FAILED" and bool(_NO_PLACE.search(self.message))

    @property
    def has_run(self) -> bool:
        """Return whether it ended by itself after it claimed its nodes, which no other job can then claim."""
        return self.started and self.state in {"SUCCEEDED", "FAILED"} and not self.found_no_place

    def machines(self) -> dict[str, str]:
        """Return node -> machine id (job name and replica)."""
        return {node: f"{self.name}/{replica}" for node, replica in self.replicas.items()}

    def as_node(self, node: str) -> NodeState:
        """Return the state of one of its nodes."""
        phase = _PHASES.get(self.state, "running")
        detail = "" if self.state == "RUNNING" else ": ".join(part for part in (self.state, self.message) if part)
        if self.found_no_place:
            detail = f"{detail} (another machine has the node's place in the job dir)"
        if not self.is_gone:
            return NodeState(node, phase, detail, queued=self.is_waiting)
        error = self._meaning()
        if self.started or error is None:
            return NodeState(node, phase, detail, reclaimed=error is not None and error.error_class == "capacity")
        return NodeState(node, phase, detail, refused=error if error.error_class in _REFUSALS else None)

    def _meaning(self) -> ProvisionError | None:
        """Return the error with which the job failed; None if it did not fail, or only by a program's exit code."""
        if self.state == "EXPIRED" and not self.started:
            message = f"a job in {self.region} was not given its machines in time"
            return ProvisionError("capacity", message, scope="region", code=self.state)
        if self.state != "FAILED" or not self.code or _RAN.search(self.message):
            return None
        doing = f"run a job in {self.region}"
        # An unknown error counts as lack of capacity only if the job never started.
        code, is_operation = str(self.code), not self.started
        return classify("vertex", code=code, message=self.message, doing=doing, is_operation=is_operation)


class JobCache:
    """Lists of custom jobs, cached by owner and shared by all jobs of the process. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock)

    def of_owner(self, region: str, owner: str, *, since: float | None = None) -> list[JobState]:
        """Return an owner's live jobs, oldest first. `since`: as in PollCache.get(). Raises ProvisionError."""
        return self._cache.get((region, tags.OWNER, owner), since=since)

    def of_token(self, region: str, token: str, *, live: bool = True) -> list[JobState]:
        """Return the live jobs of one launch, uncached; if `live` is False also ended ones. Raises ProvisionError."""
        where = _label(tags.TOKEN, token)
        return self._list(region, f"{where} AND {_LIVE}" if live else where)

    def of_all_owners(self, region: str) -> list[JobState]:
        """Return the live jobs of all owners, uncached. Raises ProvisionError."""
        return self._list(region, f"labels.{tags.OWNER}:* AND {_LIVE}")

    def named(self, name: str) -> JobState | None:
        """Return the current state of a job, uncached; None: there is none of this name. Raises ProvisionError."""
        jobs = self._clients.jobs(name.split("/")[3])
        from google.api_core.exceptions import NotFound

        def ask() -> aiplatform_v1.CustomJob | None:
            try:
                return jobs.get_custom_job(name=name, timeout=READ_S, retry=None)
            except NotFound:
                return None

        found = self._clients.ask(f"look at {name}", ask)
        return None if found is None else sighting(found)

    def _ask(self, key: tuple[str, str, str]) -> list[JobState]:
        region, label, value = key
        return self._list(region, f"{_label(label, value)} AND {_LIVE}")

    def _list(self, region: str, where: str) -> list[JobState]:
        """List jobs, oldest first; each page is retried separately. [] if the region has no Vertex AI. Raises
        ProvisionError."""
        jobs, parent = self._clients.jobs(region), self._clients.parent(region)  # raises if the SDK is missing
        from google.api_core.exceptions import NotFound
        from google.cloud import aiplatform_v1

        def ask(request: aiplatform_v1.ListCustomJobsRequest) -> aiplatform_v1.ListCustomJobsResponse | None:
            try:
                return next(iter(jobs.list_custom_jobs(request=request, timeout=READ_S, retry=None).pages))
            except NotFound:
                return None

        found: list[JobState] = []
        token = ""
        while True:
            request = aiplatform_v1.ListCustomJobsRequest(
                parent=parent, filter=where, page_size=_PAGE, page_token=token, read_mask={"paths": _FIELDS}
            )
            page = self._clients.ask(f"look for jobs in {region}", partial(ask, request))
            found += [] if page is None else [sighting(job) for job in page.custom_jobs]
            token = "" if page is None else page.next_page_token
            if not token:
                return in_order(found)


def in_order(found: Iterable[JobState]) -> list[JobState]:
    """Sort jobs by creation time, then by name, so that the order is the same in every process."""
    return sorted(found, key=lambda one: (one.created, one.name))


def sighting(job: aiplatform_v1.CustomJob) -> JobState:
    """Parse a job of Vertex AI's answer."""
    known = dict(job.labels)
    return JobState(
        name=job.name,
        state=job.state.name.removeprefix("JOB_STATE_"),
        tags=labels.from_labels(known),
        replicas=worker_pools.from_labels(known),
        market=known.get(MARKET, ""),
        created=_epoch(job.create_time) or 0.0,
        started=_epoch(job.start_time) is not None,
        ended=_epoch(job.end_time),
        code=job.error.code if job.error else 0,
        message=" ".join(job.error.message.split()) if job.error else "",
    )


def _epoch(moment: object) -> float | None:
    """Return epoch seconds of a proto-plus datetime; None if the field is not set."""
    stamp = getattr(moment, "timestamp", None)
    return None if stamp is None else float(stamp())


def _label(key: str, value: str) -> str:
    """Return a filter by label, as in the API reference of customJobs.list; label values need no quotes."""
    return f"labels.{key}={labels.encode(value)}"
