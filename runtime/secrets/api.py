"""HTTPS requests to a secret manager: one at a time, bounded in size and time, never redirected, retried with backoff.

Standard library only, as clouds' SDKs are not on the machines. Neither a request's headers nor the body of a successful
response, which are secret, gets into a message.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from ...storage.access import is_loopback

REQUEST_S = 10.0
"""Timeout of one request in seconds."""
_TOTAL_S = 120.0
"""Seconds for which a read is retried while the service is unreachable, fails or throttles: GPUs idle meanwhile."""
_CREDENTIALS_S = 20.0
"""Seconds for which credentials are awaited: a metadata service answers at once, and elsewhere nothing ever does."""
_PAUSES_S = (0.5, 15.0)
_BODY_BYTES = 256 << 10
_MESSAGE = 400
"""Maximum characters of a service's message that are shown."""
_THROTTLED = 429


class SecretError(Exception):
    """A secret cannot be read; the message says why, and what to do."""

    def __init__(self, message: str, *, passes: bool = False) -> None:
        """`passes`: the service was unreachable, failing or throttling, so a later attempt may succeed."""
        super().__init__(message)
        self.passes = passes


class UnavailableError(Exception):
    """There was no usable response, which a retry may get."""


class NoCredentialsError(UnavailableError):
    """The metadata service gave no credentials: it is not up yet, or this is no cloud's machine."""


class Refusal(NamedTuple):
    """Response with another status than 200."""

    status: int
    code: str
    """The service's error code, e.g. `AccessDeniedException`, `PERMISSION_DENIED` or `Forbidden`."""
    message: str
    reason: str = ""
    """A more specific code, if the service gives one."""
    after_s: float = 0.0
    """Value of the header Retry-After."""

    def __str__(self) -> str:
        code = f"{self.code} ({self.reason})" if self.reason else self.code
        return f"HTTP {self.status} {code}: {self.message}".rstrip(": ")


class Service(NamedTuple):
    """Properties of a secret manager on which retries depend."""

    busy: frozenset[str]
    """Error codes of throttling, beside the status 429."""
    unready: Callable[[Refusal], bool]
    """Return whether a refusal may only mean that a role which was granted with the launch has not spread yet."""
    unready_s: float
    """Seconds for which such a refusal is retried."""
    explain: Callable[[Refusal], str]
    """Return what is wrong and what to do, for a refusal that is final."""


class Patience(NamedTuple):
    """Limits, clock and log of the retries."""

    total_s: float = _TOTAL_S
    credentials_s: float = _CREDENTIALS_S
    unready_s: float | None = None
    """None: the service's."""
    say: Callable[[str], None] = lambda _text: None
    """Called once, with the reason, if the first try fails and others follow."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


PATIENT = Patience()


def retrying(attempt: Callable[[], dict[str, Any] | Refusal], service: Service, patience: Patience) -> dict[str, Any]:
    """Return the document that `attempt` gets, retrying it while that can help. Raises SecretError."""
    begun, pause, is_first = patience.clock(), _PAUSES_S[0], True
    unready_s = service.unready_s if patience.unready_s is None else patience.unready_s
    while True:
        wait = pause * (0.5 + random.random() / 2)  # noqa: S311 - jitter: the nodes of a job begin together
        try:
            found = attempt()
        except UnavailableError as error:
            lacks = isinstance(error, NoCredentialsError)
            limit_s = patience.credentials_s if lacks else patience.total_s
            failure = SecretError(str(error), passes=not lacks)
        else:
            if not isinstance(found, Refusal):
                return found
            passes = _is_passing(found, service.busy)
            failure = SecretError(str(found) if passes else service.explain(found), passes=passes)
            limit_s = patience.total_s if passes else unready_s if service.unready(found) else 0.0
            wait = max(wait, found.after_s)
        if patience.clock() + wait - begun > limit_s:
            raise failure
        if is_first:
            patience.say(str(failure))
        is_first = False
        patience.sleep(wait)
        pause = min(2 * pause, _PAUSES_S[1])


def send(request: urllib.request.Request) -> dict[str, Any] | Refusal:
    """Send a request; return the JSON object of a response with status 200, or the refusal. Raises UnavailableError."""
    host = urlsplit(request.full_url).netloc
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=REQUEST_S) as response:
            return _document(_read(response), host)
    except urllib.error.HTTPError as error:
        with error:
            return _refusal(error, _read(error))
    except TimeoutError as error:
        raise UnavailableError(f"no answer from {host} in {REQUEST_S:.0f} s") from error
    except urllib.error.URLError as error:
        raise UnavailableError(f"{host} cannot be reached: {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Not the exception's text: some contain a part of the response.
        raise UnavailableError(f"the answer from {host} is broken ({type(error).__name__})") from error


def check_endpoint(variable: str, url: str) -> str:
    """Return a custom endpoint without its last `/`. Raises SecretError unless it is https://, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        _bad_endpoint(variable)
    if not host or parts.scheme not in ("http", "https") or (parts.scheme == "http" and not is_loopback(host)):
        _bad_endpoint(variable)
    return url.rstrip("/")


def _bad_endpoint(variable: str) -> NoReturn:
    raise SecretError(
        f"{variable} is no endpoint for secrets: expected https://HOST (plain http for this machine only)"
    )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """No secret manager redirects; a redirect would pass the credentials on."""

    def redirect_request(self, *_: object) -> None:
        return None


def _is_passing(refusal: Refusal, busy: frozenset[str]) -> bool:
    return refusal.status >= 500 or refusal.status in (408, _THROTTLED) or refusal.code in busy


def _read(response: IO[bytes]) -> bytes:
    body = response.read(_BODY_BYTES + 1)
    if len(body) > _BODY_BYTES:
        raise ValueError("too long")
    return body


def _document(body: bytes, host: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # Without the cause, whose text and attributes hold the response.
        raise UnavailableError(f"the answer from {host} is no JSON object") from None
    return found


def _refusal(error: urllib.error.HTTPError, body: bytes) -> Refusal:
    """Parse the error of any of the three clouds; an unknown format yields no code and no message."""
    after = error.headers.get("Retry-After") or ""
    after_s = min(float(after), _PAUSES_S[1]) if after.isdecimal() and len(after) < 9 else 0.0
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    inner = found.get("error") if isinstance(found, dict) else None
    if isinstance(inner, dict):  # Google's and Azure's APIs
        specific = inner.get("innererror")
        reason = _plain(specific.get("code")) if isinstance(specific, dict) else _reason(inner.get("details"))
        code = inner.get("status") or inner.get("code")
        return Refusal(error.code, _plain(code), _plain(inner.get("message")), reason, after_s)
    fields = found if isinstance(found, dict) else {}
    code = _plain(fields.get("__type")).rpartition("#")[2]  # AWS's JSON protocol
    return Refusal(error.code, code, _plain(fields.get("message") or fields.get("Message")), after_s=after_s)


def _reason(details: object) -> str:
    """Return the reason of Google's ErrorInfo."""
    for one in details if isinstance(details, list) else ():
        if isinstance(one, dict) and "reason" in one:
            return _plain(one["reason"])
    return ""


def _plain(value: object) -> str:
    """Return text on one line, without control characters, shortened."""
    text = "" if value is None else str(value)
    return re.sub(r"[^\S ]+|[^\x20-\x7e\xa0-\uffff]", " ", text)[:_MESSAGE].strip()


def text_of(document: Mapping[str, Any], name: str) -> str | None:
    """Return a text field of a response; None: it is missing or no text."""
    value = document.get(name)
    return value if isinstance(value, str) else None
