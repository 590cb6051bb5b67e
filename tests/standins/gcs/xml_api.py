"""The XML API: objects as plain paths, multipart uploads, version 2 listings.

It follows cloud.google.com/storage/docs/xml-api: "Reference for HTTP headers and query parameters", "GET Bucket (List
Objects)", "XML API multipart uploads", "HTTP status and error codes for XML", which defines the error codes.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import NoReturn
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from ..faults import Call
from ..gcp.service import RefusedError, Request, Response
from .shared import StorageService, number, read_conditions, read_hashes, served
from .store import Conditions, ObjectVersion, Upload, encoded

PAGE = 1_000
_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
_OTHERS = {"batch", "compute", "download", "resumable", "storage", "upload", "v1beta1", "v1alpha"}
"""First path segments of other APIs: unknown paths there must not be reported as missing buckets."""
_CODES = {
    "forbidden": "AccessDenied",
    "authError": "AuthenticationRequired",
    "insufficientPermissions": "AccessDenied",
    "conflict": "BucketNameUnavailable",
    "rateLimitExceeded": "SlowDown",
    "backendError": "InternalError",
}
"""Reason in the JSON API -> code of the XML API."""
_MESSAGES = {
    "AccessDenied": "Access denied.",
    "NoSuchKey": "The specified key does not exist.",
    "SlowDown": "Please reduce your request rate.",
    "AuthenticationRequired": "Authentication required.",
}
"""Codes with a fixed message; the specific text is in Details."""


class XmlApi(StorageService):
    """XML API, which takes every path of no other service, so it must be registered last."""

    def call(self, request: Request) -> Call | None:
        bucket, name = _names(request)
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{2,220}", bucket) or bucket in _OTHERS:
            return None
        action = _action(request, name)
        if action is None:
            return None
        source = unquote(request.headers.get("x-goog-copy-source", "")).lstrip("/")
        from_bucket, _, from_name = source.partition("/")
        resource = f"projects/_/buckets/{from_bucket}/objects/{from_name}" if source else ""
        create = request.headers.get("x-goog-if-generation-match", "")
        return self.made_call(request, action, bucket, name, source=resource, ifGenerationMatch=create)

    def answer(self, request: Request, call: Call) -> Response:
        does: dict[str, Callable[[Request, str, str], Response]] = {
            "objects.get": self._get,
            "objects.insert": self._put,
            "objects.copy": self._copy,
            "objects.delete": self._delete,
            "objects.list": self._list,
            "buckets.get": self._bucket,
            "multipartUploads.create": self._start,
            "multipartUploads.uploadPart": self._part,
            "multipartUploads.complete": self._complete,
            "multipartUploads.abort": self._abort,
        }
        return does[call.action](request, *_names(request))

    def error(self, code: str, status: int, message: str) -> Response:
        code = _CODES.get(code, code)
        fixed = _MESSAGES.get(code, message)
        details = f"<Details>{escape(message)}</Details>" if fixed != message else ""
        text = f"<Error><Code>{escape(code)}</Code><Message>{escape(fixed)}</Message>{details}</Error>"
        return _xml(text, status)

    def forbidden(self, permission: str, resource: str) -> Response:
        text = (
            f"The caller does not have {permission} access to the Google Cloud Storage object. "
            f"Permission '{permission}' denied on resource (or it may not exist): {resource}"
        )
        return self.error("AccessDenied", 403, text)

    # -- operations

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        thing = self.store.get(bucket, name, request.caller, _conditions(request))
        wanted = request.headers.get("if-match")
        if wanted and wanted not in ("*", f'"{thing.etag}"'):
            raise RefusedError("PreconditionFailed", 412, "At least one of the pre-conditions did not hold.")
        if request.headers.get("if-none-match") in ("*", f'"{thing.etag}"'):
            return Response(304, b"", _headers(thing))
        answer = served(thing, request.headers.get("range"), _headers(thing))
        return Response(answer.status, b"", answer.headers) if request.method == "HEAD" else answer

    def _put(self, request: Request, bucket: str, name: str) -> Response:
        hashes = read_hashes(request.headers.get("x-goog-hash", ""))
        if md5 := request.headers.get("content-md5"):
            hashes["md5"] = md5
        kind = request.headers.get("content-type") or "application/octet-stream"
        made = self.store.put(bucket, name, request.body, _conditions(request), content_type=kind, hashes=hashes)
        return Response(200, b"", _versions(made))

    def _copy(self, request: Request, bucket: str, name: str) -> Response:
        source = unquote(request.headers["x-goog-copy-source"]).lstrip("/")
        with self.store.lock:
            found = self.store.get(*source.partition("/")[::2], request.caller)
            made = self.store.put(
                bucket,
                name,
                found.data,
                _conditions(request),
                content_type=found.content_type,
                metadata=found.metadata,
                parts=found.parts,
            )
        result = f"<LastModified>{_stamp(made.created)}</LastModified><ETag>{escape(_quoted(made.etag))}</ETag>"
        answer = _xml(f"<CopyObjectResult>{result}</CopyObjectResult>")
        answer.headers.update(_versions(made))
        return answer

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self.store.delete(bucket, name, request.caller, _conditions(request))
        return Response(204)

    def _bucket(self, _request: Request, bucket: str, _name: str) -> Response:
        self.store.bucket(bucket)
        return Response(200, b"", {"x-goog-bucket-location": self.store.locations[bucket], "Content-Length": "0"})

    def _list(self, request: Request, bucket: str, _name: str) -> Response:
        query = request.query
        limit = min(number(query.get("max-keys")) or PAGE, PAGE)
        after = query.get("continuation-token") or query.get("start-after", "")
        page = self.store.listed(bucket, query.get("prefix", ""), query.get("delimiter", ""), after, limit)
        rows = [f"<Name>{bucket}</Name><KeyCount>{len(page.things) + len(page.folders)}</KeyCount>"]
        rows.append(f"<IsTruncated>{'true' if page.after else 'false'}</IsTruncated>")
        if page.after:
            rows.append(f"<NextContinuationToken>{escape(page.after)}</NextContinuationToken>")
        rows += [
            f"<Contents><Key>{escape(one.name)}</Key><Generation>{one.generation}</Generation>"
            f"<MetaGeneration>{one.metageneration}</MetaGeneration><LastModified>{_stamp(one.created)}</LastModified>"
            f"<ETag>{escape(_quoted(one.etag))}</ETag><Size>{len(one.data)}</Size></Contents>"
            for one in page.things
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in page.folders]
        return _xml(f"<ListBucketResult xmlns='{_NAMESPACE}'>{''.join(rows)}</ListBucketResult>")

    def _start(self, request: Request, bucket: str, name: str) -> Response:
        kind = request.headers.get("content-type") or "application/octet-stream"
        identity = self.store.begin(Upload(bucket, name, kind))
        result = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{identity}</UploadId>"
        return _xml(f"<InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>")

    def _part(self, request: Request, bucket: str, name: str) -> Response:
        part = number(request.query["partNumber"]) or 0
        if not 1 <= part <= 10_000:
            raise RefusedError("InvalidArgument", 400, "Part numbers are from 1 to 10000.")
        md5 = hashlib.md5(request.body, usedforsecurity=False)
        claimed = request.headers.get("content-md5")
        if claimed and claimed != encoded(md5.digest()):
            raise RefusedError("BadDigest", 400, "The Content-MD5 you specified did not match what we received.")
        with self.store.lock:
            self._own(request, bucket, name).parts[part] = request.body
        return Response(200, b"", {"ETag": f'"{md5.hexdigest()}"'})

    def _complete(self, request: Request, bucket: str, name: str) -> Response:
        wanted: list[tuple[int, str]] = []
        for part in re.findall("<Part>(.*?)</Part>", request.body.decode(), re.DOTALL):
            found = re.search("<PartNumber>(.*?)</PartNumber>", part), re.search("<ETag>(.*?)</ETag>", part)
            if found[0] is None or found[1] is None:
                raise RefusedError("MalformedXML", 400, "The XML you provided was not well-formed.")
            etag = unescape(found[1][1], {"&quot;": '"'})
            wanted.append((int(found[0][1]), etag.strip('"')))
        self._own(request, bucket, name)
        made = self.store.complete(request.query["uploadId"], wanted)
        result = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><ETag>{escape(_quoted(made.etag))}</ETag>"
        answer = _xml(f"<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>")
        answer.headers.update(_versions(made))
        return answer

    def _abort(self, request: Request, bucket: str, name: str) -> Response:
        with self.store.lock:
            self._own(request, bucket, name)
            del self.store.uploads[request.query["uploadId"]]
        return Response(204)

    def _own(self, request: Request, bucket: str, name: str) -> Upload:
        """Return the upload named by a request for this object. Raises RefusedError."""
        found = self.store.upload(request.query["uploadId"])
        if (found.bucket, found.name) != (bucket, name):
            _no_upload()
        return found


def _no_upload() -> NoReturn:
    raise RefusedError("NoSuchUpload", 404, "The requested upload was not found.")


def _names(request: Request) -> tuple[str, str]:
    """Return bucket and object; object "": the bucket itself."""
    bucket, _, name = request.path.lstrip("/").partition("/")
    return unquote(bucket), unquote(name)


def _action(request: Request, name: str) -> str | None:
    """Return the action's name in the JSON API and IAM; None: unknown."""
    has = request.query.keys()
    if not name:
        return {"GET": "objects.list", "HEAD": "buckets.get"}.get(request.method) if not has - _LISTING else None
    if request.method == "PUT" and "x-goog-copy-source" in request.headers:
        return "objects.copy"
    kinds = {
        ("POST", frozenset({"uploads"})): "multipartUploads.create",
        ("PUT", frozenset({"partNumber", "uploadId"})): "multipartUploads.uploadPart",
        ("POST", frozenset({"uploadId"})): "multipartUploads.complete",
        ("DELETE", frozenset({"uploadId"})): "multipartUploads.abort",
        ("GET", frozenset()): "objects.get",
        ("HEAD", frozenset()): "objects.get",
        ("PUT", frozenset()): "objects.insert",
        ("DELETE", frozenset()): "objects.delete",
    }
    return kinds.get((request.method, frozenset(has)))


