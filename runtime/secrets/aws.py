"""Secrets in AWS Secrets Manager, read with the machine's role or a user's own credentials.

Sources: Secrets Manager's API reference, GetSecretValue; IAM user guide, "Create a signed AWS API request".
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import importlib.util
import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..notices.aws import Imds
from ..notices.metadata import LINK_LOCAL, MetadataError, MetadataServer
from .api import NoCredentialsError, Patience, Refusal, SecretError, Service, check_endpoint, retrying, send, text_of
from .references import Reference

SCHEME = "aws-secretsmanager"
_ENDPOINTS = ("AWS_ENDPOINT_URL_SECRETS_MANAGER", "AWS_ENDPOINT_URL")
"""Variables of AWS's own SDKs for a custom endpoint."""
_ARN = re.compile(r"arn:(?P<partition>aws[a-z-]*):secretsmanager:(?P<region>[a-z0-9-]+):\d{12}:secret:(?P<name>.+)")
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}")
"""A region becomes a part of the host's name."""
_DOMAINS = {"cn": "amazonaws.com.cn"}
_BUSY = frozenset(
    {"ThrottlingException", "TooManyRequestsException", "LimitExceededException", "RequestLimitExceeded"}
    | {"InternalServiceError", "InternalServiceErrorException", "RequestTimeoutException"}
)
_EXPIRED = frozenset({"ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"})
_UNREADY_S = 60.0
"""A launch's role is older than its machine, but IAM's changes take seconds to reach all regions."""
_CREDENTIALS = "/latest/meta-data/iam/security-credentials/"
_METADATA_S = 5.0
_SOURCES = ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_FULL_URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_OPTIONS = {"version-stage": "VersionStage", "version-id": "VersionId"}
_PAGE = "docs/reference/aws-permissions.md"


class Credentials(NamedTuple):
    """Access key, and the session token of temporary ones."""

    key: str
    secret: str
    token: str | None


def read(reference: Reference, patience: Patience) -> str:
    """Return the text of a secret's version. Raises SecretError."""
    region = _region(reference.path)
    asked = {"SecretId": reference.path}
    asked |= {_OPTIONS[name]: value for name, value in reference.options.items() if name in _OPTIONS}
    body, url = json.dumps(asked).encode(), _endpoint(region)

    def attempt() -> dict[str, Any] | Refusal:
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue"}
        now = datetime.datetime.now(datetime.UTC)
        signed = sign(url, body, headers, region=region, service="secretsmanager", known=_credentials(), now=now)
        return send(urllib.request.Request(url, body, signed, method="POST"))  # noqa: S310

    def explain(refusal: Refusal) -> str:
        return _explain(reference.path, region, refusal)

    document = retrying(attempt, Service(_BUSY, _is_denied, _UNREADY_S, explain), patience)
    value = text_of(document, "SecretString")
    if value is None:
        binary = "SecretBinary" in document
        raise SecretError("the secret is binary; only text can be used" if binary else "the answer has no SecretString")
    return value


def _region(path: str) -> str:
    """Return the region of an ARN, otherwise this machine's. Raises SecretError."""
    if path.startswith("arn:"):
        found = _ARN.fullmatch(path)
        if found is None or not _REGION.fullmatch(found["region"]):
            raise SecretError("expected arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
        return found["region"]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _region_of_profile()
    if not _REGION.fullmatch(region):
        raise SecretError("the region is not known: write the secret's ARN, or set AWS_REGION")
    return region


def _endpoint(region: str) -> str:
    for name in _ENDPOINTS:
        if given := os.environ.get(name):
            return check_endpoint(name, given) + "/"
    return f"https://secretsmanager.{region}.{_DOMAINS.get(region.partition('-')[0], 'amazonaws.com')}/"


# --- refusals ---------------------------------------------------------------------------------------------------------


def _is_denied(refusal: Refusal) -> bool:
    return refusal.code in ("AccessDeniedException", "AccessDenied")


def _explain(path: str, region: str, refusal: Refusal) -> str:
    if _is_denied(refusal):
        who = re.search(r"User: (\S+) is not authorized", refusal.message)
        action = "kms:Decrypt" if "kms" in refusal.message.lower() else "secretsmanager:GetSecretValue"
        principal = who[1] if who else "this machine's role"
        return f"{principal} may not read it: it needs {action} for {path} in {region}, see {_PAGE} ({refusal})"
    if refusal.code == "ResourceNotFoundException":
        return f"there is no such secret or version in {region}: correct the reference, or write its ARN ({refusal})"
    if refusal.code == "InvalidRequestException":
        return f"the secret is marked for deletion, or has no value yet: restore it, or name another ({refusal})"
    if refusal.code == "DecryptionFailure":
        return f"its key cannot decrypt it: is the key enabled, and may this role use it? See {_PAGE} ({refusal})"
    if refusal.code in _EXPIRED:
        return f"AWS does not accept the credentials: log in again, or get new ones ({refusal})"
    return f"Secrets Manager refuses it: {refusal}"


# --- credentials ------------------------------------------------------------------------------------------------------


def _credentials() -> Credentials:
    """Return the environment's keys, those of a login, or those of the machine's role.

    Raises NoCredentialsError, SecretError.
    """
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)
    if _has_login():
        return _login()
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise SecretError("no AWS credentials were found: log in (aws sso login), or set AWS_PROFILE")
    return _of_role()


