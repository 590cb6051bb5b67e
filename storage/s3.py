"""S3 as a Service: credentials, a bucket's region, and explanations of its errors.

Credentials have the same sources as for AWS's own tools. obstore itself reads those of the environment, and of a
container's and a machine's role. Those in ~/.aws (profiles, SSO, assumed roles) are read by botocore, if the files
exist.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

import obstore
from obstore.store import from_url

from .access import CredentialsError, code_of, is_loopback, path_of, unreachable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config, S3Credential

_LOOK_S = 10.0
_TRUSTED_FOR = datetime.timedelta(minutes=5)  # minimum remaining lifetime of botocore's credentials
_NATIVE = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_NEEDS_BOTO3 = "profiles, SSO and assumed roles need boto3: pip install 'cloudgpu[aws]'"

NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in "
    "(aws sso login)"
)

ADVICE: Mapping[str, str] = {
    "NoSuchBucket": "there is no bucket of this name: create it, or correct the name",
    "AccessDenied": "access denied: what these credentials must be allowed to do is "
    "in docs/reference/aws-permissions.md",
    "AllAccessDisabled": "access to this bucket is disabled",
    "AccountProblem": "AWS says that there is a problem with the account",
    "ExpiredToken": "the AWS credentials have expired: log in again (aws sso login), or get new ones",
    "TokenRefreshRequired": "the AWS credentials have expired: log in again (aws sso login), or get new ones",
    "InvalidToken": "the AWS session token is not valid: log in again, or unset AWS_SESSION_TOKEN",
    "InvalidAccessKeyId": "AWS does not know this access key: correct the credentials",
    "SignatureDoesNotMatch": "the secret access key does not belong to the access key: correct the credentials",
    "RequestTimeTooSkewed": "the clock of this machine is off by more than 15 minutes: set it",
    "SlowDown": "S3 throttles requests; they are retried, nothing to do",
    "InternalError": "S3 has a fault at the moment: it is asked again, nothing to do",
    "ServiceUnavailable": "S3 does not answer at the moment: it is asked again, nothing to do",
}
"""Error code of S3 -> what is wrong and what to do. Source: S3 API reference, "Error responses"."""

_ACTIONS = {
    "reading": "s3:GetObject",
    "creating": "s3:PutObject",
    "writing": "s3:PutObject",
    "listing": "s3:ListBucket",
    "deleting": "s3:DeleteObject",
}
"""Verb of the operation -> required permission."""
_ELSEWHERE = re.compile("redirect without LOCATION|AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocation")
_PROVIDER = re.compile(r"External AWS credential provider: \w+: (.*)")
_IMDS = re.compile("/latest/(api/token|meta-data/iam)")


PLAIN_HTTP = "CLOUDGPU_AWS_PLAIN_HTTP"
"""Environment variable that, if it is 1, allows an endpoint with plain http on another host."""


class _Connection(TypedDict, total=False):
    """Arguments for obstore's from_url()."""

    config: S3Config
    credential_provider: Callable[[], S3Credential]


class _Regions:
    """Cache of the regions of buckets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def get(self, bucket: str) -> str | None:
        with self._lock:
            return self._known.get(bucket)

    def learn(self, bucket: str, region: str) -> None:
        with self._lock:
            self._known[bucket] = region


_regions = _Regions()


class S3:
    """S3 and compatible stores; implements Service."""

    min_rewrite_s = max_copy_s = 0.0

    def __init__(self, url: str) -> None:
        self._url = url

    def portable(self) -> str:
        return self._url

    def path(self) -> str:
        return path_of(self._url)

    def connect(self, client: ClientConfig, retry: RetryConfig) -> ObjectStore:
        return from_url(self._url, client_options=client, retry_config=retry, **_connection(self._url))

    def delete(self, connection: ObjectStore, path: str) -> None:
        obstore.delete(connection, path)

    def delete_many(self, connection: ObjectStore, paths: Sequence[str]) -> None:
        obstore.delete(connection, paths)

    def find_region_after(self, message: str) -> bool:
        if not _ELSEWHERE.search(message):
            return False
        bucket = _bucket(self._url)
        region = _find_region(bucket)
        if region is not None:
            _regions.learn(bucket, region)
        return region is not None

    def explain(self, message: str, doing: str) -> str:
        return _explain(self._url, message, doing)


def _connection(url: str) -> _Connection:
    """Return the arguments to connect to the bucket of an s3:// URL, without a request. Raises CredentialsError."""
    _check_endpoint()
    config: S3Config = {}
    found: _Connection = {"config": config}
    region = _regions.get(_bucket(url))
    metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if metadata:
        config["metadata_endpoint"] = metadata.rstrip("/")
    if not any(os.environ.get(name) for name in (*_NATIVE, *_CONTAINER)):
        provider = _from_files()
        if provider is not None:
            found["credential_provider"] = provider
            region = region or _region_of_files()
        elif os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise CredentialsError(NO_CREDENTIALS)
    if region:
        config["region"] = region
    return found


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _check_endpoint() -> None:
    """Refuse plain http to another host: keys, code and logs would cross the network unencrypted.

    Raises CredentialsError.
    """
    endpoint = _endpoint()
    if endpoint is None or os.environ.get(PLAIN_HTTP) == "1":
        return
    parts = urlsplit(endpoint)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise CredentialsError(
            f"the endpoint {endpoint} is plain http on another host, so keys and code could be read on the way: use "
            f"https, or set {PLAIN_HTTP}=1 where the network is trusted"
        )


