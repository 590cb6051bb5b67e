"""Azure management clients of one subscription, with bounded retries.

The SDK's own retries and polling are off: ask() retries calls that are throttled or not answered, and operations.py
polls long-running operations, both with an injectable clock. The SDK's automatic registration of resource providers,
which would wait for minutes, is off, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..shared import api_calls
from ..shared.clock import Clock, SystemClock
from .account import Account, code_of, need_sdk, translate_error

if TYPE_CHECKING:
    from azure.mgmt.authorization.v2022_04_01 import AuthorizationManagementClient
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.msi.v2024_11_30 import ManagedServiceIdentityClient
    from azure.mgmt.network import NetworkManagementClient
    from azure.mgmt.resource.resources import ResourceManagementClient

CONNECT_S, READ_S = 10.0, 60.0
"""Timeouts in seconds for a connection and for each read; listing a region's sizes takes seconds."""
RETRY_TIMEOUT_S = 90.0
"""Timeout of retries in seconds, for calls that are throttled or not answered."""

_NO_SUBSCRIPTION = frozenset({"SubscriptionNotFound", "InvalidSubscriptionId"})

Json = dict[str, Any]
_T = TypeVar("_T")


class Clients:
    """Clients of one subscription, each created once. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.account = Account(self.clock)
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    @property
    def subscription(self) -> str:
        """Id of the subscription. Raises ProvisionError."""
        return self.account.subscription

    @property
    def compute(self) -> ComputeManagementClient:
        return cast("ComputeManagementClient", self._client("compute"))

    @property
    def network(self) -> NetworkManagementClient:
        return cast("NetworkManagementClient", self._client("network"))

    @property
    def resources(self) -> ResourceManagementClient:
        return cast("ResourceManagementClient", self._client("resources"))

    @property
    def identities(self) -> ManagedServiceIdentityClient:
        return cast("ManagedServiceIdentityClient", self._client("identities"))

    @property
    def authorization(self) -> AuthorizationManagementClient:
        return cast("AuthorizationManagementClient", self._client("authorization"))

    def forget(self) -> None:
        """Drop the cached clients and settings, so that the credentials of a new login are read."""
        with self._lock:
            self._made.clear()
        self.account.forget()

    def ask(self, doing: str, call: Callable[[], _T], timeout_s: float = RETRY_TIMEOUT_S) -> _T:
        """Return the result of `call`, with retries while it is throttled or not answered. Raises ProvisionError.

        `call` must be idempotent, as Azure's calls are, since they name what they create.
        """
        return api_calls.ask(call, translate_error, doing, timeout_s=timeout_s, clock=self.clock)

    def get(self, url: str, doing: str) -> Json:
        """Return the response of an Azure Resource Manager path, or of a full URL from a response. Raises
        ProvisionError."""

        def call() -> Json:
            from azure.core.rest import HttpRequest

            answer = self.compute.send_request(HttpRequest("GET", self._absolute(url)))
            answer.raise_for_status()
            found = answer.json()
            return found if isinstance(found, dict) else {}

        return self.ask(doing, call)

    # -- helpers

    def _absolute(self, url: str) -> str:
        return url if "://" in url else f"{self.account.endpoint}/{url.lstrip('/')}"

    def _client(self, name: str) -> Any:  # callers cast it
        with self._lock:
            if name not in self._made:
                with translate_errors("reach Azure Resource Manager", self.clock):
                    self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, name: str) -> Any:
        need_sdk()
        _quiet()
        return _classes()[name](
            self.account.credential,
            self.account.subscription,
            base_url=self.account.endpoint,
            credential_scopes=[self.account.scope],
            connection_timeout=CONNECT_S,
            read_timeout=READ_S,
            policies=self._policies(),
        )

    def _policies(self) -> list[Any]:
        from azure.core.pipeline import policies
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

        return [
            policies.RequestIdPolicy(),
            policies.HeadersPolicy(),
            policies.UserAgentPolicy("cloudgpu"),
            policies.ProxyPolicy(),
            policies.ContentDecodePolicy(),
            policies.RedirectPolicy(),
            policies.RetryPolicy.no_retries(),
            ARMChallengeAuthenticationPolicy(self.account.credential, self.account.scope),
            policies.SensitiveHeaderCleanupPolicy(),
        ]


def _quiet() -> None:
    """Silence the SDK's warnings about non-JSON responses and missing credentials: the raised errors have the
    details."""
    logger = logging.getLogger("azure")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)


def _classes() -> dict[str, Any]:
    """Import and return the client classes, at first use because the imports are slow."""
    from azure.mgmt.authorization.v2022_04_01 import AuthorizationManagementClient
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.msi.v2024_11_30 import ManagedServiceIdentityClient
    from azure.mgmt.network import NetworkManagementClient
    from azure.mgmt.resource.resources import ResourceManagementClient

    return {
        "authorization": AuthorizationManagementClient,
        "compute": ComputeManagementClient,
        "identities": ManagedServiceIdentityClient,
        "network": NetworkManagementClient,
        "resources": ResourceManagementClient,
    }


def translate_errors(doing: str, clock: Clock) -> contextlib.AbstractContextManager[None]:
    """Context manager: translate the SDK's errors to ProvisionError; the message begins with `doing`."""
    return api_calls.translate_errors(translate_error, doing, clock)


class ignore_not_found:  # noqa: N801 - used as a statement: `with ignore_not_found():`
    """Context manager that suppresses not-found errors, except for an unknown subscription, which is a wrong
    setting."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _at: object) -> bool:
        from azure.core.exceptions import ResourceNotFoundError

        return isinstance(error, ResourceNotFoundError) and code_of(error) not in _NO_SUBSCRIPTION


def answer_of(response: Any, *_: object) -> Json:  # a PipelineResponse
    """Return the body of a response as JSON, which does not depend on the SDK version's models.

    Callers pass this function to the SDK as `cls`."""
    text = response.http_response.text()
    found = json.loads(text) if text.strip() else {}
    return found if isinstance(found, dict) else {}


def as_dicts(found: Iterable[Any]) -> list[Json]:
    """Convert the SDK's models to JSON objects in wire format."""
    return [cast("Json", one.as_dict()) for one in found]
