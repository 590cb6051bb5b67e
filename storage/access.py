"""Errors of access, common to all object stores."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote, urlsplit

CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""A store's own word of what is wrong, in its XML or as obstore repeats it."""
_UNREACHABLE = re.compile(r"[A-Z]+ (https?://[^/\s]+)\S* .*error sending request", re.DOTALL)
_LOGIN_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidAuthenticationInfo"})
"""Words of S3, Cloud Storage and Blob Storage for credentials that were good once."""
_UNAUTHENTICATED = re.compile(r"status code: 401\b")
"""How obstore ends, which raises UnauthenticatedError for some requests only: not for listings."""
_PROVIDER = re.compile(r"External \w+ (credential|token) provider")
"""How obstore begins, when what reads the credentials has failed: a login that has expired, or none."""


class CredentialsError(Exception):
    """No credentials can be had; the message says what to do."""


def code_of(message: str) -> str:
    """The store's word of what is wrong; "": it says none, as in answers to HEAD."""
    return next((word for found in CODE.finditer(message) for word in found.groups() if word), "")


def unreachable(message: str) -> str:
    """The address that could not be reached; "": that is not what is wrong."""
    found = _UNREACHABLE.search(message)
    return found[1] if found else ""


def is_lost(message: str) -> bool:
    """Return whether a request was sent and no answer came: obstore does not repeat a create-only write then."""
    return bool(unreachable(message)) and "kind: Connect" not in message


def is_expired(message: str) -> bool:
    """Return whether the store does not accept the credentials any more, until they are renewed."""
    return code_of(message) in _LOGIN_CODES or any(known.search(message) for known in (_UNAUTHENTICATED, _PROVIDER))


def is_loopback(host: str) -> bool:
    """Return whether a host is this very machine, by its name or address alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def path_of(url: str) -> str:
    """Return the path inside the bucket of a URL like `s3://bucket/path`. Raises ValueError."""
    return unquote(urlsplit(url).path).strip("/")
