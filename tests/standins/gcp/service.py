"""What the stand-in for one Google API is to the app that serves them all: requests in, answers out."""

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
    """One request, as it came."""

    method: str
    path: str
    """Still percent-encoded, without the query."""
    query: dict[str, str]
    """Of a parameter that is there several times, the last."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    caller: str
    """The account of the bearer token; "": there is none."""
    port: int
    """The caller's, of the connection."""

    def json(self) -> Any:
        """The body; an empty one is {}. Raises RefusedError in the words of Google's front end."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise RefusedError("parseError", 400, f"Invalid JSON payload received. {error}") from error


@dataclass
class Response:
    """What is answered. Content-Length is added by the app."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The service says no; the app answers with the service's own `error()`."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


class Service(ABC):
    """One API. It keeps its own state, behind a lock of its own: requests come from many threads."""

    name: str
    """In Call.service, permissions.csv and the control's verbs."""

    @abstractmethod
    def call(self, request: Request) -> Call | None:
        """What this request asks for; None: it is no route of this service.

        `action` is the method's id in Google's discovery document without the API's name (`instances.insert`,
        `projects.locations.customJobs.create`); `params` are the texts of path, query and, flat, of the body that
        rules and permissions look at; `params["resource"]` is the full name of what it is about, for roles that are
        bound to some resources only. Never raises.
        """

    def admits_anybody(self, call: Call) -> bool:
        """Return whether a call without a token is accepted (while nothing is enforced)."""
        return False

    @abstractmethod
    def answer(self, request: Request, call: Call) -> Response:
        """Do it. May raise RefusedError."""

    @abstractmethod
    def error(self, code: str, status: int, message: str) -> Response:
        """An error in the service's own form; `code` is the reason (`rateLimitExceeded`) or the status's name."""

    def unauthenticated(self) -> Response:
        """There is no token, or not a valid one."""
        text = (
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
            "valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
        )
        return self.error("authError", 401, text)

    def out_of_scope(self) -> Response:
        """The token's scopes do not cover it."""
        return self.error("insufficientPermissions", 403, "Request had insufficient authentication scopes.")

    def forbidden(self, permission: str, resource: str) -> Response:
        """The account has not got a permission."""
        return self.error("forbidden", 403, f"Required '{permission}' permission for '{resource}'")

    def scopes(self, call: Call) -> Collection[str]:
        """The OAuth scopes of which a token needs one for this."""
        return (ANY_SCOPE,)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        """What tests may do with it: `control.do("<name>/<verb>", …)`; arguments and results are JSON."""
        return {}

    def environ(self) -> Mapping[str, str]:
        """Variables beside those of control.environ() that point clients to it, e.g. to a port of its own."""
        return {}

    def reset(self) -> None:  # noqa: B027 - there may be nothing to do
        """As at the start: nothing is there, nothing runs."""

    def close(self) -> None:  # noqa: B027
        """The stand-in ends; called after reset()."""


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
    """As Compute Engine and Cloud Storage's JSON API say it: the reason stands in `errors`."""
    told = {"message": message, "domain": domain, "reason": code}
    error: dict[str, Any] = {"code": status, "message": message, "errors": [told]}
    if status in _STATUS:
        error["status"] = _STATUS[status]
    return answer_json({"error": error}, status)


def error_one_platform(code: str, status: int, message: str, domain: str = "googleapis.com") -> Response:
    """As the newer APIs say it (google.rpc.Status); a code that is no status' name goes into an ErrorInfo's reason."""
    error: dict[str, Any] = {"code": status, "message": message}
    if code in _STATUS.values():
        error["status"] = code
    else:
        error["status"] = _STATUS.get(status, "UNKNOWN")
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": domain}
        error["details"] = [info]
    return answer_json({"error": error}, status)
