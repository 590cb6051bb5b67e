"""Vertex AI's JobService, a client for each region, each call with an end to its patience.

The SDK's own defaults are none: its calls wait for ever, and are sent once. Account, project and credentials are those
of the target `gcp`. Over which wire says `CLOUDGPU_VERTEX_TRANSPORT`; both are told apart by nothing else here.
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

READ_S, WRITE_S, PATIENCE_S = gcp.READ_S, gcp.WRITE_S, gcp.RETRY_TIMEOUT_S
TRANSPORT = "CLOUDGPU_VERTEX_TRANSPORT"
ENDPOINT = "CLOUDGPU_VERTEX_ENDPOINT"
"""Instead of what stands for all of Google's APIs: a test's, for the port where it speaks gRPC."""
TRANSPORTS = ("rest", "grpc")

_T = TypeVar("_T")

translate_error = error_translator("vertex")


class Clients:
    """The clients of one project: each is made once, and may be used by any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.google = gcp.Clients(self.clock)
        """For what both targets have in common: project, service account, endpoint of Cloud Storage."""
        self.google.account = Account(self.clock, "vertex")
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def jobs(self, region: str) -> aiplatform_v1.JobServiceClient:
        """Raises ProvisionError."""
        with self._lock:  # making clients is not thread-safe, using them is
            if region not in self._made:
                with translate_errors(f"reach Vertex AI in {region}", self.clock):
                    self._made[region] = self._make(region)
            return cast("aiplatform_v1.JobServiceClient", self._made[region])

    def parent(self, region: str) -> str:
        """What a region's jobs are in. Raises ProvisionError."""
        return f"projects/{self.google.project}/locations/{region}"

    def ask(self, doing: str, call: Callable[[], _T]) -> _T:
        """An answer, or ProvisionError: a question is asked again while it is throttled or not answered."""
        return api_calls.ask(call, translate_error, doing, timeout_s=PATIENCE_S, clock=self.clock)

    def forget(self) -> None:
        """Read the settings anew: whoever's credentials had expired may have logged in again."""
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
        """Jobs of a region are known to that region's own endpoint only."""
        own = os.environ.get(ENDPOINT, "").rstrip("/")
        api_calls.check_encrypted(ENDPOINT, own)
        if own and not is_loopback(own):
            raise ProvisionError("invalid", f"{ENDPOINT}: {own} is not on this machine: it is for tests", scope="cloud")
        return own or self.google.account.endpoint or f"https://{region}-aiplatform.googleapis.com"


def regions() -> list[str]:
    """Where Vertex AI is served."""
    return sorted(region for (region,) in rows("regions_vertex", "region") if region != "global")


def translate_errors(doing: str, clock: Clock) -> contextlib.AbstractContextManager[None]:
    """Raise ProvisionError in the place of the SDK's errors, with what was being done."""
    return api_calls.translate_errors(translate_error, doing, clock)
