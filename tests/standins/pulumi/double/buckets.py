"""Storage of a backend, by the URLs that Pulumi's engine accepts: a folder, or a bucket of one of three clouds.

    file:///folder                                                    an existing folder
    s3://bucket/folder?region=R&endpoint=URL&s3ForcePathStyle=true    credentials as AWS's tools find them
    gs://bucket/folder                                                as Google's do; STORAGE_EMULATOR_HOST=HOST:PORT
    azblob://container/folder?storage_account=A&domain=D&protocol=P   AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY,
                                                                      AZURE_STORAGE_SAS_TOKEN, or an Azure login

Sources: pulumi/pulumi, pkg/backend/diy (backend.go, legacy_s3_params_test.go), pkg/authhelpers/gcpauth.go; gocloud.dev,
blob/s3blob, blob/gcsblob, blob/azureblob. Only the parameters above are supported; unknown ones are rejected, as there.
"""

from __future__ import annotations

import datetime
import os
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

_CLIENT: Any = {"allow_http": True, "timeout": "30s"}
_AZURE_SCOPE = "https://storage.azure.com/.default"
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class BackendError(Exception):
    """Error whose message the command prints after `error: `."""


class Bucket:
    """Files by key, all below the URL's folder."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _OPENERS:
            raise BackendError(f"the double has backends of {', '.join(_OPENERS)}, not {url}")
        query = dict(urllib.parse.parse_qsl(parts.query))
        self._store = _OPENERS[parts.scheme](parts, query)

    def read(self, key: str) -> bytes | None:
        """Return a file's content; None: it does not exist."""
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise BackendError(f"read {key!r}: {_line(error)}") from error

    def write(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data)
        except (BaseError, OSError) as error:
            raise BackendError(f"write {key!r}: {_line(error)}") from error

    def delete(self, key: str) -> None:
        """Delete a file; a missing one is fine."""
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise BackendError(f"delete {key!r}: {_line(error)}") from error

    def keys(self, folder: str) -> list[str]:
        """Return the keys of all files below a folder, sorted."""
        try:
            return sorted(one["path"] for one in obstore.list(self._store, folder).collect())
        except (BaseError, OSError) as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), "Unknown")
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                code = "NotFound"
            raise BackendError(f"could not list bucket: blob (code={code}): {_line(error)}") from error

    def check(self) -> None:
        """Raise BackendError if the bucket does not exist."""
        try:
            self.keys(".pulumi/stacks")
        except BackendError as error:
            raise BackendError(f"error listing stacks: {error}") from error

    def place(self, key: str) -> str:
        """Return a file's URL for messages: the query comes after the path."""
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{key}"))


_CODES = (
    (FileNotFoundError, "NotFound"),
    (obstore.exceptions.PermissionDeniedError, "PermissionDenied"),
    (obstore.exceptions.UnauthenticatedError, "PermissionDenied"),
)
"""Error codes in gocloud.dev's messages."""
_Url = urllib.parse.SplitResult


def _folder(parts: _Url, query: Mapping[str, str]) -> Any:
    root = Path(parts.path.replace("~", str(Path.home()), 1) if parts.path.startswith("/~") else parts.path)
    if not root.is_dir():
        raise BackendError(f"unable to open bucket {parts.geturl()}: stat {root}: no such file or directory")
    return LocalStore(root)


def _s3(parts: _Url, query: Mapping[str, str]) -> Any:
    """Open an S3 bucket. obstore reads AWS_REGION, AWS_ENDPOINT_URL and others from the environment, as AWS's SDK
    does."""
    _check(query, ("awssdk", "disableSSL", "endpoint", "region", "s3ForcePathStyle"))
    config: Any = {}
    if "region" in query:
        config["region"] = query["region"]
    if "endpoint" in query:
        scheme = "http" if query.get("disableSSL") == "true" else "https"
        config["endpoint"] = query["endpoint"] if "://" in query["endpoint"] else f"{scheme}://{query['endpoint']}"
    own = "endpoint" in query or "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
    if own and query.get("s3ForcePathStyle") != "true":
        raise BackendError(f"{parts.geturl()}: no such host; a bucket has none of its own here: s3ForcePathStyle=true")
    return S3Store(parts.netloc, prefix=_prefix(parts), config=config, client_options=_CLIENT)