def _has_login() -> bool:
    """Return whether there are credentials for botocore to read: profiles, SSO, federation, those of a container."""
    if any(os.environ.get(name) for name in (*_SOURCES, _FULL_URI)):
        return True
    credentials, config = (Path(os.environ.get(name) or usual).expanduser().is_file() for name, usual in _FILES)
    # An image may have a config file with a region only, and no botocore: its machine has a role.
    return credentials or (config and _has_botocore())


def _login() -> Credentials:
    session = _botocore()
    if session is None:
        raise SecretError("AWS profiles and logins are read by boto3: pip install 'cloudgpu[aws]'")
    from botocore.exceptions import BotoCoreError

    try:
        found = session.get_credentials()
        if found is None:
            raise SecretError("no AWS credentials were found: log in (aws sso login), or set AWS_PROFILE")
        frozen = found.get_frozen_credentials()
    except BotoCoreError as error:
        raise SecretError(f"no AWS credentials can be had: {str(error)[:300]}") from None
    return Credentials(str(frozen.access_key), str(frozen.secret_key), frozen.token)


def _region_of_profile() -> str:
    session = _botocore() if _has_login() else None
    return "" if session is None else str(session.get_config_variable("region") or "")


def _botocore() -> Any:
    """Return a session of botocore; None: it is not installed."""
    if not _has_botocore():
        return None
    import botocore.session

    return botocore.session.get_session()


def _has_botocore() -> bool:
    return importlib.util.find_spec("botocore") is not None


def _of_role() -> Credentials:
    """Return the credentials of the machine's role from the metadata service. Raises NoCredentialsError."""
    url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or LINK_LOCAL
    try:
        imds = Imds(MetadataServer(url, lambda _text: None, _METADATA_S))
        named = imds.get(_CREDENTIALS)
        role = named.text.split()[0] if named is not None and named.text else ""
        reply = imds.get(_CREDENTIALS + role) if re.fullmatch(r"[\w+=,.@-]{1,64}", role) else None
        document = {} if reply is None else reply.json(dict)
    except MetadataError as error:
        raise NoCredentialsError(str(error)) from None
    key, secret, token = (text_of(document, name) for name in ("AccessKeyId", "SecretAccessKey", "Token"))
    if not key or not secret:
        raise NoCredentialsError("the metadata service gives no credentials: this machine has no role")
    return Credentials(key, secret, token)


def sign(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    region: str,
    service: str,
    known: Credentials,
    now: datetime.datetime,
) -> dict[str, str]:
    """Return the headers of a POST request with its signature (AWS Signature Version 4). The URL has no query."""
    stamp, parts = now.strftime("%Y%m%dT%H%M%SZ"), urlsplit(url)
    scope = f"{now:%Y%m%d}/{region}/{service}/aws4_request"
    signed = headers | {"host": parts.netloc, "x-amz-date": stamp}
    if known.token:
        signed["x-amz-security-token"] = known.token
    names = ";".join(sorted(signed))
    lines = ["POST", parts.path, "", *(f"{name}:{signed[name]}" for name in sorted(signed)), "", names]
    canonical = hashlib.sha256("\n".join([*lines, hashlib.sha256(body).hexdigest()]).encode()).hexdigest()
    secret = f"AWS4{known.secret}".encode()
    for part in (*scope.split("/"), "\n".join(("AWS4-HMAC-SHA256", stamp, scope, canonical))):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    who = f"Credential={known.key}/{scope}"
    signed["authorization"] = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={names}, Signature={secret.hex()}"
    return signed
