"""Shared parts of the stand-ins that serve a whole cloud: fault injection, control verbs, a quiet HTTP server."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .faults import Fault, kill_peer

_T = TypeVar("_T")

HTML_PAGE = "<!DOCTYPE html><html><head><title>{status}</title></head><body>Service Unavailable</body></html>"


def suffer(
    fault: Fault | None,
    environ: Mapping[str, Any],
    over: threading.Event,
    *,
    refuse: Callable[[Fault], _T],
    perform: Callable[[], _T],
    dropped: _T,
) -> _T:
    """Apply the fault to a call and return its response. `dropped` is returned where the connection was dropped.

    `over` is set when the stand-in ends; a hanging call waits for it.
    """
    kind = fault.kind if fault is not None else ""
    if fault is not None and kind in ("error", "html"):
        read_body(environ)
        return refuse(fault)
    if kind == "hang":
        over.wait()
    elif kind == "kill-before":
        kill_peer(int(environ["REMOTE_PORT"]))
    if kind in ("hang", "reset", "kill-before"):
        drop(environ)
        return dropped
    answer = perform()
    if kind == "kill-after":
        kill_peer(int(environ["REMOTE_PORT"]))
    if kind in ("lose", "kill-after"):
        drop(environ)
        return dropped
    return answer


def drop(environ: Mapping[str, Any]) -> None:
    """Shut the connection down without a response. (close() is not enough.)"""
    with contextlib.suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def read_body(environ: Mapping[str, Any]) -> bytes:
    """Return a request's whole body, chunked or not."""
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        return bytes(stream.read())
    return bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))


def obey_control(environ: Mapping[str, Any], verb: str, verbs: Mapping[str, Callable[..., Any]]) -> tuple[int, bytes]:
    """Run a control verb; return status and body of the response."""
    try:
        if verb not in verbs:
            raise ValueError(f"no verb of the control; known: {', '.join(sorted(verbs))}")
        value = verbs[verb](**json.loads(read_body(environ) or b"{}"))
    except Exception as error:  # noqa: BLE001 - reported to the test
        return 400, f"{verb}: {type(error).__name__}: {error}".encode()
    return 200, json.dumps(value).encode()


class WebServer:
    """WSGI server on a loopback port, in threads of this process."""

    def __init__(
        self, application: Any, port: int = 0, handler: Any = None, context: ssl.SSLContext | None = None
    ) -> None:
        """`context`: serve over TLS."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        quiet = _quiet(handler or WSGIRequestHandler)
        self._server = make_server(
            "127.0.0.1", port, application, threaded=True, request_handler=quiet, ssl_context=context
        )
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop accepting requests; call close() afterwards."""
        self._server.shutdown()

    def close(self) -> None:
        self._server.server_close()


def _quiet(base: Any) -> Any:
    class Handler(base):
        """Request handler that does not log and ignores clients that were cut off."""

        def log(self, *_what: object) -> None:
            """Suppress logging."""

        def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
            """Ignore the error."""

    return Handler
