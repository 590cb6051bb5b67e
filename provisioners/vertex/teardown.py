"""Teardown of custom jobs: cancel them. They remain as records, which are not billed.

A later launch() with the same token finds the record, and does not start the job again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from ..base import ProvisionError, TerminateResult
from .clients import WRITE_S, Clients
from .job_cache import JobCache, JobState

log = logging.getLogger("cloudgpu.provisioners.vertex")

RETRY_TIMEOUT_S = 300.0
"""Timeout in seconds for the end of a cancelled job. The caller then retries."""
_POLL_S = 3.0


@dataclass(frozen=True, slots=True)
class Teardown:
    """Teardown of one launch in one region. All steps are idempotent."""

    clients: Clients
    sightings: JobCache
    region: str
    token: str
    """Launch token; "": unknown, so that only the jobs in `names` are cancelled."""
    names: Collection[str] = ()
    """Job names from the allocation: cancelled even if lists do not show them yet."""
    unseen_s: float = 0.0
    """Seconds for which to search for a job from an unanswered create call."""

    def run(self) -> TerminateResult:
        """Cancel all jobs of the launch; return when nothing is billed any more. Raises ProvisionError; may be retried
        then."""
        clock = self.clients.clock
        begun = clock.monotonic()
        cancelled: set[str] = set()
        at = clock.now()
        while True:
            found = self._found()
            left = [one for one in found if not one.is_gone]
            at = clock.now() if left else at
            for one in left:
                if one.name not in cancelled and one.state != "CANCELLING":
                    cancel(self.clients, one.name)
                    cancelled.add(one.name)
            waited = clock.monotonic() - begun
            if not left and waited >= self.unseen_s:
                return TerminateResult(any(one.started for one in found), at)
            if left and waited > RETRY_TIMEOUT_S:
                message = f"{left[0].name} was cancelled {waited:.0f} s ago, and is {left[0].state} still"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            clock.sleep(_POLL_S)

    def _found(self) -> list[JobState]:
        """Return all jobs of the launch, including ended ones."""
        listed = self.sightings.of_token(self.region, self.token, live=False) if self.token else []
        seen = {one.name for one in listed}
        hidden = [self.sightings.named(name) for name in self.names if name not in seen]
        return [one for one in (*listed, *hidden) if one is not None]


def end_duplicates(clients: Clients, found: list[JobState]) -> JobState | None:
    """Choose the job to keep (the oldest live one, else the oldest), and end duplicates; None if `found` is empty.

    A duplicate exists if a job from an unanswered create call appeared in lists too late. It cannot claim its nodes in
    the job dir. Live duplicates are cancelled; records of ended ones are deleted.
    """
    if not found:
        return None
    kept = min(found, key=lambda one: (one.is_gone, one.created, one.name))
    for one in found:
        if one is kept:
            continue
        if one.is_gone:
            _delete(clients, one.name)
        elif one.state != "CANCELLING":
            log.warning("%s was started twice: %s is ended, %s goes on", one.token, one.name, kept.name)
            cancel(clients, one.name)
    return kept


def cancel(clients: Clients, name: str) -> None:
    """Cancel a job. Idempotent; no-op if it has ended or does not exist. Raises ProvisionError."""
    jobs = clients.jobs(name.split("/")[3])
    from google.api_core.exceptions import BadRequest, FailedPrecondition, NotFound

    def ask() -> None:
        try:
            jobs.cancel_custom_job(name=name, timeout=WRITE_S, retry=None)
        except NotFound:
            return
        except BadRequest as error:  # over REST this includes FailedPrecondition
            if not isinstance(error, FailedPrecondition) and "FAILED_PRECONDITION" not in _status(error):
                raise

    clients.ask(f"cancel {name}", ask)


def _delete(clients: Clients, name: str) -> None:
    jobs = clients.jobs(name.split("/")[3])
    from google.api_core.exceptions import NotFound

    def ask() -> None:
        try:
            jobs.delete_custom_job(name=name, timeout=WRITE_S, retry=None)
        except NotFound:
            return

    try:
        clients.ask(f"delete {name}", ask)
    except ProvisionError as error:
        log.warning("a record is left: %s", error)


def _status(error: Exception) -> str:
    """Return the status name in the response, e.g. `FAILED_PRECONDITION`; "": unknown."""
    from google.api_core.exceptions import GoogleAPICallError

    from ..gcp.account import reason_of

    return reason_of(error)[0] if isinstance(error, GoogleAPICallError) else ""
