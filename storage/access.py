"""Classification of access errors, common to all object stores."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote, urlsplit

CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""A store's error code, in its XML or in obstore's message."""
_UNREACHABLE = re.compile(r"[A-Z]+ (https?://[^/\s]+)\S* .*error sending request", re.DOTALL)
_LOGIN_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidAuthenticationInfo"})
"""Codes of S3, Cloud Storage and Blob Storage for credentials that are no longer valid."""
_UNAUTHENTICATED = re.compile(r"status code: 401\b")
"""End of obstore's message. It raises UnauthenticatedError only for some requests, not for listings."""
_PROVIDER = re.compile(r"External \w+ (credential|token) provider")
"""Start of obstore's message if the provider of credentials failed: an expired login, or none."""


class CredentialsError(Exception):
    """No credentials are available; the message contains the remedy."""


def code_of(message: str) -> str:
    """Return the store's error code; "": there is none, as in responses to HEAD."""
    return next((word for found in CODE.finditer(message) for word in found.groups() if word), "")


def unreachable(message: str) -> str:
    """Return the address that could not be reached; "": the error has another cause."""
    found = _UNREACHABLE.search(message)
    return found[1] if found else ""


def is_lost(message: str) -> bool:
    """Return whether a request was sent, and may have succeeded, but its response was lost.

    obstore does not retry a create-only write in this case.
    """
    return bool(unreachable(message)) and "kind: Connect" not in message


def is_expired(message: str) -> bool:
    """Return whether the store refuses the credentials until they are renewed."""
    return code_of(message) in _LOGIN_CODES or any(known.search(message) for known in (_UNAUTHENTICATED, _PROVIDER))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, judged only by its name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def path_of(url: str) -> str:
    """Return the path inside the bucket of a URL like `s3://bucket/path`. Raises ValueError."""
    return unquote(urlsplit(url).path).strip("/")
