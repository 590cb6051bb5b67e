"""Unencrypted gRPC channel to the loopback, for tests; gRPC itself sends credentials over TLS only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.aiplatform_v1.services.job_service.transports.grpc import JobServiceGrpcTransport


def plain_transport(target: str, credentials: Credentials) -> JobServiceGrpcTransport:
    """Return an unencrypted transport. `target`: host and port; the caller must ensure that it is on the loopback."""
    from google.cloud.aiplatform_v1.services.job_service.transports.grpc import JobServiceGrpcTransport

    options = [("grpc.enable_http_proxy", 0)]  # no proxy for the loopback
    channel = grpc.intercept_channel(grpc.insecure_channel(target, options), _Bearer(credentials))
    return JobServiceGrpcTransport(channel=channel)


class _Details(NamedTuple):
    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Bearer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc,type-arg,unused-ignore]
    """Interceptor that adds the access token to the metadata of each call."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,  # gRPC's type
        request: Any,
    ) -> Any:
        from google.auth.transport.requests import Request

        headers: dict[str, str] = {}
        with self._lock:
            self._credentials.before_request(Request(), "POST", "", headers)  # type: ignore[no-untyped-call]
        metadata = [*(client_call_details.metadata or ()), *((key.lower(), text) for key, text in headers.items())]
        names = ("method", "timeout", "credentials", "wait_for_ready", "compression")
        values = {name: getattr(client_call_details, name, None) for name in names}
        return continuation(_Details(metadata=metadata, **values), request)
