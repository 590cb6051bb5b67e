"""An S3 object store over HTTP, with fault injection. One lock makes every operation atomic."""

from __future__ import annotations

import contextlib
import hashlib
import html
import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1_000
"""Maximum keys of a listing and of a deletion, as in S3."""
STAMP = "2026-01-01T00:00:00.000Z"
"""Modification time of objects that a test has inserted directly."""


@dataclass(frozen=True)
class Request:
    method: str
    key: str
    query: dict[str, str]
    headers: Any = field(default_factory=dict, compare=False)
    """Case-insensitive mapping."""
    target: str = field(default="", compare=False)
    """Path and query as they were sent."""

    @property
    def kind(self) -> str:
        """S3 operation of the request, in the categories that tests use."""
        names = {("POST", "uploads"): "start", ("PUT", "partNumber"): "part", ("POST", "uploadId"): "complete"}
        names[("POST", "delete")] = "delete"
        for (method, parameter), name in names.items():
            if self.method == method and parameter in self.query:
                return name
        if "x-amz-copy-source" in self.headers:
            return "copy"
        return "list" if "list-type" in self.query else self.method


@dataclass
class Fault:
    """Failure of matching requests. `times`: how many requests fail; later ones succeed."""

    matches: Callable[[Request], bool]
    status: int = 0
    """HTTP status to respond with instead of performing the operation; 0: none."""
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of that response."""
    garble: bool = False
    """Flip one bit of the response's content."""
    lose_answer: bool = False
    """Perform the operation, then drop the connection instead of responding."""
    hang: bool = False
    """Do not respond until the test is over."""
    delay: float = 0.0
    """Seconds before the operation is performed."""
    times: float = float("inf")
    met: int = 0