def _find_region(bucket: str) -> str | None:
    """Return the bucket's region; None: unknown. S3 returns it to an anonymous request in any region."""
    import http.client

    given = _endpoint()
    near = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    suffix = ".cn" if near.startswith("cn-") else ""
    endpoint = given or f"https://s3.{near}.amazonaws.com{suffix}"
    parts = urlsplit(endpoint)
    kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
    try:
        with contextlib.closing(kind(parts.netloc, timeout=_LOOK_S)) as asked:
            asked.request("HEAD", f"{parts.path.rstrip('/')}/{bucket}")
            return asked.getresponse().getheader("x-amz-bucket-region")
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _explain(url: str, message: str, doing: str) -> str:
    """Return the explanation of a full message of S3 or obstore; by default its first line.

    `doing` begins with a word of _ACTIONS, e.g. "reading job.json".
    """
    code = code_of(message)
    if code in ADVICE:
        action = _ACTIONS.get(doing.partition(" ")[0], "") if code == "AccessDenied" else ""
        return f"{ADVICE[code]} ({code}{f': {action}' if action else ''})"
    provider = _PROVIDER.search(message)
    if provider:
        return f"no AWS credentials can be had: {provider[1]}"
    if _IMDS.search(message):
        hint = "" if _has_botocore() else f"; {_NEEDS_BOTO3}"
        return f"{NO_CREDENTIALS}{hint}"
    address = unreachable(message)
    if address:
        return f"{address} cannot be reached from here: check the network, AWS_ENDPOINT_URL and proxies"
    if _ELSEWHERE.search(message):
        return f"the bucket {_bucket(url)} is in another region than the one asked: set AWS_REGION to the bucket's"
    return message.partition("\n")[0]


def _bucket(url: str) -> str:
    return urlsplit(url).netloc


def _from_files() -> Callable[[], S3Credential] | None:
    """Return a provider of the credentials that botocore reads from files; None: there are none of its files, or no
    botocore. Raises CredentialsError if files are needed and botocore is missing."""
    there = [name for name, usual in _FILES if Path(os.environ.get(name) or usual).expanduser().is_file()]
    if not there and not os.environ.get("AWS_PROFILE"):
        return None
    if not _has_botocore():
        if os.environ.get("AWS_PROFILE") or _FILES[0][0] in there:
            raise CredentialsError(f"the credentials in ~/.aws cannot be read: {_NEEDS_BOTO3}")
        return None
    return _Botocore()


class _Botocore:
    """Provider of credentials from botocore, which refreshes expired ones."""

    def __init__(self) -> None:
        import botocore.session
        from botocore.exceptions import BotoCoreError

        try:
            self._credentials = botocore.session.get_session().get_credentials()
        except BotoCoreError as error:
            raise CredentialsError(f"no AWS credentials can be had: {error}") from error
        if self._credentials is None:
            raise CredentialsError(NO_CREDENTIALS)

    def __call__(self) -> S3Credential:
        assert self._credentials is not None  # noqa: S101 - checked in __init__()
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": str(frozen.access_key),
            "secret_access_key": str(frozen.secret_key),
            "token": frozen.token,
            "expires_at": datetime.datetime.now(datetime.UTC) + _TRUSTED_FOR,
        }


def _region_of_files() -> str | None:
    """Return the profile's region; None if the environment has a region, which obstore reads itself."""
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    import botocore.session

    region = botocore.session.get_session().get_config_variable("region")
    return str(region) if region else None


def _has_botocore() -> bool:
    return importlib.util.find_spec("botocore") is not None
