"""Token buckets of the account, as in AWS: one for each action and region. Excess calls are refused immediately.

Sources: EC2 developer guide, "Request throttling for the Amazon EC2 API": bucket sizes and refill rates. IAM publishes
none: its buckets are invented, and per account.
"""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

from ..faults import Call
from .answers import RefusedError

_RATES = (  # service, action, burst size in tokens, tokens per second
    ("ec2", "RunInstances", 5.0, 2.0),
    ("ec2", "TerminateInstances", 100.0, 5.0),
    ("ec2", "Describe*", 100.0, 20.0),
    ("ec2", "*", 50.0, 5.0),
    ("iam", "Get*|List*", 100.0, 20.0),
    ("iam", "*", 50.0, 5.0),
)


class Throttling:
    """Token buckets; disabled at first."""

    def __init__(self) -> None:
        self.on = False
        self._buckets: dict[tuple[str, str, str], tuple[float, float]] = {}
        """(service, region, action) -> tokens, and the monotonic time of that count."""

    def check(self, call: Call) -> None:
        """Take a token. Raises RefusedError."""
        if not self.on:
            return
        fitting = (rate for rate in _RATES if rate[0] == call.service)
        rate = next((r for r in fitting if any(fnmatchcase(call.action, glob) for glob in r[1].split("|"))), None)
        if rate is None:
            return
        _, _, burst, per_s = rate
        key, now = (call.service, "" if call.service == "iam" else call.region, call.action), time.monotonic()
        tokens, at = self._buckets.get(key, (burst, now))
        tokens = min(burst, tokens + (now - at) * per_s)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if tokens < 1:
            if call.service == "iam":
                raise RefusedError("Throttling", "Rate exceeded", 400)
            raise RefusedError("RequestLimitExceeded", "Request limit exceeded.", 503)
