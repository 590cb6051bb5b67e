"""WSGI application of all Google APIs: identifies the caller, injects faults, dispatches to the services."""

from __future__ import annotations

import importlib
import io
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from ..faults import CONTROL, Call, Fault, Ledger, Rule
from ..serving import HTML_PAGE, obey_control, read_body, suffer
from .permissions import Policy
from .project import Project
from .service import ANY_SCOPE, RefusedError, Request, Response, Service, error_one_platform
from .tokens import Identity, OAuth

SERVICES: tuple[str, ...] = (
    # module:class, called with the project; the first service whose call() returns a Call handles the request
    "..gce.service:ComputeEngine",
    "..vertex.service:Vertex",
    "..gcp_catalog.billing:Billing",
    "..gcp_catalog.cloudquotas:CloudQuotas",
    ".platform:Iam",
    ".platform:ResourceManager",
    ".platform:Scheduler",
    ".platform:Workflows",
    "..gcs.json_api:JsonApi",
    "..gcs.xml_api:XmlApi",
)
"""Cloud Storage must be last: its paths begin with a bucket's name, which is arbitrary."""
_NOBODY = Identity("", frozenset({ANY_SCOPE}))


class GcpApp:
    """Application of one project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        project.app = self
        self.ledger = Ledger()
        self.services: list[Service] = [OAuth(project.tokens, lambda: project.url)]
        self.services += [_made(path, project) for path in SERVICES]
        self._policy: Policy | None = None
        self._verbs = self._own_verbs()
        for service in self.services:
            self._verbs |= {f"{service.name}/{verb}": call for verb, call in service.verbs().items()}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path.startswith(CONTROL):
            answer = Response(*obey_control(environ, path.removeprefix(CONTROL), self._verbs))
            answer.headers["Content-Type"] = "application/json"
        else:
            answer = self._serve(environ)
        headers = dict(answer.headers)
        if environ["REQUEST_METHOD"] != "HEAD" and answer.status not in (204, 304):
            headers["Content-Length"] = str(len(answer.body))
        start_response(f"{answer.status} {_phrase(answer.status)}", list(headers.items()))
        return [answer.body]

    def close(self) -> None:
        """Stop all services."""
        self._project.over.set()
        self._reset()
        for service in self.services:
            service.close()
        self._project.close()

    def held(self, caller: str, permissions: Iterable[str], resource: str) -> list[str]:
        """Return those of the permissions that the caller has on a resource, as testIamPermissions does."""
        return [one for one in permissions if self._policy is None or self._policy.has(caller, one, resource)]

    # -- one request

    def _serve(self, environ: dict[str, Any]) -> Response:
        request, who = self._read(environ)
        found = self._route(request)
        if found is None:
            text = f"{request.method} {request.path} is no route of the stand-in"
            return error_one_platform("StandinNotImplemented", 501, text)
        service, call = found
        call.caller = request.caller
        fault = self.ledger.open(call)
        answer = suffer(
            fault,
            environ,
            self._project.over,
            refuse=partial(_refuse_with, service),
            perform=lambda: self._perform(service, request, call, who),
            dropped=Response(0),
        )
        self.ledger.close(call, answer.status)
        return answer

    def _read(self, environ: dict[str, Any]) -> tuple[Request, Identity | None]:
        """Return the request and the caller's identity; None: its token is invalid."""
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        }
        kind, _, token = headers.get("authorization", "").partition(" ")
        who = self._project.tokens.who(token) if kind.lower() == "bearer" else (None if kind else _NOBODY)
        body = read_body(environ)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))  # may be read again
        path, _, query = environ.get("RAW_URI", environ.get("PATH_INFO", "/")).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        request = Request(
            environ["REQUEST_METHOD"],
            path,
            dict(pairs),
            headers,
            body,
            who.email if who else "",
            int(environ["REMOTE_PORT"]),
            tuple(pairs),
        )
        return request, who

    def _route(self, request: Request) -> tuple[Service, Call] | None:
        for service in self.services:
            if (call := service.call(request)) is not None:
                return service, call
        return None

    def _perform(self, service: Service, request: Request, call: Call, who: Identity | None) -> Response:
        try:
            return self._refusal(service, call, who) or service.answer(request, call)
        except RefusedError as refusal:
            return service.error(refusal.code, refusal.status, refusal.message)
        except Exception:  # noqa: BLE001 - a bug of the stand-in must not look like a server's error to be retried
            return error_one_platform("StandinBroken", 501, traceback.format_exc())

    def _refusal(self, service: Service, call: Call, who: Identity | None) -> Response | None:
        """Return the error response of authentication or IAM, or None."""
        if isinstance(service, OAuth):  # it issues the tokens
            return None
        if who is None or (not who.email and not (service.allows_anonymous(call) and self._policy is None)):
            return service.unauthenticated()
        if not _allows(who.scopes, service.scopes(call)):
            return service.out_of_scope()
        if self._policy is None:
            return None
        try:
            missing = self._policy.missing(call)
        except LookupError as error:
            return error_one_platform("StandinNotImplemented", 501, str(error))
        return None if missing is None else service.forbidden(missing.permission, missing.resource)

    # -- control verbs

    def _own_verbs(self) -> dict[str, Callable[..., Any]]:
        return {
            "fail": self._fail,
            "heal": lambda: self.ledger.clear(calls=False),
            "calls": self.ledger.calls,
            "forget": lambda: self.ledger.clear(rules=False),
            "reset": self._reset,
            "key": self._key,
            "environ": self._environ,
            "enforce": self._enforce,
            "used": self._used,
            "revoke": self._project.tokens.revoke,
        }

    def _fail(self, action: str, fault: dict[str, Any], **rule: Any) -> None:
        self.ledger.add(Rule(action, Fault(**fault), **rule))

    def _reset(self) -> None:
        self.ledger.clear()
        self._policy = None
        for service in self.services:
            service.reset()

    def _key(self, email: str) -> dict[str, str]:
        return self._project.tokens.key_file(email, self._project.id, f"{self._project.url}/token")

    def _environ(self) -> dict[str, str]:
        return {name: value for service in self.services for name, value in service.environ().items()}

    def _enforce(self, bindings: Mapping[str, list[Mapping[str, Any]]] | None) -> None:
        self._policy = None if bindings is None else Policy(bindings)

    def _used(self) -> list[tuple[str, str]]:
        return sorted(self._policy.used) if self._policy else []


def _made(path: str, project: Project) -> Service:
    module, _, name = path.partition(":")
    made: Service = getattr(importlib.import_module(module, __package__), name)(project)
    return made


def _refuse_with(service: Service, fault: Fault) -> Response:
    """Return the response of an error or html fault."""
    if fault.kind == "html":
        page = HTML_PAGE.format(status=fault.status).encode()
        return Response(fault.status, page, {"Content-Type": "text/html; charset=UTF-8"})
    answer = service.error(fault.code, fault.status, fault.message)
    answer.headers.update(fault.headers)
    return answer


def _allows(held: Collection[str], wanted: Collection[str]) -> bool:
    """Return whether the token's scopes suffice: no scopes at all, a wanted one, or the all-purpose one."""
    return not held or not wanted or ANY_SCOPE in held or bool(set(held) & set(wanted))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Stand-in"
