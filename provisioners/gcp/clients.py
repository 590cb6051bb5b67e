"""Compute Engine clients of one project, with bounded retries.

The SDK's polling of operations is not used: it would create a client without the configured endpoint and timeouts.
`operations.py` polls instead.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..base import ProvisionError
from ..shared import api_calls
from ..shared.clock import Clock, SystemClock
from .account import Account, error_translator, is_set_up
from .rest import Rest

if TYPE_CHECKING:
    from google.cloud import compute_v1

__all__ = [
    "READ_S",
    "RETRY_TIMEOUT_S",
    "WRITE_S",
    "Clients",
    "ignore_not_found",
    "is_set_up",
    "need_sdk",
    "translate_error",
    "translate_errors",
]

READ_S = 30.0
"""Timeout in seconds of a read request; a list of all zones takes seconds."""
WRITE_S = 60.0
"""Timeout in seconds of a write request, which only starts an operation."""
RETRY_TIMEOUT_S = 90.0
"""Timeout of retries in seconds, for calls that are throttled or not answered."""
_SERVICE_ACCOUNT = "CLOUDGPU_GCP_SERVICE_ACCOUNT"
_STORAGE = "STORAGE_EMULATOR_HOST"

_T = TypeVar("_T")

translate_error = error_translator("gcp")


class Clients:
    """Clients of one project, each created once. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.account = Account(self.clock)
        self.listed_by_zone_until = -math.inf
        """Monotonic time until which aggregated lists are not tried: see listing.py."""
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    @property
    def project(self) -> str:
        """Id of the project. Raises ProvisionError."""
        return self.account.project

    @property
    def named_account(self) -> str:
        """E-mail address of the machines' service account in CLOUDGPU_GCP_SERVICE_ACCOUNT; "": not set."""
        return os.environ.get(_SERVICE_ACCOUNT, "")

    @property
    def service_account(self) -> str:
        """E-mail address of the machines' service account: the configured one, otherwise the default name."""
        return self.named_account or f"cloudgpu-machine@{self.project}.iam.gserviceaccount.com"

    @property
    def storage_endpoint(self) -> str | None:
        """Endpoint that replaces Cloud Storage, a test's on this computer; None: Google's own. Raises
        ProvisionError."""
        url = os.environ.get(_STORAGE)
        if url:
            api_calls.check_encrypted(_STORAGE, url)
        return url or None

    @property
    def instances(self) -> compute_v1.InstancesClient:
        return cast("compute_v1.InstancesClient", self._client("InstancesClient"))

    @property
    def disks(self) -> compute_v1.DisksClient:
        return cast("compute_v1.DisksClient", self._client("DisksClient"))

    @property
    def images(self) -> compute_v1.ImagesClient:
        return cast("compute_v1.ImagesClient", self._client("ImagesClient"))

    @property
    def networks(self) -> compute_v1.NetworksClient:
        return cast("compute_v1.NetworksClient", self._client("NetworksClient"))

    @property
    def subnetworks(self) -> compute_v1.SubnetworksClient:
        return cast("compute_v1.SubnetworksClient", self._client("SubnetworksClient"))

    @property
    def firewalls(self) -> compute_v1.FirewallsClient:
        return cast("compute_v1.FirewallsClient", self._client("FirewallsClient"))

    @property
    def regions(self) -> compute_v1.RegionsClient:
        return cast("compute_v1.RegionsClient", self._client("RegionsClient"))

    @property
    def reservations(self) -> compute_v1.ReservationsClient:
        return cast("compute_v1.ReservationsClient", self._client("ReservationsClient"))

    @property
    def templates(self) -> compute_v1.InstanceTemplatesClient:
        return cast("compute_v1.InstanceTemplatesClient", self._client("InstanceTemplatesClient"))

    @property
    def policies(self) -> compute_v1.ResourcePoliciesClient:
        return cast("compute_v1.ResourcePoliciesClient", self._client("ResourcePoliciesClient"))

    @property
    def groups(self) -> compute_v1.RegionInstanceGroupManagersClient:
        """Client of regional managed instance groups."""
        return cast("compute_v1.RegionInstanceGroupManagersClient", self._client("RegionInstanceGroupManagersClient"))

    @property
    def all_groups(self) -> compute_v1.InstanceGroupManagersClient:
        """Client of managed instance groups, whose aggregated list includes regional ones."""
        return cast("compute_v1.InstanceGroupManagersClient", self._client("InstanceGroupManagersClient"))

    @property
    def zone_operations(self) -> compute_v1.ZoneOperationsClient:
        return cast("compute_v1.ZoneOperationsClient", self._client("ZoneOperationsClient"))

    @property
    def region_operations(self) -> compute_v1.RegionOperationsClient:
        return cast("compute_v1.RegionOperationsClient", self._client("RegionOperationsClient"))

    @property
    def global_operations(self) -> compute_v1.GlobalOperationsClient:
        return cast("compute_v1.GlobalOperationsClient", self._client("GlobalOperationsClient"))

    @property
    def rest(self) -> Rest:
        """REST client for read-only calls, including other APIs."""
        return Rest(self.account, self.clock)

    def forget(self) -> None:
        """Drop the cached clients and settings, so that the credentials of a new login are read."""
        with self._lock:
            self._made.clear()
        self.account.forget()

    def ask(self, doing: str, call: Callable[[], _T], timeout_s: float = RETRY_TIMEOUT_S) -> _T:
        """Return the result of `call`, with retries for `timeout_s` while it is throttled or not answered. Raises
        ProvisionError."""
        return api_calls.ask(call, translate_error, doing, timeout_s=timeout_s, clock=self.clock)

    def _client(self, name: str) -> Any:  # callers cast it
        with self._lock:
            if name not in self._made:
                with translate_errors("reach Compute Engine", self.clock):
                    self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, name: str) -> Any:
        credentials, endpoint = self.account.credentials, self.account.endpoint
        from google.cloud import compute_v1

        options = {"api_endpoint": endpoint} if endpoint else None
        return getattr(compute_v1, name)(credentials=credentials, client_options=options)


def need_sdk() -> None:
    """Raise ProvisionError if Google's SDK is not installed."""
    try:
        importlib.import_module("google.auth")
        importlib.import_module("google.cloud.compute_v1")
    except ImportError as error:
        message = "the target gcp needs Google's SDK: pip install 'cloudgpu[gcp]'"
        raise ProvisionError("invalid", message, scope="cloud", code="google-cloud-compute") from error


def translate_errors(doing: str, clock: Clock) -> contextlib.AbstractContextManager[None]:
    """Context manager: translate the SDK's errors to ProvisionError; the message begins with `doing`."""
    return api_calls.translate_errors(translate_error, doing, clock)


def ignore_not_found() -> contextlib.suppress:
    """Return a context manager that suppresses not-found errors."""
    from google.api_core.exceptions import NotFound

    return contextlib.suppress(NotFound)
