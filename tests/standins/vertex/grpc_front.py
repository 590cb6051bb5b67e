"""Vertex AI's JobService over gRPC: each call is translated to the equivalent REST request.

Both protocols therefore share the state machine, fault rules, recorded calls and permissions. Connection faults are
reported as a gRPC client sees them: UNAVAILABLE for a dropped connection or a response that is not gRPC. A call without
a token counts as the submitter's, since gRPC clients send no token over plain connections.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ..gcp.project import SUBMITTER, Project

SERVICE = "google.cloud.aiplatform.v1.JobService"
_THREADS = 32
"""Number of threads; each hanging call occupies one."""


@dataclass(frozen=True)
class Route:
    """REST equivalent of a method (google.api.http in job_service.proto)."""

    request: str
    response: str
    http: Callable[[Any], tuple[str, str, Mapping[str, Any], Any]]
    """The request message -> HTTP method, path, query, message of the body or None."""


def _list(request: Any) -> tuple[str, str, Mapping[str, Any], Any]:
    query = {"filter": request.filter, "pageSize": request.page_size, "pageToken": request.page_token}
    query["readMask"] = ",".join(request.read_mask.paths)
    return "GET", f"{request.parent}/customJobs", query, None


ROUTES = {
    "CreateCustomJob": Route(
        "CreateCustomJobRequest", "CustomJob", lambda r: ("POST", f"{r.parent}/customJobs", {}, r.custom_job)
    ),
    "GetCustomJob": Route("GetCustomJobRequest", "CustomJob", lambda r: ("GET", r.name, {}, None)),
    "ListCustomJobs": Route("ListCustomJobsRequest", "ListCustomJobsResponse", _list),
    "CancelCustomJob": Route("CancelCustomJobRequest", "", lambda r: ("POST", f"{r.name}:cancel", {}, None)),
    "DeleteCustomJob": Route("DeleteCustomJobRequest", "Operation", lambda r: ("DELETE", r.name, {}, None)),
}
_HTTP_STATUS = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "UNIMPLEMENTED"}
"""gRPC status of a response that is not gRPC (grpc/doc/http-grpc-status-mapping.md); default UNAVAILABLE or UNKNOWN."""


class GrpcFront:
    """A gRPC server on a separate port, in front of the project's REST APIs."""

    def __init__(self, project: Project) -> None:
        import grpc

        self._project = project
        options = [("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, "vertex-grpc"), options=options)
        handlers = {name: self._handler(route) for name, route in ROUTES.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait(180)

    def _handler(self, route: Route) -> Any:
        import grpc

        request, response = _message(route.request), _message(route.response)

        def perform(message: Any, context: Any) -> Any:
            return self._perform(route, message, response(), context)

        return grpc.unary_unary_rpc_method_handler(
            perform, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    def _perform(self, route: Route, message: Any, answer: Any, context: Any) -> Any:
        from google.protobuf import json_format

        method, name, query, body = route.http(message)
        data = b"" if body is None else json_format.MessageToJson(body).encode()
        status, kind, text = self._send(method, f"/v1/{quote(name, safe='/:')}", query, data, context)
        if status == 0:
            _abort(context, "UNAVAILABLE", "recvmsg:Connection reset by peer")
        if not kind.startswith("application/json"):
            code = _HTTP_STATUS.get(status, "UNAVAILABLE" if status in (429, 502, 503, 504) else "UNKNOWN")
            _abort(context, code, f"Received http2 header with status: {status}")
        if status >= 400:
            _refuse(context, json.loads(text)["error"])
        return json_format.Parse(text, answer)

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], data: bytes, context: Any
    ) -> tuple[int, str, bytes]:
        """Return status (0: the connection was dropped), content type and body."""
        result = {key: str(value) for key, value in query.items() if value}
        given = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        token = given.get("authorization") or f"Bearer {self._project.tokens.issue(SUBMITTER)}"
        connection = _Connection()
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "RAW_URI": f"{path}?{urlencode(result)}" if result else path,
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(data)),
            "HTTP_AUTHORIZATION": token,
            "REMOTE_PORT": str(urlsplit(f"//{context.peer().partition(':')[2]}").port),
            "wsgi.input": io.BytesIO(data),
            "werkzeug.socket": connection,
        }
        begun: list[Any] = []
        assert self._project.app is not None, "it is served"
        chunks = self._project.app(environ, lambda status, headers: begun.extend((status, dict(headers))))
        body = b"".join(chunks)
        status = 0 if connection.dropped else int(begun[0].split()[0])
        return status, begun[1].get("Content-Type", ""), body


class _Connection:
    """Replacement for a web server's socket, on which an app calls shutdown() to drop the connection."""

    dropped = False

    def shutdown(self, _how: int) -> None:
        self.dropped = True


def _message(name: str) -> Any:
    """Return the protobuf class."""
    from google.cloud import aiplatform_v1
    from google.longrunning.operations_pb2 import Operation
    from google.protobuf.empty_pb2 import Empty

    if name in ("", "Operation"):
        return Operation if name else Empty
    return getattr(aiplatform_v1, name).pb()


def _refuse(context: Any, error: Mapping[str, Any]) -> None:
    """Abort with an error of the REST API (google.rpc.Status with a different code), including its details."""
    import grpc
    from google.protobuf import json_format
    from google.rpc import error_details_pb2  # noqa: F401 - that the details' types are known
    from google.rpc.status_pb2 import Status

    code = getattr(grpc.StatusCode, error["status"])
    messages = {"code": code.value[0], "message": error["message"], "details": error.get("details", [])}
    status = json_format.ParseDict(messages, Status())
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, error["message"])


def _abort(context: Any, code: str, text: str) -> None:
    import grpc

    context.abort(getattr(grpc.StatusCode, code), text)
