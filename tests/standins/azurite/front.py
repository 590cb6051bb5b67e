"""Proxy in front of Azurite that injects faults by the rules of ../faults.py and otherwise passes requests through.

    with Azurite(folder) as blobs, Front(blobs) as front:
        front.fail("blob.put", LOSE, where={"name": "*/claim"})

Actions: blob.put, blob.get, blob.head, blob.delete, block.put, blocks.commit, blobs.list; `name` is the blob's, or the
listed prefix; the caller is the token's application or identity.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qs, unquote

from ..faults import Call, Fault, Ledger, Rule
from ..serving import HTML_PAGE, WebServer, read_body, suffer
from ..tls import server_context
from . import Azurite

_ANSWER_S = 180.0
_COMPONENTS = {"block": "block.put", "blocklist": "blocks.commit", "list": "blobs.list"}
_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}
_ERROR = '<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'

_Answer = tuple[int, dict[str, str], bytes]
_DROPPED: _Answer = (0, {}, b"")


class Front:
    """Proxy; `url` replaces Azurite's in AZURE_STORAGE_ENDPOINT."""

    def __init__(self, blobs: Azurite) -> None:
        self._blobs = blobs
        self._ledger = Ledger()
        self._over = threading.Event()
        self._server = WebServer(self, context=server_context(blobs.certificate))
        self.url = f"{self._server.url}/{blobs.account}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.stop()
        self._server.close()

    def fail(
        self,
        action: str,
        fault: Fault,
        *,
        where: Mapping[str, str] | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Add a rule for later calls."""
        self._ledger.add(Rule(action, fault, where or {}, times, skip))

    def heal(self) -> None:
        self._ledger.clear(calls=False)

    def calls(self, action: str = "", name: str = "") -> list[Call]:
        """Return the calls of this action ("": any) on blobs whose name contains `name`."""
        known = [Call(**call) for call in self._ledger.calls()]
        return [call for call in known if action in ("", call.action) and name in call.value("name")]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        path, query = str(environ["RAW_URI"]).partition("?")[::2]
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        component = asked.get("comp", "")
        action = _COMPONENTS.get(component) or f"blob.{environ['REQUEST_METHOD'].lower()}"
        name = unquote(path).strip("/").partition("/")[2].partition("/")[2] or asked.get("prefix", "")
        call = Call("blob", "", action, _caller(environ.get("HTTP_AUTHORIZATION", "")), {"name": name})
        fault = self._ledger.open(call)
        status, headers, body = suffer(
            fault,
            environ,
            self._over,
            refuse=_refuse,
            perform=lambda: self._forward(environ),
            dropped=_DROPPED,
        )
        self._ledger.close(call, status)
        if status:
            start_response(f"{status} {http.client.responses.get(status, 'Unknown')}", list(headers.items()))
        return [body]

    def _forward(self, environ: Mapping[str, Any]) -> _Answer:
        context = ssl.create_default_context(cafile=str(self._blobs.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self._blobs.port, timeout=_ANSWER_S, context=context)
        headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
        if environ.get("CONTENT_TYPE"):
            headers["Content-Type"] = environ["CONTENT_TYPE"]
        headers.pop("CONNECTION", None)
        with contextlib.closing(connection):
            body = read_body(environ)
            connection.request(environ["REQUEST_METHOD"], environ["RAW_URI"], body, headers)
            answer = connection.getresponse()
            result = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
            content = answer.read()
            length = answer.getheader("Content-Length") if environ["REQUEST_METHOD"] == "HEAD" else str(len(content))
            return answer.status, result | ({"Content-Length": length} if length else {}), content


def _caller(authorization: str) -> str:
    """Return the token's application id without verification, which is left to Azurite."""
    claims = authorization.removeprefix("Bearer ").split(".")[1:2]
    try:
        return str(json.loads(urlsafe_b64decode(claims[0] + "==")).get("appid", ""))
    except (IndexError, ValueError):
        return ""


def _refuse(fault: Fault) -> _Answer:
    if fault.kind == "html":
        return fault.status, {"Content-Type": "text/html"}, HTML_PAGE.format(status=fault.status).encode()
    body = _ERROR.format(code=fault.code, message=fault.message).encode()
    return fault.status, {"Content-Type": "application/xml", "x-ms-error-code": fault.code, **fault.headers}, body
