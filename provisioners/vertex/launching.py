"""One launch: the custom job is looked for, and created if there is none.

CreateCustomJob knows no request id. So what an unanswered call has come to is found by the launch's token, which is a
label of the job: nothing is created again before that was looked for, for a while.
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
from .clients import PATIENCE_S, WRITE_S, Clients, translate_errors
from .job_cache import Sighting, Sightings, sighting
from .request import custom_job, read_settings
from .teardown import keep_one

log = logging.getLogger("cloudgpu.provisioners.vertex")

UNSEEN_S = 20.0
"""So long a new job may be missing in lists (unverified)."""
DOUBT_S = 120.0
"""So long whoever ends a launch looks for a job that nobody has seen, after a call without an answer."""
_POLL_S = 2.0


@dataclass(slots=True)
class Launch:
    """A request on its way. run() is called once."""

    clients: Clients
    sightings: Sightings
    request: LaunchRequest
    on_asked: Callable[[], None]
    """Called before a job may come to be."""
    on_answered: Callable[[], None]
    """Called when it is known what came of that."""
    doubtful: float | None = None
    """Epoch seconds until which a list may still show another job: one whose creation was not answered."""
    is_fresh: bool = False
    """This call has created the job, as Allocation.is_fresh says."""

    def run(self) -> Sighting:
        """The job, new or not. Raises ProvisionError; then there is none of this launch, or it is not known."""
        body = self._body()
        found = self._find()
        if found is not None:
            return found
        self._check_quotas()
        return retry(lambda: self._create(json.dumps(body)), timeout_s=PATIENCE_S, clock=self.clients.clock)

    def _body(self) -> dict[str, Any]:
        """What cannot be asked for was asked for by nobody: whoever called before came to the same."""
        google = self.clients.google
        try:
            return custom_job(self.request, read_settings(google.service_account, google.storage_endpoint))
        except ProvisionError:
            self.on_answered()
            raise

    def _check_quotas(self) -> None:
        """A job that its quota can never hold would wait in the queue. Raises ProvisionError(quota)."""
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
            self.on_answered()
            raise

    def _find(self) -> Sighting | None:
        """Also if it has ended: what was started once is not started again."""
        return keep_one(self.clients, self.sightings.of_token(self.request.region, self.request.token, live=False))

    def _create(self, body: str) -> Sighting:
        """Sent once. Raises ProvisionError; if it is `throttled` or `transient` there is no job, so far as can be seen:
        it may be called again."""
        from google.cloud import aiplatform_v1

        request, clock = self.request, self.clients.clock
        jobs, parent = self.clients.jobs(request.region), self.clients.parent(request.region)
        job = aiplatform_v1.CustomJob.from_json(body)
        names = ", ".join(node.node for node in request.nodes[:3]) + (", …" if len(request.nodes) > 3 else "")
        doing = f"start {names} ({request.market} {request.nodes[0].machine_type}) in {request.region}"
        self.on_asked()
        try:
            with mark_may_have_created(), translate_errors(doing, clock):
                made = jobs.create_custom_job(parent=parent, custom_job=job, timeout=WRITE_S, retry=None)
        except ProvisionError as error:
            if error.error_class not in UNKNOWN:
                if self.doubtful is None:  # else what an earlier call has made may yet be seen
                    self.on_answered()
                raise
            with mark_may_have_created():
                found = self._look_for() if error.error_class == "transient" else None
            if found is None:
                if error.error_class == "transient":
                    self.doubtful = clock.now() + DOUBT_S
                raise
            log.info("%s: %s; it was started all the same: %s", request.job_id, error, found.name)
            self.on_answered()
            return found
        self.on_answered()
        self.is_fresh = self.doubtful is None
        return sighting(made)

    def _look_for(self) -> Sighting | None:
        """What a call without an answer has made; None: it cannot be seen within UNSEEN_S."""
        clock = self.clients.clock
        until = clock.monotonic() + UNSEEN_S
        while True:
            found = self._find()
            if found is not None or clock.monotonic() > until:
                return found
            pause(clock, _POLL_S)
