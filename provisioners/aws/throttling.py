"""Client-side rate limits and retries of all AWS calls.

boto3's retries are disabled: they do not coordinate between jobs, and would multiply with the retries here. Every call
of every client goes through this module, including those of paginators.

Rates: EC2 developer guide, "Request throttling for the Amazon EC2 API" (each action of an account and region has a
separate bucket). IAM publishes no rates; its calls are limited per account, at EC2's rate for mutating calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..base import ProvisionError
from ..shared.api_calls import UNKNOWN, pause, retry
from ..shared.clock import Clock
from ..shared.token_bucket import Bucket, Rate
from .errors import translate_error

RETRY_TIMEOUT_S = 30.0
"""Timeout in seconds for retries of a call; a call that hangs until its own timeout is sent once more."""
IN_PLACE_S = 5.0
"""Longest wait in seconds for a token within a call; for a longer wait ProvisionError is raised with `retry_after`."""
_LAUNCH = "launch"
"""Pseudo-action of EC2 for a whole launch, at the rate of its slowest call."""
_RATES: tuple[tuple[str, str, Rate], ...] = (
    ("ec2", _LAUNCH, Rate(2, 4)),
    ("ec2", "RunInstances", Rate(2, 4)),
    ("ec2", "TerminateInstances", Rate(5, 100)),
    ("ec2", "Describe*", Rate(20, 100)),
    ("ec2", "*", Rate(5, 50)),
    ("iam", "Get*", Rate(20, 100)),
    ("iam", "List*", Rate(20, 100)),
    ("iam", "*", Rate(5, 50)),
)
"""(service, action pattern, rate); the first match applies, other calls are not limited. EC2 allows bursts of 5
RunInstances; one token is kept in reserve, since calls do not arrive as evenly as they are sent."""
_GLOBAL = frozenset({"iam"})
_IN_LINE = "InLine"
"""ProvisionError.code of a call that was not sent because it would wait longer than IN_PLACE_S."""
_SERVER_ERROR = 500


class RateLimiter:
    """Rate limiter for the calls of one account, shared by all jobs of this process. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        self._begun: set[tuple[str, str]] = set()
        """(region, token) of launches that have had their turn and are not complete yet."""

    @contextlib.contextmanager
    def launch_turn(self, region: str, token: str) -> Iterator[None]:
        """Context manager: wait for the turn of a launch before it creates anything.

        Raises ProvisionError if the wait would exceed IN_PLACE_S. Without turns, launches would first wait at
        RunInstances, hundreds of seconds after they created security groups and roles. A launch keeps its turn while
        its single calls wait for tokens.
        """
        launch = region, token
        bucket = self._bucket("ec2", region, _LAUNCH)
        if bucket is not None and launch not in self._begun:
            self._await_turn(bucket, token, "RunInstances", region)
        self._begun.add(launch)
        is_in_line = False
        try:
            yield
        except ProvisionError as error:
            is_in_line = error.code == _IN_LINE
            raise
        finally:
            if not is_in_line:
                self._begun.discard(launch)

    def attach(self, client: Any, service: str, region: str) -> None:  # a boto3 client of any service
        """Route all calls of a client through this rate limiter."""
        send = client._make_api_call

        def paced(operation: str, params: Mapping[str, object]) -> Any:
            # A copy, because boto3 encodes some parameters in place.
            return self._call(service, region, operation, params, lambda: send(operation, dict(params)))

        client._make_api_call = paced

    def _call(
        self, service: str, region: str, operation: str, params: Mapping[str, object], send: Callable[[], object]
    ) -> Any:
        bucket = self._bucket(service, region, operation)
        key = _key(operation, params)

        def once() -> Any:
            if bucket is not None:
                self._await_turn(bucket, key, operation, region)
            try:
                return send()
            except Exception as error:
                found = _passing(error, self._clock)
                if found is None:
                    raise
                if bucket is not None and found.error_class == "throttled":
                    bucket.refuse()
                raise found from error

        try:
            return retry(once, timeout_s=RETRY_TIMEOUT_S, clock=self._clock)
        except ProvisionError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # boto3's exception, which the caller translates with its description

    def _await_turn(self, bucket: Bucket, key: str, operation: str, region: str) -> None:
        while wait := bucket.take(key):
            if wait > IN_PLACE_S:
                message = (
                    f"AWS takes {bucket.rate.per_s:g} {operation} calls a second in {region}; "
                    f"{bucket.waiting} wait, and the turn of this one comes in {wait:.0f} s"
                )
                raise ProvisionError(
                    "throttled", message, scope="region", code=_IN_LINE, retry_after=wait, is_unsent=True
                )
            pause(self._clock, wait)

    def _bucket(self, service: str, region: str, operation: str) -> Bucket | None:
        rate = next((rate for of, glob, rate in _RATES if of == service and fnmatchcase(operation, glob)), None)
        if rate is None:
            return None
        key = (service, "" if service in _GLOBAL else region, operation)
        with self._lock:
            if key not in self._buckets:
                self._buckets[key] = Bucket(rate, self._clock)
            return self._buckets[key]


def _key(operation: str, params: Mapping[str, object]) -> str:
    """Return the queue key of a call; a retry of the same call has the same key."""
    token = params.get("ClientToken")
    return str(token) if token else hashlib.sha256(repr((operation, sorted(params.items()))).encode()).hexdigest()


def _passing(error: Exception, clock: Clock) -> ProvisionError | None:
    """Return the error if a retry of the call may succeed, otherwise None.

    Errors due to eventual consistency or resources in use count as final here: the callers handle them."""
    from botocore.exceptions import ClientError

    found = translate_error(error, "", clock)
    if found is None or found.error_class not in UNKNOWN:
        return None
    if found.error_class == "transient" and isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return found if status >= _SERVER_ERROR else None
    return found