@dataclass
class S3:
    """Object store; `url` and `environment` are a client's configuration."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """Modification time of each object, as in listings: whole seconds, as in S3."""
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    over: threading.Event = field(default_factory=threading.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    url = "s3://bucket/job"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def fail(self, kind: str, name: str = "", **what: Any) -> Fault:
        """Make requests of this kind fail for keys that contain `name`."""
        fault = Fault(lambda request: request.kind == kind and name in request.key, **what)
        with self.lock:
            self.faults.append(fault)
        return fault

    def count(self, kind: str, name: str = "") -> int:
        return sum(request.kind == kind and name in request.key for request in self.requests)

    def fault_for(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.met < fault.times and fault.matches(request):
                    fault.met += 1
                    return fault
        return None

    # Operations: each returns status, body, headers

    def put(self, key: str, body: bytes, *, create: bool) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            if create and key in self.objects:
                return 412, _error("PreconditionFailed"), {}
            self.objects[key], self.written[key] = body, _stamp()
        return 200, b"", {"ETag": _etag(body)}

    def copy(self, source: str, key: str) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            body = self.objects.get(unquote(source).removeprefix("/").removeprefix("bucket/"))
            if body is None:
                return 404, _error("NoSuchKey"), {}
            self.objects[key], self.written[key] = body, _stamp()
        return 200, _xml("CopyObjectResult", f"<ETag>{escape(_etag(body))}</ETag>"), {}

    def get(
        self, key: str, span: str | None, known: str | None = None, wanted: str | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Read an object. `known`: If-None-Match (304 if it is the current ETag); `wanted`: If-Match (412 if it is
        not)."""
        body = self.objects.get(key)
        if body is None:
            return 404, _error("NoSuchKey"), {}
        if known == _etag(body):
            return 304, b"", {"ETag": known}
        if wanted is not None and wanted != _etag(body):
            return 412, _error("PreconditionFailed"), {}
        headers = {"ETag": _etag(body), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if not span:
            return 200, body, headers
        first, last = span.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1 if last else len(body), len(body))
        if start >= len(body):
            return 416, _error("InvalidRange"), {}
        return 206, body[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}

    def start(self) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            number = f"upload{next(self._numbers)}"
            self.uploads[number] = {}
        return 200, _xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>"), {}

    def part(self, upload: str, number: int, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            if upload not in self.uploads:
                return 404, _error("NoSuchUpload"), {}
            self.uploads[upload][number] = body
        return 200, b"", {"ETag": _etag(body)}

    def complete(self, key: str, upload: str) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            parts = self.uploads.pop(upload, None)
            if parts is None:
                return 404, _error("NoSuchUpload"), {}
            assert all(len(parts[number]) >= 5 << 20 for number in sorted(parts)[:-1])  # S3 rejects smaller parts
            self.objects[key], self.written[key] = b"".join(parts[number] for number in sorted(parts)), _stamp()
            etag = _etag(self.objects[key])
        return 200, _xml("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>"), {}

    def abort(self, upload: str) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            self.uploads.pop(upload, None)
        return 204, b"", {}

    def listing(self, prefix: str, delimiter: str, after: str) -> tuple[int, bytes, dict[str, str]]:
        """List at most PAGE keys. A continuation token is the last key of the page before, as S3's are opaque."""
        found: list[str] = []
        folders: set[str] = set()
        last, is_cut = "", False
        with self.lock:
            for key in sorted(key for key in self.objects if key.startswith(prefix) and key > after):
                if len(found) + len(folders) >= PAGE:
                    is_cut = True
                    break
                rest, last = key[len(prefix) :], key
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                    continue
                body = self.objects[key]
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{self.written.get(key, STAMP)}</LastModified>"
                    f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
                )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
        cut = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        return 200, _xml("ListBucketResult", f"{cut}{token}{''.join(found)}{prefixes}"), {}

    def delete(self, keys: list[str]) -> tuple[int, bytes, dict[str, str]]:
        if len(keys) > PAGE:
            return 400, _error("MalformedXML"), {}
        with self.lock:
            for key in keys:
                self.objects.pop(key, None)
        return 200, _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)), {}

    def do(self, request: Request, body: bytes, headers: Any) -> tuple[int, bytes, dict[str, str]]:
        key, query = request.key, defaultdict(str, request.query)
        operations: dict[str, Callable[[], tuple[int, bytes, dict[str, str]]]] = {
            "start": self.start,
            "part": lambda: self.part(query["uploadId"], int(query["partNumber"]), body),
            "complete": lambda: self.complete(key, query["uploadId"]),
            "list": lambda: self.listing(
                query["prefix"], query["delimiter"], query["continuation-token"] or query["start-after"]
            ),
            "copy": lambda: self.copy(headers["x-amz-copy-source"], key),
            "PUT": lambda: self.put(key, body, create=headers.get("If-None-Match") == "*"),
            "GET": lambda: self.get(key, headers.get("Range"), headers.get("If-None-Match"), headers.get("If-Match")),
            "HEAD": lambda: self.get(key, None),
            "DELETE": lambda: self.abort(query["uploadId"]),  # multipart uploads only; objects use "delete"
            "delete": lambda: self.delete([html.unescape(k) for k in re.findall("<Key>(.*?)</Key>", body.decode())]),
        }
        return operations[request.kind]()


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'.encode()


def _error(code: str) -> bytes:
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")


def _handler(store: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            request = Request(self.command, key, query, self.headers, self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = store.fault_for(request)
            if fault and fault.hang:
                store.over.wait(600)
                self.close_connection = True
                return
            if fault and fault.delay:
                time.sleep(fault.delay)
            if fault and fault.status:
                self.answer(fault.status, _error(fault.code), fault.headers)
                return
            status, content, headers = store.do(request, body, self.headers)
            if fault and fault.lose_answer:
                self.close_connection = True
                return
            if fault and fault.garble:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.answer(status, content, headers)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815

        def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response_only(status)
            for name, value in {"Date": self.date_time_string(), **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Suppress logging."""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a client was killed
                super().handle()

    return Handler


@contextlib.contextmanager
def running() -> Iterator[S3]:
    store = S3()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.over.set()
        server.shutdown()
        server.server_close()
