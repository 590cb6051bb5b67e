"""Client of a cloud's metadata server, which speaks plain HTTP on a link-local address.

Outside of a cloud, any other server may answer there. Therefore the time and the size of each reply are limited.
Redirects and proxies are not used (http.client supports neither).
"""

from __future__ import annotations

import datetime
import http.client
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from .scheduled_notices import ProviderNotice

LINK_LOCAL = "http://169.254.169.254"
_BODY_BYTES = 256 << 10
_CLOCK_S = 2.0  # smaller clock differences are ignored: a Date has whole seconds and is slightly old when read
_CLOCK_SAID_S = 10.0  # larger clock differences are logged

_T = TypeVar("_T")


class MetadataError(Exception):
    """The metadata server gave no usable reply; the message says why, and is the same each time for the same cause."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its time of arrival on both clocks."""

    status: int
    headers: Message
    body: bytes
    received: float
    """Time of arrival on the monotonic clock."""
    wall: float
    """Time of arrival on this machine's wall clock, in epoch seconds."""

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()

    def json(self, wanted: type[_T]) -> _T:
        """Return the body's JSON, which must be of the wanted type. Raises MetadataError."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise MetadataError("the metadata server's answer is no JSON") from error
        if not isinstance(value, wanted):
            raise MetadataError(f"the metadata server's answer is {type(value).__name__}, not {wanted.__name__}")
        return value

    @property
    def clock_error(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the server's; 0 if less than _CLOCK_S.

        None: the reply has no valid Date header.
        """
        there = epoch_of(self.headers.get("Date"))
        if there is None:
            return None
        error = self.wall - there
        return 0.0 if abs(error) < _CLOCK_S else error

    def when(self, epoch: float, at_most_s: float = math.inf) -> float | None:
        """Convert a time in the reply, in epoch seconds, to the monotonic clock.

        This machine's clock is corrected by the reply's Date header. Returns None if there is no such header and this
        machine's clock must be wrong: the time seems to have passed, or to be more than `at_most_s` seconds away.
        """
        error = self.clock_error
        left = epoch - (self.wall - (error or 0.0))
        if error is None and not 0.0 <= left <= at_most_s:
            return None
        return self.received + left


class MetadataServer:
    """Client of the server at a base URL. Each call opens a new connection, so that no connection can be stale."""

    def __init__(self, url: str, say: Callable[[str], None], timeout_s: float = 2.0) -> None:
        self._say, self._clock_is_wrong = say, False
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            self._host, self._port = parts.hostname or "", parts.port or 80
        except ValueError as error:
            raise MetadataError(f"{url} is no address: {error}") from error
        if parts.scheme != "http" or not self._host:
            raise MetadataError(f"{url} is no address of a metadata server: expected http://HOST[:PORT]")
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self.name = parts.netloc

    def request(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request; return the reply with any status. Raises MetadataError if there is no reply."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        connection = http.client.HTTPConnection(self._host, self._port, timeout=limit_s)
        try:
            connection.request(method, self._prefix + path, body, dict(headers))
            response = connection.getresponse()
            data = _read(response, time.monotonic() + limit_s)
            reply = Reply(response.status, response.headers, data, time.monotonic(), time.time())
        except TimeoutError as error:
            raise MetadataError(f"no answer from {self.name} in {limit_s:.0f} s") from error
        except OSError as error:
            raise MetadataError(f"no answer from {self.name}: {error.strerror or error}") from error
        except (http.client.HTTPException, ValueError) as error:
            raise MetadataError(f"{self.name} does not answer in HTTP: {type(error).__name__}") from error
        finally:
            connection.close()
        self._compare_clocks(reply)
        return reply

    def _compare_clocks(self, reply: Reply) -> None:
        """Log, once, a large difference between this machine's clock and the server's."""
        error = reply.clock_error
        if error is not None and abs(error) > _CLOCK_SAID_S and not self._clock_is_wrong:
            self._clock_is_wrong = True
            where = "ahead of" if error > 0 else "behind"
            self._say(f"this machine's clock is {abs(error):.0f} s {where} the provider's, which counts for deadlines")

    def refusal(self, reply: Reply) -> MetadataError:
        """Return the exception for a reply with an unexpected status."""
        return MetadataError(f"{self.name} answers with HTTP {reply.status}")


class Look(Protocol):
    """A poll of a metadata server, repeated in a separate thread."""

    @property
    def name(self) -> str: ...

    @property
    def pause_s(self) -> float:
        """Seconds until the next poll."""

    def look(self) -> Sequence[ProviderNotice]:
        """Return all current notices; may block until they change. Raises MetadataError."""


def epoch_of(text: object) -> float | None:
    """Parse a time in any of the clouds' formats into epoch seconds; None if it is invalid.

    Formats: ISO 8601, HTTP date, HTTP date without the weekday.
    """
    if not isinstance(text, str):
        return None
    for read in (datetime.datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text.strip())
        except (TypeError, ValueError, IndexError, OverflowError):
            continue
        if 1970 < moment.year < 9999:
            return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    return None


def _read(response: http.client.HTTPResponse, until: float) -> bytes:
    """Read the body. Raises HTTPException if it is too long, TimeoutError if it takes too long in total."""
    data = b""
    while piece := response.read1(64 << 10):
        data += piece
        if len(data) > _BODY_BYTES:
            raise http.client.HTTPException
        if time.monotonic() > until:
            raise TimeoutError
    return data
