"""Registry of stores by URL scheme. A new object store is one class, and one row here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .access import CredentialsError
from .azure_blob import BlobStorage
from .bucket_store import BucketStore
from .buckets import Bucket
from .errors import unusable
from .gcs import CloudStorage
from .local import LocalStore
from .s3 import S3
from .urls import local_folder

if TYPE_CHECKING:
    from .buckets import Service
    from .store import Store

SERVICES: Mapping[str, Callable[[str], Service]] = {"s3": S3, "gs": CloudStorage, "az": BlobStorage}
"""Scheme of a URL -> class of its object store."""
SCHEMES = ("file", *SERVICES)


def open_store(url: str, bucket: Bucket | None = None, *, make: bool) -> Store:
    """Open the folder of a URL. Raises JobDirError.

    `bucket`: connections to share; None: the store opens its own. `make`: whether the first write creates a local
    folder.
    """
    plain = url.rstrip("/")
    folder, service = local_folder(plain), _service(plain)
    if service is not None:
        return BucketStore(plain, service, bucket, make=make)
    if folder is None:
        raise unusable(url, f"expected a URL of {', '.join(SCHEMES)}")
    if not folder.is_absolute():
        raise unusable(url, "expected file:// and an absolute path")
    return LocalStore(plain, folder, make=make)


def portable_url(url: str) -> str:
    """Return the URL including parts that come from this computer's environment, so that it is valid on every machine.

    Raises JobDirError.
    """
    service = _service(url)
    try:
        return url if service is None else service(url).portable()
    except CredentialsError as error:
        raise unusable(url, str(error)) from error


class Buckets:
    """Cache of the buckets of a process that uses many job dirs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}

    def of(self, url: str) -> Bucket | None:
        """Return the bucket of a folder's URL; None: it is a local folder."""
        service = _service(url)
        if service is None:
            return None
        found = Bucket(url, service)
        with self._lock:
            return self._buckets.setdefault(found.url, found)


def _service(url: str) -> Callable[[str], Service] | None:
    """Return the class of a URL's object store; None: the URL is not of an object store."""
    scheme, colon, _ = url.partition("://")
    return SERVICES.get(scheme) if colon else None
