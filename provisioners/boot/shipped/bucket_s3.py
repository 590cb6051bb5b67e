"""Client of the job dir's bucket in S3, authenticated by the role of the EC2 machine."""

# ruff: noqa: S310 - all URLs are of the metadata service or S3

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common import ErrorResponse, ask
else:
    from common import ErrorResponse, ask


def metadata(path: str) -> str:
    """Return a value of the instance metadata service (IMDSv2) by its path, e.g. `instance-id`. Raises OSError."""
    given = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    base = given.rstrip("/") + "/latest"
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(urllib.request.Request(f"{base}/api/token", headers=headers, method="PUT"), 5).decode()
    request = urllib.request.Request(f"{base}/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token})
    return ask(request, 5).decode()


def credentials() -> dict[str, str]:
    """Return the temporary credentials of the machine's role. Raises OSError."""
    path = "iam/security-credentials/"
    known: dict[str, str] = json.loads(metadata(path + metadata(path).split()[0]))
    return known


def sign(request: urllib.request.Request, body: bytes, service: str, region: str, now: float) -> urllib.request.Request:
    """Sign a request with the credentials of the machine's role (AWS Signature Version 4) and return it.

    All headers are signed. The request must have no query, and its path must be quoted. See "Authenticating Requests"
    in the S3 API reference.
    """
    known = credentials()
    moment = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)  # noqa: UP017
    stamp, scope = moment.strftime("%Y%m%dT%H%M%SZ"), f"{moment:%Y%m%d}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(body).hexdigest()
    headers = {
        **{name.lower(): value for name, value in request.header_items()},
        "host": request.host,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        "x-amz-security-token": known["Token"],
    }
    names = ";".join(sorted(headers))
    canonical_headers = (f"{name}:{headers[name]}" for name in sorted(headers))
    lines = [request.get_method(), request.selector, "", *canonical_headers, "", names, digest]
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    secret = f"AWS4{known['SecretAccessKey']}".encode()
    for part in (*scope.split("/"), "\n".join(("AWS4-HMAC-SHA256", stamp, scope, canonical))):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    who = f"Credential={known['AccessKeyId']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={names}, Signature={secret.hex()}"
    for name, value in headers.items():
        request.add_header(name, value)
    return request


class Bucket:
    """Client of the job dir's bucket, authenticated by the machine's role."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.name, _, self.prefix = record["job_dir"].partition("://")[2].partition("/")
        self.region: str = record["region"]
        self.endpoint: str | None = record["endpoint"]
        self.ahead_s = 0.0  # offset of S3's clock from this machine's

    def get(self, key: str) -> bytes:
        return self.send("GET", key)

    def create(self, key: str, body: bytes) -> bool:
        """Create an object unless it exists; return whether it was created. Raises OSError."""
        try:
            self.send("PUT", key, body, {"if-none-match": "*"})
        except ErrorResponse as error:
            if error.status != 412:
                raise
            return False
        return True

    def send(self, method: str, key: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """Send a request and return the body. Raises OSError; a retry then uses the region and clock offset that S3
        returned."""
        try:
            return ask(self.signed(method, key, body, headers or {}))
        except urllib.error.HTTPError as error:
            self.region = error.headers.get("x-amz-bucket-region") or self.region
            refused = ErrorResponse(error.code, error.read(65_536).decode(errors="replace"))
            if refused.code == "RequestTimeTooSkewed" and error.headers.get("Date"):
                self.ahead_s = parsedate_to_datetime(error.headers["Date"]).timestamp() - time.time()
            raise refused from error

    def signed(self, method: str, key: str, body: bytes, headers: dict[str, str]) -> urllib.request.Request:
        host, path = self.address("/".join(part for part in (self.prefix, key) if part))
        data = body if method == "PUT" else None
        request = urllib.request.Request(host + path, data=data, headers=headers, method=method)
        return sign(request, body, "s3", self.region, time.time() + self.ahead_s)

    def address(self, key: str) -> tuple[str, str]:
        """Return scheme and host, and the path. A bucket name with dots goes into the path, as no certificate covers
        it."""
        path = "/" + urllib.parse.quote(key, safe="/~")
        if self.endpoint:
            return self.endpoint.rstrip("/"), f"/{self.name}{path}"
        host = f"s3.{self.region}.amazonaws.com" + (".cn" if self.region.startswith("cn-") else "")
        return (f"https://{host}", f"/{self.name}{path}") if "." in self.name else (f"https://{self.name}.{host}", path)
