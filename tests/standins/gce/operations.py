"""Operations: asynchronous requests and system events.

They follow the API reference (ZoneOperations, GlobalOperations, RegionOperations) and traces of real operations: a
mutating call returns a running operation, and its errors are in the finished operation. A repeated request id returns
the earlier operation, whatever its result.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from ..gcp.service import RefusedError
from .catalog import HOST, identity

if TYPE_CHECKING:
    from .world import World

_PACIFIC = timezone(timedelta(hours=-8))
_MESSAGES = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 503: "SERVICE UNAVAILABLE"}


class FailedError(Exception):
    """The request could not be carried out; its operation ends with this error."""

    def __init__(self, code: str, status: int, message: str, details: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.code, self.status, self.message, self.details = code, status, message, list(details)


def now() -> str:
    """Return the current time in Compute Engine's format: milliseconds, Pacific time."""
    return stamp(time.time())


def stamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, _PACIFIC).isoformat(timespec="milliseconds")


@dataclass
class Operations:
    """Operations of a project. All methods require the world's lock."""

    world: World
    known: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """(scope, name) -> operation, in order of creation."""
    _asked: dict[tuple[str, str], str] = field(default_factory=dict)
    """(scope, request id) -> name"""

    def repeated(self, scope: str, request_id: str) -> dict[str, Any] | None:
        """Return the operation of an earlier call with this request id, or None. Raises RefusedError for an invalid
        UUID."""
        if not request_id:
            return None
        try:
            valid = uuid.UUID(request_id).int != 0
        except ValueError:
            valid = False
        if not valid:
            text = f"Invalid value for field 'requestId': '{request_id}'. The request_id is not a valid UUID."
            raise RefusedError("invalid", 400, text)
        name = self._asked.get((scope, request_id))
        return self.known[scope, name] if name is not None else None

    def begin(
        self,
        kind: str,
        scope: str,
        target: str,
        target_id: str,
        *,
        user: str,
        request_id: str = "",
        work: Callable[[], float | None] = lambda: None,
        delay_s: float | None = None,
    ) -> dict[str, Any]:
        """Start an operation; return a copy of its initial state. `work` runs after a delay. It may raise FailedError;
        it returns the seconds until it is to be called again, or None when done."""
        made = self._make(kind, scope, target, target_id, user)
        made |= {"status": "RUNNING", "progress": 0}
        if request_id:
            made["clientOperationId"] = request_id
            self._asked[scope, request_id] = made["name"]
        begun = dict(made)
        self.world.after(self.world.delay_s if delay_s is None else delay_s, lambda: self._work(made, work))
        return begun

    def happened(self, kind: str, scope: str, target: str, target_id: str, message: str) -> None:
        """Record a system event."""
        made = self._make(kind, scope, target, target_id, "system")
        made |= {"status": "DONE", "progress": 100, "endTime": now(), "statusMessage": message}

    def _make(self, kind: str, scope: str, target: str, target_id: str, user: str) -> dict[str, Any]:
        name = f"{'systemevent' if user == 'system' else 'operation'}-{time.time_ns()}-{uuid.uuid4().hex[:21]}"
        base = f"{HOST}/projects/{self.world.project.id}"
        at = now()
        made: dict[str, Any] = {
            "kind": "compute#operation",
            "id": identity("operation", name),
            "name": name,
            "operationType": kind,
            "targetLink": target,
            "targetId": target_id,
            "user": user,
            "insertTime": at,
            "startTime": at,
            "selfLink": f"{base}/{scope}/operations/{name}",
        }
        if scope != "global":
            made[scope.partition("/")[0].removesuffix("s")] = f"{base}/{scope}"
        self.known[scope, name] = made
        return made

    def _work(self, operation: dict[str, Any], work: Callable[[], float | None]) -> None:
        try:
            again_s = work()
        except Exception as error:  # noqa: BLE001 - a bug of the stand-in must not leave the operation running for ever
            failed = error if isinstance(error, FailedError) else _broken()
            result: dict[str, Any] = {"code": failed.code, "message": failed.message}
            if failed.details:
                result["errorDetails"] = failed.details
            operation["error"] = {"errors": [result]}
            operation["httpErrorStatusCode"] = failed.status
            operation["httpErrorMessage"] = _MESSAGES.get(failed.status, "ERROR")
        else:
            if again_s is not None:
                self.world.after(again_s, lambda: self._work(operation, work))
                return
        operation |= {"status": "DONE", "progress": 100, "endTime": now()}
        self.world.changed.notify_all()


def _broken() -> FailedError:
    return FailedError("StandinBroken", 501, traceback.format_exc())
