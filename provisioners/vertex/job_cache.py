"""What is there on Vertex AI, and what it means: one list of a region for all jobs of a process, for a short time."""

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

# The phase of each state. What is being cancelled still runs, and bills.
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
"""Jobs stay in lists for ever: a filter keeps those that have ended out of them."""
_FIELDS = ("name", "state", "create_time", "start_time", "end_time", "error", "labels")
"""What is read of a job in a list: not its commands, which are most of it."""
_PAGE = 100
_REFUSALS = frozenset({"capacity", "quota", "not_offered", "auth", "invalid"})
_RAN = re.compile(r"\breplicas?\b.*\b(exited|ran)\b|non-zero status", re.IGNORECASE)
"""A program's end. Containers may run before all machines are there, and with them the job's start."""
_NO_PLACE = re.compile(r"non-zero status of 3\b")
"""The agent ends so where another machine has its node's place in the job dir: runtime/agent/agent.py, CLAIMED."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A custom job as it was last seen."""

    name: str
    """`projects/NUMBER/locations/REGION/customJobs/ID`."""
    state: str
    """Vertex AI's word without `JOB_STATE_`."""
    tags: Mapping[str, str]
    replicas: Mapping[str, str]
    """node -> `workerpool1-0`."""
    market: str
    created: float
    """Epoch seconds; also `ended`."""
    started: bool
    """It ran: all of its machines were there."""
    ended: float | None
    code: int
    """Of google.rpc.Code; 0: no error."""
    message: str

    @property
    def token(self) -> str:
        """Of the launch."""
        return self.tags.get(tags.TOKEN, "")

    @property
    def region(self) -> str:
        return self.name.split("/")[3]

    @property
    def is_gone(self) -> bool:
        return _PHASES.get(self.state, "running") == "gone"

    @property
    def is_waiting(self) -> bool:
        """For machines; nothing bills."""
        return _PHASES.get(self.state, "running") == "pending"

    @property
    def found_no_place(self) -> bool:
        """It has failed since another job had its nodes' places in the job dir."""
        return self.state == "FAILED" and bool(_NO_PLACE.search(self.message))

    @property
    def has_run(self) -> bool:
        """It has ended by itself, and its nodes had their places: any other job of its launch finds them taken."""
        return self.started and self.state in {"SUCCEEDED", "FAILED"} and not self.found_no_place

    def machines(self) -> dict[str, str]:
        """node -> what names its replica to the target."""
        return {node: f"{self.name}/{replica}" for node, replica in self.replicas.items()}

    def as_node(self, node: str) -> NodeState:
        """What it means for any of its nodes."""
        phase = _PHASES.get(self.state, "running")
        detail = "" if self.state == "RUNNING" else ": ".join(part for part in (self.state, self.message) if part)
        if self.found_no_place:
            detail = f"{detail} (another machine has the node's place in the job dir)"
        if not self.is_gone:
            return NodeState(node, phase, detail, queued=self.is_waiting)
        error = self._meaning()
        if self.started or error is None:
            return NodeState(node, phase, detail, taken=error is not None and error.error_class == "capacity")
        return NodeState(node, phase, detail, refused=error if error.error_class in _REFUSALS else None)

    def _meaning(self) -> ProvisionError | None:
        """Of that with which the job has failed; None: it has not, or a program has."""
        if self.state == "EXPIRED" and not self.started:
            message = f"a job in {self.region} was not given its machines in time"
            return ProvisionError("capacity", message, scope="region", code=self.state)
        if self.state != "FAILED" or not self.code or _RAN.search(self.message):
            return None
        doing = f"run a job in {self.region}"
        # An unknown error of a job that ran is not a lack of capacity.
        code, is_operation = str(self.code), not self.started
        return classify("vertex", code=code, message=self.message, doing=doing, is_operation=is_operation)


class Sightings:
    """Looks at all jobs of an owner, or of a launch, that have not ended."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._cache = PollCache(self._ask, clients.clock)

    def of_owner(self, region: str, owner: str, *, since: float | None = None) -> list[Sighting]:
        """Those that have not ended, the oldest first; `since` as in PollCache.get(). Raises ProvisionError."""
        return self._cache.get((region, tags.OWNER, owner), since=since)

    def of_token(self, region: str, token: str, *, live: bool = True) -> list[Sighting]:
        """Those of one launch, always looked at afresh; with `live` false also those that have ended."""
        where = _label(tags.TOKEN, token)
        return self._list(region, f"{where} AND {_LIVE}" if live else where)

    def of_everybody(self, region: str) -> list[Sighting]:
        """Those of all owners that have not ended, always looked at afresh. Raises ProvisionError."""
        return self._list(region, f"labels.{tags.OWNER}:* AND {_LIVE}")

    def named(self, name: str) -> Sighting | None:
        """The job as it is now; None: there is none of this name. Raises ProvisionError."""
        jobs = self._clients.jobs(name.split("/")[3])
        from google.api_core.exceptions import NotFound

        def ask() -> aiplatform_v1.CustomJob | None:
            try:
                return jobs.get_custom_job(name=name, timeout=READ_S, retry=None)
            except NotFound:
                return None

        found = self._clients.ask(f"look at {name}", ask)
        return None if found is None else sighting(found)

    def _ask(self, key: tuple[str, str, str]) -> list[Sighting]:
        region, label, value = key
        return self._list(region, f"{_label(label, value)} AND {_LIVE}")

    def _list(self, region: str, where: str) -> list[Sighting]:
        """Page by page, each with its own patience; a half list is none. Where Vertex AI is not there are no jobs."""
        jobs, parent = self._clients.jobs(region), self._clients.parent(region)  # without the SDK: says so
        from google.api_core.exceptions import NotFound
        from google.cloud import aiplatform_v1

        def ask(request: aiplatform_v1.ListCustomJobsRequest) -> aiplatform_v1.ListCustomJobsResponse | None:
            try:
                return next(iter(jobs.list_custom_jobs(request=request, timeout=READ_S, retry=None).pages))
            except NotFound:
                return None

        found: list[Sighting] = []
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


def in_order(found: Iterable[Sighting]) -> list[Sighting]:
    """The oldest first; of the same moment by name, so that everybody comes to the same order."""
    return sorted(found, key=lambda one: (one.created, one.name))


def sighting(job: aiplatform_v1.CustomJob) -> Sighting:
    """From Vertex AI's answer."""
    known = dict(job.labels)
    return Sighting(
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
    """proto-plus gives a datetime, or None for a field that is not set."""
    stamp = getattr(moment, "timestamp", None)
    return None if stamp is None else float(stamp())


def _label(key: str, value: str) -> str:
    """As the API reference of customJobs.list writes it; a label's value holds nothing that needs quotes."""
    return f"labels.{key}={labels.encode(value)}"
