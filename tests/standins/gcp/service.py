"""Interface between one Google API of the stand-in and the app that serves them all."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..faults import Call

ANY_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The scope that every method accepts."""


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    """Percent-encoded, without the query."""
    query: dict[str, str]
    """Query parameters; of a repeated one, the last value."""
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes
    caller: str
    """Account of the bearer token; "": no token."""
    port: int
    """The caller's port of the connection."""
    pairs: tuple[tuple[str, str], ...] = ()
    """All query parameters, with repeated ones."""

    def json(self) -> Any:
        """Parse the body; an empty one is {}. Raises RefusedError with the message of Google's front end."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise RefusedError("parseError", 400, f"Invalid JSON payload received. {error}") from error


@dataclass
class Response:
    """HTTP response. The app adds Content-Length."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The service refuses the call; the app responds with the service's `error()`."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


class Service(ABC):
    """One API. Its state must be guarded by a lock, since requests come from many threads."""

    name: str
    """Name in Call.service, permissions.csv and the control's verbs."""

    @abstractmethod
    def call(self, request: Request) -> Call | None:
        """Parse a request; return None if it is no route of this service. Never raises.

        `action` is the method's id in Google's discovery document without the API's name (`instances.insert`,
        `projects.locations.customJobs.create`); `params` are the values from path, query and (flattened) body that
        rules and permissions use; `params["resource"]` is the full name of the resource, for roles bound to specific
        resources.
        """

    def allows_anonymous(self, call: Call) -> bool:
        """Return whether a call without a token is accepted (while nothing is enforced)."""
        return False

    @abstractmethod
    def answer(self, request: Request, call: Call) -> Response:
        """Handle the call. May raise RefusedError."""

    @abstractmethod
    def error(self, code: str, status: int, message: str) -> Response:
        """Return an error in the service's format; `code` is the reason (`rateLimitExceeded`) or the status's name."""

    def unauthenticated(self) -> Response:
        """Return the response to a missing or invalid token."""
        text = (
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
            "valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
        )
        return self.error("authError", 401, text)

    def out_of_scope(self) -> Response:
        """Return the response to a token with insufficient scopes."""
        return self.error("insufficientPermissions", 403, "Request had insufficient authentication scopes.")

    def forbidden(self, permission: str, resource: str) -> Response:
        """Return the response to a missing permission."""
        return self.error("forbidden", 403, f"Required '{permission}' permission for '{resource}'")

    def scopes(self, call: Call) -> Collection[str]:
        """Return the OAuth scopes of which a token needs one for this call."""
        return (ANY_SCOPE,)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        """Return the control verbs of the service: `control.do("<name>/<verb>", …)`; arguments and results are JSON."""
        return {}

    def environ(self) -> Mapping[str, str]:
        """Return variables, beside those of control.environ(), that point clients to it, e.g. to a separate port."""
        return {}

    def reset(self) -> None:  # noqa: B027 - there may be nothing to do
        """Restore the initial state and stop everything."""

    def close(self) -> None:  # noqa: B027
        """Close the service; called after reset()."""


def answer_json(value: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_legacy(code: str, status: int, message: str, domain: str = "global") -> Response:
    """Return an error as Compute Engine and Cloud Storage's JSON API do: the reason is in `errors`."""
    result = {"message": message, "domain": domain, "reason": code}
    error: dict[str, Any] = {"code": status, "message": message, "errors": [result]}
    if status in _STATUS:
        error["status"] = _STATUS[status]
    return answer_json({"error": error}, status)


def error_one_platform(code: str, status: int, message: str, domain: str = "googleapis.com") -> Response:
    """Return an error as newer APIs do (google.rpc.Status); a code that is no status's name becomes an ErrorInfo's
    reason."""
    error: dict[str, Any] = {"code": status, "message": message}
    if code in _STATUS.values():
        error["status"] = code
    else:
        error["status"] = _STATUS.get(status, "UNKNOWN")
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": domain}
        error["details"] = [info]
    return answer_json({"error": error}, status)
