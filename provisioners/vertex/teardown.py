"""The end of custom jobs: they are cancelled, and stay as records that nothing is paid for.

A record is also what tells a later launch() that the job was started once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from ..base import Ended, ProvisionError
from .clients import WRITE_S, Clients
from .job_cache import Sighting, Sightings

log = logging.getLogger("cloudgpu.provisioners.vertex")

PATIENCE_S = 300.0
"""So long a cancelled job is waited for to end. Whoever wants it gone then asks again."""
_POLL_S = 3.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to end, in one region. Every step may be repeated; nothing is done for what is gone."""

    clients: Clients
    sightings: Sightings
    region: str
    token: str
    """"" if nobody knows it: then only what is named is ended."""
    names: Collection[str] = ()
    """Jobs that somebody knows of: they are ended also if no list shows them yet."""
    unseen_s: float = 0.0
    """So long it may be that a list does not show a job whose creation nobody has an answer to."""

    def run(self) -> Ended:
        """Cancel all of it; returns when nothing bills any more. Raises ProvisionError, and may then be run again."""
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
                return Ended(any(one.started for one in found), at)
            if left and waited > PATIENCE_S:
                message = f"{left[0].name} was cancelled {waited:.0f} s ago, and is {left[0].state} still"
                raise ProvisionError("transient", message, scope="region", code="StillThere")
            clock.sleep(_POLL_S)

    def _found(self) -> list[Sighting]:
        """All jobs of the launch, also those that have ended."""
        listed = self.sightings.of_token(self.region, self.token, live=False) if self.token else []
        seen = {one.name for one in listed}
        hidden = [self.sightings.named(name) for name in self.names if name not in seen]
        return [one for one in (*listed, *hidden) if one is not None]


def keep_one(clients: Clients, found: list[Sighting]) -> Sighting | None:
    """Of the jobs of one launch, the oldest first: the one that counts. The others, should there be any, are ended.

    There is a second one if the list did not show, for a long time, a job whose creation was not answered. Its nodes
    find their places in the job dir taken. A record of one that has ended is deleted: it tells nothing.
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
    """Tell a job to end; one that has ended, or that nobody knows, is nobody's business. Raises ProvisionError."""
    jobs = clients.jobs(name.split("/")[3])
    from google.api_core.exceptions import BadRequest, FailedPrecondition, NotFound

    def ask() -> None:
        try:
            jobs.cancel_custom_job(name=name, timeout=WRITE_S, retry=None)
        except NotFound:
            return
        except BadRequest as error:  # over REST also what is FailedPrecondition over gRPC
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
    """`FAILED_PRECONDITION`, as the wire has it."""
    from google.api_core.exceptions import GoogleAPICallError

    from ..gcp.account import reason_of

    return reason_of(error)[0] if isinstance(error, GoogleAPICallError) else ""
