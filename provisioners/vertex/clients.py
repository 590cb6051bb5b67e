"""Cached clients of Vertex AI's JobService, one for each region, with timeouts and retries.

By default the SDK's calls have neither. Account, project and credentials are those of the target `gcp`.
`CLOUDGPU_VERTEX_TRANSPORT` selects REST or gRPC.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from ...jobspecs.catalog.csv_tables import rows
from ..base import ProvisionError
from ..boot.record import is_loopback
from ..gcp import clients as gcp
from ..gcp.account import Account, error_translator
from ..shared import api_calls
from ..shared.clock import Clock, SystemClock

if TYPE_CHECKING:
    from google.cloud import aiplatform_v1

READ_S, WRITE_S, RETRY_TIMEOUT_S = gcp.READ_S, gcp.WRITE_S, gcp.RETRY_TIMEOUT_S
TRANSPORT = "CLOUDGPU_VERTEX_TRANSPORT"
ENDPOINT = "CLOUDGPU_VERTEX_ENDPOINT"
"""Environment variable with Vertex AI's endpoint in tests, e.g. for gRPC on a separate port; overrides the endpoint of
all Google APIs."""
TRANSPORTS = ("rest", "grpc")

_T = TypeVar("_T")

translate_error = error_translator("vertex")


class Clients:
    """Cache of the clients of one project. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.google = gcp.Clients(self.clock)
        """Clients of the target `gcp`, for project, service account and endpoint of Cloud Storage."""
        self.google.account = Account(self.clock, "vertex")
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def jobs(self, region: str) -> aiplatform_v1.JobServiceClient:
        """Return the JobService client of a region. Raises ProvisionError."""
        with self._lock:  # making clients is not thread-safe, using them is
            if region not in self._made:
                with translate_errors(f"reach Vertex AI in {region}", self.clock):
                    self._made[region] = self._make(region)
            return cast("aiplatform_v1.JobServiceClient", self._made[region])

    def parent(self, region: str) -> str:
        """Return the parent resource of a region's jobs. Raises ProvisionError."""
        return f"projects/{self.google.project}/locations/{region}"

    def ask(self, doing: str, call: Callable[[], _T]) -> _T:
        """Return the result of an idempotent call, retried while it is throttled or not answered. Raises
        ProvisionError."""
        return api_calls.ask(call, translate_error, doing, timeout_s=RETRY_TIMEOUT_S, clock=self.clock)

    def forget(self) -> None:
        """Drop clients and credentials, so that the next call reloads them: the user may have logged in again."""
        with self._lock:
            self._made.clear()
        self.google.forget()

    def _make(self, region: str) -> Any:
        transport = os.environ.get(TRANSPORT) or TRANSPORTS[0]
        if transport not in TRANSPORTS:
            message = f"{TRANSPORT}={transport}: there are {' and '.join(TRANSPORTS)}"
            raise ProvisionError("invalid", message, scope="cloud")
        endpoint = self._endpoint(region)
        credentials = self.google.account.credentials
        try:
            from google.cloud import aiplatform_v1
        except ImportError as error:
            message = "the target vertex needs Google's SDK: pip install 'cloudgpu[gcp]'"
            raise ProvisionError("invalid", message, scope="cloud", code="google-cloud-aiplatform") from error
        if transport == "grpc" and endpoint.startswith("http:"):
            from .insecure_channel import plain_transport

            return aiplatform_v1.JobServiceClient(transport=plain_transport(urlsplit(endpoint).netloc, credentials))
        if transport == "grpc":
            endpoint = urlsplit(endpoint).netloc
        options = {"api_endpoint": endpoint}
        return aiplatform_v1.JobServiceClient(transport=transport, credentials=credentials, client_options=options)

    def _endpoint(self, region: str) -> str:
        """Return the endpoint URL for a region: each regional endpoint serves only the jobs of its region."""
        own = os.environ.get(ENDPOINT, "").rstrip("/")
        api_calls.check_encrypted(ENDPOINT, own)
        if own and not is_loopback(own):
            raise ProvisionError("invalid", f"{ENDPOINT}: {own} is not on this machine: it is for tests", scope="cloud")
        return own or self.google.account.endpoint or f"https://{region}-aiplatform.googleapis.com"


def regions() -> list[str]:
    """Return the regions that have Vertex AI."""
    return sorted(region for (region,) in rows("regions_vertex", "region") if region != "global")


def translate_errors(doing: str, clock: Clock) -> contextlib.AbstractContextManager[None]:
    """Context manager: translate the SDK's exceptions to ProvisionError, with `doing` in the message."""
    return api_calls.translate_errors(translate_error, doing, clock)
