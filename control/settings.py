"""The variables that say whose machines are launched, and which of them the running supervisor has.

Project, account and credentials of a cloud come from the environment of the process that calls it: the supervisor. Its
lock file has a keyed hash of each variable, and never a value.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Mapping

from .paths import DATABASE_VARIABLE

_GOOGLE = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST")
_NAMES = {
    "aws": ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"),
    "gcp": _GOOGLE,
    "vertex": _GOOGLE,
    "azure": ("AZURE_SUBSCRIPTION_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CONFIG_DIR"),
}
"""Settings: what decides whose machines are launched."""
_BEGINNINGS = {
    "aws": ("CLOUDGPU_AWS_",),
    "gcp": ("CLOUDGPU_GCP_",),
    "vertex": ("CLOUDGPU_GCP_", "CLOUDGPU_VERTEX_"),
    "azure": ("CLOUDGPU_AZURE_",),
}
_GOOGLE_CREDENTIALS = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
_CREDENTIALS = {
    "aws": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    ),
    "gcp": _GOOGLE_CREDENTIALS,
    "vertex": _GOOGLE_CREDENTIALS,
    "azure": ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE"),
}
"""Credentials: what expires, or is rotated, while a supervisor runs."""
_STORE = "store"
_CREDENTIALS_BEGIN = {"azure": ("AZURE_STORAGE_",)}


def settings_of(clouds: Collection[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the settings of these clouds that an environment has."""
    return _among(clouds, environ, _NAMES, _BEGINNINGS)


def credentials_of(clouds: Collection[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the credentials of these clouds that an environment has."""
    return _among(clouds, environ, _CREDENTIALS, _CREDENTIALS_BEGIN)


def credentials_among(cloud: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the credentials of one cloud that an environment has, sorted."""
    return sorted(credentials_of([cloud], environ))


def hashes(environ: Mapping[str, str], salt: bytes) -> dict[str, str]:
    """Return name -> keyed hash of each variable that belongs to any cloud or to the store."""
    names = settings_of(_NAMES, environ) | credentials_of(_CREDENTIALS, environ)
    found = {name: _hash(environ[name], salt) for name in sorted(names)}
    if url := environ.get(DATABASE_VARIABLE, ""):
        found[DATABASE_VARIABLE] = _hash(url, salt)
    return found | {_STORE: _hash(_without_password(url), salt)}


def has_new_password(theirs: Mapping[str, str], salt: bytes) -> bool:
    """Return whether the store's URL here is that of `theirs`, of hashes(), but for user and password."""
    url = os.environ.get(DATABASE_VARIABLE, "")
    is_same = theirs.get(_STORE) == _hash(_without_password(url), salt)
    return is_same and bool(differing([DATABASE_VARIABLE], theirs, salt))


def differing(names: Collection[str], theirs: Mapping[str, str], salt: bytes) -> list[str]:
    """Return those of the names whose values here are not those that `theirs`, of hashes(), was made from."""
    ours = {name: _hash(os.environ[name], salt) for name in names if os.environ.get(name)}
    return sorted(name for name in names if ours.get(name) != theirs.get(name))


def _among(
    clouds: Collection[str],
    environ: Mapping[str, str],
    exact: Mapping[str, tuple[str, ...]],
    beginnings: Mapping[str, tuple[str, ...]],
) -> frozenset[str]:
    """Empty variables count as unset."""
    names = {name for cloud in clouds for name in exact.get(cloud, ())}
    begin = tuple({start for cloud in clouds for start in beginnings.get(cloud, ())})
    return frozenset(
        name for name, value in environ.items() if value and (name in names or name.startswith(begin or ("\0",)))
    )


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


def _hash(value: str, salt: bytes) -> str:
    return hmac.new(salt, os.fsencode(value), hashlib.sha256).hexdigest()[:32]
