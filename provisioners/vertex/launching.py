"""Launch of a custom job: find it by the launch's token, or create it.

CreateCustomJob has no request id, so that it is not idempotent. The launch's token is therefore a label of the job:
after an unanswered create call, lists are searched for the job for UNSEEN_S seconds before the call is repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..base import LaunchRequest, ProvisionError
from ..gcp.catalog import quotas
from ..shared.api_calls import UNKNOWN, mark_may_have_created, pause, retry
from .clients import RETRY_TIMEOUT_S, WRITE_S, Clients, translate_errors
from .job_cache import JobCache, JobState, sighting
from .request import custom_job, read_settings
from .teardown import end_duplicates

log = logging.getLogger("cloudgpu.provisioners.vertex")

UNSEEN_S = 20.0
"""Seconds for which a new job may be missing from lists (unverified)."""
SEARCH_S = 120.0
"""Seconds for which, after a create call without an answer, terminate() searches for a job that was not listed."""
_POLL_S = 2.0


@dataclass(slots=True)
class Launch:
    """Launch of one request. Call run() only once."""

    clients: Clients
    sightings: JobCache
    request: LaunchRequest
    on_create: Callable[[], None]
    """Called before a create call."""
    on_outcome_known: Callable[[], None]
    """Called when the outcome of all create calls is known."""
    may_appear_until: float | None = None
    """Epoch seconds until which another job of the launch may appear in lists, from an unanswered create call; None:
    no create call is unanswered."""
    is_fresh: bool = False
    """True if this call created the job (Allocation.is_fresh)."""

    def run(self) -> JobState:
        """Return the launch's job, existing or new. Raises ProvisionError if none was created, or this is unknown."""
        body = self._body()
        found = self._find()
        if found is not None:
            return found
        self._check_quotas()
        return retry(lambda: self._create(json.dumps(body)), timeout_s=RETRY_TIMEOUT_S, clock=self.clients.clock)

    def _body(self) -> dict[str, Any]:
        """Return the request's body. Raises ProvisionError if it is invalid.

        The body is deterministic: if it is invalid now, no earlier call can have created a job."""
        google = self.clients.google
        try:
            own = google.account.endpoint or None
            return custom_job(self.request, read_settings(google.service_account, google.storage_endpoint, own))
        except ProvisionError:
            self.on_outcome_known()
            raise

    def _check_quotas(self) -> None:
        """Raise ProvisionError(quota) if the job exceeds its quota; Vertex AI would leave it in the queue."""
        request = self.request
        try:
            quotas.check(
                self.clients.google.rest,
                region=request.region,
                market=request.market,
                nodes=request.nodes,
                target="vertex",
            )
        except ProvisionError:
            self.on_outcome_known()
            raise

    def _find(self) -> JobState | None:
        """Return the launch's job, even if it has ended, since it must not be started again; None: there is none."""
        return end_duplicates(
            self.clients, self.sightings.of_token(self.request.region, self.request.token, live=False)
        )

    def _create(self, body: str) -> JobState:
        """Send the create call once and return the job. Raises ProvisionError.

        After `throttled` or `transient` no job is listed, and the call may be retried."""
        from google.cloud import aiplatform_v1

        request, clock = self.request, self.clients.clock
        jobs, parent = self.clients.jobs(request.region), self.clients.parent(request.region)
        job = aiplatform_v1.CustomJob.from_json(body)
        names = ", ".join(node.node for node in request.nodes[:3]) + (", …" if len(request.nodes) > 3 else "")
        doing = f"start {names} ({request.market} {request.nodes[0].machine_type}) in {request.region}"
        self.on_create()
        try:
            with mark_may_have_created(), translate_errors(doing, clock):
                made = jobs.create_custom_job(parent=parent, custom_job=job, timeout=WRITE_S, retry=None)
        except ProvisionError as error:
            if error.error_class not in UNKNOWN:
                if self.may_appear_until is None:  # otherwise a job of an earlier call may still appear
                    self.on_outcome_known()
                raise
            with mark_may_have_created():
                found = self._look_for() if error.error_class == "transient" else None
            if found is None:
                if error.error_class == "transient":
                    self.may_appear_until = clock.now() + SEARCH_S
                raise
            log.info("%s: %s; it was started all the same: %s", request.job_id, error, found.name)
            self.on_outcome_known()
            return found
        self.on_outcome_known()
        self.is_fresh = self.may_appear_until is None
        return sighting(made)

    def _look_for(self) -> JobState | None:
        """Return the job that an unanswered call created; None if none is listed within UNSEEN_S."""
        clock = self.clients.clock
        until = clock.monotonic() + UNSEEN_S
        while True:
            found = self._find()
            if found is not None or clock.monotonic() > until:
                return found
            pause(clock, _POLL_S)
