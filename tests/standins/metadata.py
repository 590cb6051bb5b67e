"""Base of the stand-ins for the clouds' metadata servers: an HTTP server on loopback, with fault injection.

Each stand-in follows the vendor's documentation, which its module names.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self
from urllib.parse import parse_qs, urlsplit

Fault = Literal["hang", "garbage", "huge", "reset", "drip", "html"]


@dataclass(frozen=True)
class Request:
    """One recorded HTTP request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Answer:
    """HTTP response."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class MetadataServer:
    """Context manager that runs the server. `fault`, while set, replaces every response: an HTTP status or a Fault."""

    def __init__(self) -> None:
        self.fault: int | Fault | None = None
        self.clock_off_s = 0.0
        """Seconds by which the clock in the server's Date headers is ahead of this machine's clock."""
        self.has_date_header = True
        """True if responses have a Date header."""
        self.requests: list[Request] = []
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"

    def answer(self, request: Request) -> Answer:
        """Return the response of a healthy server; each stand-in overrides this."""
        raise NotImplementedError

    def preempt(self) -> None:
        """Announce the preemption of this machine, as for a Spot machine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.closing.set()
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def requests_for(self, path: str, method: str = "GET") -> list[Request]:
        """Return the requests for a path so far."""
        return [request for request in list(self.requests) if (request.path, request.method) == (path, method)]


def _handler(standin: MetadataServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, url.path, query, self.headers, body)
            standin.requests.append(request)
            fault = standin.fault
            if isinstance(fault, str):
                self._fail(fault)
            else:
                self._send(Answer(fault, "refused") if fault is not None else standin.answer(request))

        do_GET = do_PUT = do_POST = _respond  # noqa: N815 - the base class's names

        def _send(self, answer: Answer) -> None:
            data = answer.body.encode()
            self.send_response_only(answer.status)
            if standin.has_date_header:
                self.send_header("Date", formatdate(time.time() + standin.clock_off_s, usegmt=True))
            self.send_header("Content-Length", str(len(data)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _fail(self, fault: str) -> None:
            self.close_connection = True
            if fault == "hang":
                standin.closing.wait()
            elif fault == "garbage":
                self.wfile.write(b"\x00\xff\x17SSH-2.0-nonsense\r\n\r\n" * 20)
            elif fault == "huge":
                self._send(Answer(body="x" * 10_000_000))
            elif fault == "html":
                self._send(Answer(body="<!doctype html><title>Log in to this network</title>"))
            elif fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif fault == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not standin.closing.wait(0.05):
                    self.wfile.write(b"x")

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has disconnected or was cut off
                self.close_connection = True

        def finish(self) -> None:
            try:
                super().finish()
            except (OSError, ValueError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    return Handler