_LISTING = {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after"}


def _conditions(request: Request) -> Conditions:
    return read_conditions(
        request.headers,
        "x-goog-if-generation-match",
        "x-goog-if-generation-not-match",
        "x-goog-if-metageneration-match",
    )


def _versions(thing: ObjectVersion) -> dict[str, str]:
    hashes = f"crc32c={thing.crc32c}" + (f",md5={encoded(thing.md5)}" if thing.md5 is not None else "")
    return {
        "ETag": _quoted(thing.etag),
        "x-goog-generation": str(thing.generation),
        "x-goog-metageneration": str(thing.metageneration),
        "x-goog-hash": hashes,
    }


def _headers(thing: ObjectVersion) -> dict[str, str]:
    return _versions(thing) | {
        "Last-Modified": formatdate(thing.created, usegmt=True),
        "Content-Type": thing.content_type,
        "x-goog-stored-content-length": str(len(thing.data)),
        "Accept-Ranges": "bytes",
    }


def _quoted(etag: str) -> str:
    return f'"{etag}"'


def _stamp(moment: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{whole}.{int(moment % 1 * 1000):03d}Z"


def _xml(text: str, status: int = 200) -> Response:
    body = f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
    return Response(status, body, {"Content-Type": "application/xml; charset=UTF-8"})
