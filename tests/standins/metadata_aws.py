"""AWS's instance metadata service, version 2 only.

It follows the EC2 user guide (configuring-instance-metadata-service.html): PUT returns a token, but not for requests
through a proxy (X-Forwarded-For); a GET without a valid token is 401; a missing path is 404.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from .metadata import Answer, MetadataServer, Request

TOKEN = "/latest/api/token"
SPOT = "spot/instance-action"
REBALANCE = "events/recommendations/rebalance"
EVENTS = "events/maintenance/scheduled"
LIFECYCLE = "autoscaling/target-lifecycle-state"


class AwsMetadata(MetadataServer):
    """Instance metadata service. `values`: the existing paths under /latest/meta-data/ and their content."""

    def __init__(self, longest_token_s: float = 21_600) -> None:
        super().__init__()
        self.values: dict[str, str] = {"instance-id": "i-0123456789abcdef0"}
        self.token_status = 200
        """HTTP status of the response to a token request."""
        self._longest_token_s = longest_token_s
        self._tokens: dict[str, float] = {}

    def announce(self, path: str, value: Any) -> None:
        self.values[path] = value if isinstance(value, str) else json.dumps(value)

    def preempt(self) -> None:
        self.interrupt(120)

    def interrupt(self, after_s: float, action: str = "terminate") -> None:
        """Publish a Spot interruption notice, timed by the server's clock."""
        at = datetime.fromtimestamp(time.time() + self.clock_off_s + after_s, UTC)
        self.announce(SPOT, {"action": action, "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def forget_tokens(self) -> None:
        """Invalidate all tokens, as a restart of the service does."""
        self._tokens.clear()

    def answer(self, request: Request) -> Answer:
        if request.path == TOKEN:
            return self._token(request)
        if request.method != "GET":
            return Answer(405)
        if self._tokens.get(request.headers.get("X-aws-ec2-metadata-token", ""), 0.0) < time.monotonic():
            return Answer(401, "<html>401 - Unauthorized</html>")
        value = self.find(request.path)
        return Answer(404, "<html>404 - Not Found</html>") if value is None else Answer(body=value)

    def find(self, path: str) -> str | None:
        """Return the value at a path, or None; the caller has checked the token."""
        return self.values.get(path.removeprefix("/latest/meta-data/"))

    def _token(self, request: Request) -> Answer:
        if request.method != "PUT":
            return Answer(405)
        if self.token_status != 200 or "X-Forwarded-For" in request.headers:
            return Answer(403 if self.token_status == 200 else self.token_status)
        asked = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not asked.isdecimal() or not 1 <= int(asked) <= 21_600:
            return Answer(400)
        token = uuid.uuid4().hex + "=="
        self._tokens[token] = time.monotonic() + min(float(asked), self._longest_token_s)
        lasts = str(max(1, int(min(float(asked), self._longest_token_s))))
        return Answer(body=token, headers={"X-aws-ec2-metadata-token-ttl-seconds": lasts})
