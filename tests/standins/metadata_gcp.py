"""Google Cloud's metadata server: three keys of an instance.

It follows cloud.google.com/compute/docs/metadata/querying-metadata: 403 without `Metadata-Flavor: Google` or with
X-Forwarded-For; the same header in every response; `wait_for_change` responds when the value's ETag differs from
`last_etag`, or after `timeout_sec` with the current value.
"""

from __future__ import annotations

import hashlib
import time

from .metadata import Answer, MetadataServer, Request

BASE = "/computeMetadata/v1/instance/"
NOT_YET = '{"error": "no notifications have been received yet, try again later"}'


class GcpMetadata(MetadataServer):
    """Metadata server of an instance. `values`: key -> value; None: unknown to the server (404).

    `statuses`: key -> HTTP status of its response, default 200.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str | None] = {
            "preempted": "FALSE",
            "maintenance-event": "NONE",
            "upcoming-maintenance": NOT_YET,
        }
        self.statuses: dict[str, int] = {"upcoming-maintenance": 503}
        self.flavor = "Google"

    def set(self, key: str, value: str | None, status: int = 200) -> None:
        """Change a value and wake the requests that wait for a change."""
        with self.changed:
            self.values[key] = value
            self.statuses[key] = status
            self.changed.notify_all()

    def preempt(self) -> None:
        self.set("preempted", "TRUE")

    def answer(self, request: Request) -> Answer:
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return Answer(403, "Your client does not have permission to get this URL")
        key = request.path.removeprefix(BASE)
        if request.query.get("wait_for_change") == "true":
            self._wait(key, request.query.get("last_etag"), float(request.query.get("timeout_sec", "3600")))
        value = self.values.get(key)
        headers = {"Metadata-Flavor": self.flavor, "Content-Type": "application/text"}
        if value is None:
            return Answer(404, "<title>Error 404 (Not Found)!!1</title>", headers)
        return Answer(self.statuses.get(key, 200), value, {**headers, "ETag": self._etag(key)})

    def _wait(self, key: str, last: str | None, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        with self.changed:
            known = self._etag(key) if last is None else last
            while self._etag(key) == known and not self.closing.is_set() and time.monotonic() < until:
                self.changed.wait(until - time.monotonic())

    def _etag(self, key: str) -> str:
        return hashlib.sha256(str(self.values.get(key)).encode()).hexdigest()[:16]
