"""Provisioner of the target `vertex`: an attempt is one custom job, a node a replica of it. See docs/guides/vertex.md.

A launch creates the custom job and nothing else. It is labelled with owner, job, attempt and token, and found by them.
The process keeps only caches: any process may call any method at any time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Collection
from decimal import Decimal
from typing import TYPE_CHECKING

from ...jobspecs.plan import Offer
from ..base import Allocation, LaunchRequest, NodeState, Owner, ProvisionError, TerminateResult
from ..gcp.account import ACCOUNTS
from ..shared import allocations, api_calls
from ..shared.allocations import Found
from ..shared.shared_provisioner import CachedByEnvironment
from .clients import Clients, regions
from .job_cache import JobCache, JobState
from .launching import SEARCH_S, UNSEEN_S, Launch
from .teardown import Teardown, cancel, end_duplicates

if TYPE_CHECKING:
    from ..shared.clock import Clock

log = logging.getLogger("cloudgpu.provisioners.vertex")

TARGET = "vertex"
JOB, DOUBTFUL = "job", "doubtful"
"""Keys of Allocation.details: the custom job's full name, and the epoch second until which lists may show another job
of the launch (absent: they cannot)."""
QUEUE_S = 600.0
"""Seconds after which a QUEUED job counts as refused: jobs are queued only briefly unless the quota is used up. Source:
"Understand the serverless training service"."""
PENDING_S = 3_600.0
"""Seconds after which a PENDING job counts as lacking capacity. Machines that it already has run meanwhile and are
billed, since containers start as soon as their machines are ready (same source)."""
_LOOKED_FOR = (
    "it ended, for another job of this launch has the node's place in the job dir; no list shows that one yet, and it "
    "is looked for"
)
_RETRY_TIMEOUT_S = {"QUEUED": QUEUE_S, "PENDING": PENDING_S}


class VertexProvisioner:
    """Provisioner of custom jobs, shared by all jobs of a process (shared()). Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clients = Clients(clock)
        self._sightings = JobCache(self._clients)
        self._lock = threading.Lock()
        self._answered: dict[str, bool] = {}
        """Token -> whether the outcome of every create call is known; absent: no create call in this process."""

    @api_calls.retry_after_login
    def launch(self, request: LaunchRequest) -> Allocation:
        """Create the custom job, which itself waits for its machines. Idempotent, see Launch. Raises
        ProvisionError. Two API calls, if none fails."""
        ACCOUNTS.check(request.account, self._own)
        token = request.token
        with self._lock:
            certain = self._answered.get(token, not request.may_be_retry)
        launch = Launch(
            self._clients,
            self._sightings,
            request,
            on_create=lambda: self._note(token, answered=False),
            on_outcome_known=lambda: self._note(token, answered=True),
        )
        job = launch.run()
        known = job.machines()
        missing = [node.node for node in request.nodes if node.node not in known]
        if missing:
            message = f"{job.name} was started without {', '.join(missing)}, and cannot be added to"
            raise ProvisionError("invalid", message, scope="cloud")
        details = {JOB: job.name}
        doubtful = launch.may_appear_until if certain else self._clients.clock.now() + SEARCH_S
        if doubtful is not None:
            details[DOUBTFUL] = str(int(doubtful))
        made = allocations.of_request(TARGET, request, known, details, self._own())
        return dataclasses.replace(made, is_fresh=launch.is_fresh)

    @api_calls.retry_after_login
    def observe(self, allocation: Allocation) -> list[NodeState]:
        """Return the nodes' states, at most a few seconds old. Raises ProvisionError.

        Jobs share one cached list of each region; a job that has ended, or is not listed yet, takes another call."""
        self._check(allocation)
        job = self._job(allocation) if allocation.machines else None
        if job is not None and self._is_stuck(job):
            return self._give_up(allocation, job)
        if job is not None and job.found_no_place and self._doubt_s(allocation) > 0:
            return [NodeState(node, "pending", _LOOKED_FOR) for node in allocation.machines]
        if job is None:
            return [NodeState(node, "gone", "Vertex AI does not know it") for node in allocation.machines]
        return [job.as_node(node) for node in allocation.machines]

    @api_calls.retry_after_login
    def terminate(self, allocation: Allocation) -> TerminateResult:
        """Cancel every job labelled with the token, even if the allocation does not name it.

        Raises ProvisionError(transient) if a job has not ended after some minutes: retry then. If the outcome of a
        create call is unknown, this searches for some time for a job that lists may show late. That is skipped once a
        job of the launch has run: another one could not claim its nodes and would end by itself.
        """
        self._check(allocation)
        region, name = allocation.region, allocation.details.get(JOB)
        with self._lock:
            known = bool(name) or self._answered.get(allocation.token, False)
        unseen_s = 0.0 if known or not region else UNSEEN_S
        unseen_s = max(unseen_s, self._doubt_s(allocation))
        if unseen_s and name and (job := self._sightings.named(name)) is not None and job.has_run:
            unseen_s = 0.0
        names = [name] if name else []
        ended = api_calls.merge_ended(
            Teardown(self._clients, self._sightings, where, allocation.token, names, unseen_s).run()
            for where in ([region] if region else regions())
        )
        self._note(allocation.token, answered=True)
        return ended

    @api_calls.retry_after_login
    def remove(self, allocation: Allocation, nodes: Collection[str]) -> None:
        """Cancel the job if `nodes` are all of its nodes. Raises ProvisionError(invalid) for only some of
        them, since single replicas cannot be ended."""
        self._check(allocation)
        if not nodes:
            return
        if set(nodes) != set(allocation.machines):
            message = f"{', '.join(sorted(nodes))}: a custom job is ended as a whole"
            raise ProvisionError("invalid", message, scope="cloud")
        for name in {machine.rpartition("/")[0] for machine in allocation.machines.values()}:
            cancel(self._clients, name)

    @api_calls.retry_after_login
    def find(self, owner: Owner) -> list[Allocation]:
        """Return every launch whose job has not ended, in all regions, with one call for each.

        Regions that the account may not use are left out with a warning. Raises ProvisionError if it may use none, or
        if the query of another region fails, since its launches would be missing.
        """
        return allocations.in_regions(
            regions(), lambda region: self._find_in(region, owner), lambda error: error.error_class == "auth"
        )

    @api_calls.retry_after_login
    def account(self) -> str:
        """Return the project's id, from the settings without a call."""
        return self._own()

    @api_calls.retry_after_login
    def check_account(self, account: str) -> None:
        """See Provisioner."""
        ACCOUNTS.check(account, self._own)

    def price(self, offer: Offer) -> Decimal | None:  # noqa: ARG002 - required by the protocol
        """Return None: Vertex AI's fee on top of Compute Engine's prices is not available from an API."""
        return None

    # -- helpers

    def _own(self) -> str:
        """Return the configured project's id. Raises ProvisionError."""
        return self._clients.google.project

    def _check(self, allocation: Allocation) -> None:
        """Raise ProvisionError if the configured project is not that of the allocation."""
        ACCOUNTS.check(allocation.account, self._own)

    def _note(self, token: str, *, answered: bool) -> None:
        with self._lock:
            self._answered[token] = answered

    def _doubt_s(self, allocation: Allocation) -> float:
        """Return the seconds for which another job of the launch may still appear in lists; 0 or less: none can."""
        return float(allocation.details.get(DOUBTFUL, "0")) - self._clients.clock.now()

    def _job(self, allocation: Allocation) -> JobState | None:
        """Return the allocation's job, after ending duplicates; None: there is none any more. Raises ProvisionError."""
        region, owner, name = allocation.region, allocation.owner, allocation.details.get(JOB)
        if not region:
            message = f"the region of launch {allocation.token} is not known: it can be ended, not watched"
            raise ProvisionError("invalid", message, scope="cloud")
        if owner:
            seen = [one for one in self._sightings.of_owner(region, owner) if one.token == allocation.token]
        else:
            seen = self._sightings.of_token(region, allocation.token)
        name = name or next(iter(allocation.machines.values())).rpartition("/")[0]
        if not seen:
            return self._sightings.named(name)
        return end_duplicates(self._clients, seen)

    def _is_stuck(self, job: JobState) -> bool:
        age = self._clients.clock.now() - job.created
        return job.market != "flex-start" and age > _RETRY_TIMEOUT_S.get(job.state, math.inf)

    def _give_up(self, allocation: Allocation, job: JobState) -> list[NodeState]:
        """Cancel a job that waited too long for quota or machines, and return refused states.

        If it started just before it was cancelled, its nodes are not refused."""
        Teardown(self._clients, self._sightings, job.region, job.token, [job.name]).run()
        ended = self._sightings.named(job.name)
        if ended is not None and ended.started:
            return [ended.as_node(node) for node in allocation.machines]
        refused = _stuck(job)
        return [NodeState(node, "gone", str(refused), refused=refused) for node in allocation.machines]

    def _find_in(self, region: str, owner: Owner) -> list[Allocation]:
        since = self._clients.clock.monotonic()
        launches: dict[str, JobState] = {}
        for one in reversed(self._sightings.of_owner(region, owner.name, since=since)):
            launches[one.token] = one  # the oldest overwrites others
        account = self._own()
        return [
            dataclasses.replace(
                allocations.of_found(TARGET, owner, Found(token, one.tags, one.machines(), region)),
                account=account,
                details={JOB: one.name},
            )
            for token, one in launches.items()
            if token
        ]


def _stuck(job: JobState) -> ProvisionError:
    """Return the error for a job that was in one state for longer than _RETRY_TIMEOUT_S."""
    if job.state == "QUEUED":
        message = (
            f"the job was in Vertex AI's queue for more than {QUEUE_S:.0f} s: the quota for training in {job.region} "
            "is used up; ask for more (aiplatform.googleapis.com) at IAM & Admin, Quotas, or choose another region or "
            "market"
        )
        return ProvisionError("quota", message, scope="region", code=job.state)
    message = (
        f"the job has not got its machines in {job.region} within {PENDING_S:.0f} s; allow more regions or markets, or "
        "choose market: flex-start, which waits for a day"
    )
    return ProvisionError("capacity", message, scope="region", code=job.state)


shared = CachedByEnvironment(
    VertexProvisioner, "GOOGLE_", "CLOUDSDK_", "CLOUDGPU_GCP_", "CLOUDGPU_VERTEX_", "STORAGE_EMULATOR_HOST"
)
"""Return the process's shared provisioner, so that its jobs share caches; another one if the settings change."""