def _gs(parts: _Url, query: Mapping[str, str]) -> Any:
    """Open a GCS bucket. The engine requires credentials even with an emulator, which does not receive them."""
    import google.auth
    import google.auth.transport.requests

    _check(query, ())
    try:
        credentials: Any = google.auth.default(scopes=[_GOOGLE_SCOPE])[0]
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise BackendError(f"missing google credentials: unable to find gcp credentials: {error}") from error

    def token() -> Any:
        credentials.refresh(google.auth.transport.requests.Request())
        return {"token": credentials.token, "expires_at": credentials.expiry.replace(tzinfo=datetime.UTC)}

    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    config: Any = {"base_url": f"http://{host}", "skip_signature": True} if host else {}
    return GCSStore(
        parts.netloc,
        prefix=_prefix(parts),
        config=config,
        client_options=_CLIENT,
        credential_provider=None if host else token,
    )


def _azblob(parts: _Url, query: Mapping[str, str]) -> Any:
    """Open an Azure container. A local account is part of the path, a real one part of the host name."""
    _check(query, ("domain", "localemu", "protocol", "storage_account"))
    account = query.get("storage_account") or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    if not account:
        raise BackendError(f"unable to open bucket {parts.geturl()}: azureblob: Options.AccountName is required")
    domain = query.get("domain") or os.environ.get("AZURE_STORAGE_DOMAIN") or "blob.core.windows.net"
    protocol = query.get("protocol") or os.environ.get("AZURE_STORAGE_PROTOCOL") or "https"
    emulated = "true" in (query.get("localemu"), os.environ.get("AZURE_STORAGE_IS_LOCAL_EMULATOR"))
    in_path = emulated or domain.startswith(("127.0.0.1", "localhost"))
    config: Any = {
        "account_name": account,
        "endpoint": f"{protocol}://{domain}/{account}" if in_path else f"{protocol}://{account}.{domain}",
    }
    login = None
    if os.environ.get("AZURE_STORAGE_ACCOUNT") and os.environ.get("AZURE_STORAGE_KEY"):
        config["account_key"] = os.environ["AZURE_STORAGE_KEY"]
    elif os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        config["sas_key"] = os.environ["AZURE_STORAGE_SAS_TOKEN"]
    else:
        login = _azure_token
    return AzureStore(
        parts.netloc, prefix=_prefix(parts), config=config, client_options=_CLIENT, credential_provider=login
    )


def _azure_token() -> Any:
    """Return a token from the environment, the machine's identity or `az`; the engine does not read
    AZURE_STORAGE_TOKEN."""
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import DefaultAzureCredential

    try:
        token = DefaultAzureCredential().get_token(_AZURE_SCOPE)
    except ClientAuthenticationError as error:
        raise BackendError(f"DefaultAzureCredential: failed to acquire a token.\n{error}") from error
    return {"token": token.token, "expires_at": datetime.datetime.fromtimestamp(token.expires_on, datetime.UTC)}


_OPENERS: Mapping[str, Callable[[_Url, Mapping[str, str]], Any]] = {
    "file": _folder,
    "s3": _s3,
    "gs": _gs,
    "azblob": _azblob,
}


def _check(query: Mapping[str, str], known: Collection[str]) -> None:
    for name in query:
        if name not in known:
            raise BackendError(f"unknown query parameter {name!r}")


def _prefix(parts: _Url) -> str | None:
    return parts.path.strip("/") or None


def _line(error: Exception) -> str:
    """Return an error's message in one line, without obstore's debug output."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())
