"""The JSON API: objects as resources; simple, multipart and resumable uploads.

It follows cloud.google.com/storage/docs/json_api: "Objects", "Resumable uploads", "HTTP status and error codes for
JSON"; names, parameters and methods are those of Google's discovery document.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ..faults import Call
from ..gcp.discovery import discovery
from ..gcp.service import RefusedError, Request, Response, answer_json, error_legacy
from .control import verbs
from .shared import StorageService, number, read_conditions, read_hashes, served
from .store import Conditions, ObjectVersion, Upload, encoded

QUANTUM = 256 << 10
"""Bytes; every chunk of a resumable upload except the last must be a multiple of it."""
PAGE = 1_000
_ROUTE = re.compile(r"/(?P<kind>(?:resumable/)?upload/|download/)?storage/v1/b(?:/(?P<bucket>[^/]+)(?P<rest>/.*)?)?")
_REASONS = {
    "NoSuchKey": "notFound",
    "NoSuchBucket": "notFound",
    "NoSuchUpload": "notFound",
    "AccessDenied": "forbidden",
    "PreconditionFailed": "conditionNotMet",
    "InvalidRange": "requestedRangeNotSatisfiable",
    "SlowDown": "rateLimitExceeded",
    "BadDigest": "invalid",
    "InvalidArgument": "invalid",
    "InvalidObjectName": "invalid",
}
"""Code of the XML API -> reason in the JSON API."""


class JsonApi(StorageService):
    """`/storage/v1/…`, and the same with /upload and /download."""

    def call(self, request: Request) -> Call | None:
        found = _ROUTE.fullmatch(request.path)
        if found is None:
            return None
        kind, bucket, rest = found["kind"] or "", unquote(found["bucket"] or ""), found["rest"] or ""
        if kind.endswith("upload/"):
            session = self.store.uploads.get(request.query.get("upload_id", ""))
            name = session.name if session else request.query.get("name") or _name_in_body(request)
            action = "objects.resume" if "upload_id" in request.query else "objects.insert"
            return self.made_call(request, action, bucket, name)
        route, source = _route(request.method, bucket, rest), ""
        if route.action is None:
            return None
        name = route.name
        if route.target is not None:
            source = f"projects/_/buckets/{bucket}/objects/{name}"
            bucket, name = route.target
        return self.made_call(request, route.action, bucket, name, source=source)

    def answer(self, request: Request, call: Call) -> Response:
        does: dict[str, Callable[[Request, Call], Response]] = {
            "objects.get": self._get,
            "objects.insert": self._insert,
            "objects.resume": self._resume,
            "objects.delete": self._delete,
            "objects.list": self._list,
            "objects.patch": self._patch,
            "objects.rewrite": self._rewrite,
            "objects.copy": self._rewrite,
            "objects.compose": self._compose,
            "buckets.get": self._bucket,
            "buckets.insert": self._make_bucket,
            "buckets.list": self._buckets,
            "buckets.patch": self._patch_bucket,
            "buckets.delete": self._delete_bucket,
            "buckets.getIamPolicy": self._policy,
            "buckets.setIamPolicy": self._set_policy,
            "buckets.testIamPermissions": self._held,
        }
        return does[call.action](request, call)

    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        return {**verbs(self.store), "bucket": self._bucket_resource}

    def error(self, code: str, status: int, message: str) -> Response:
        return error_legacy(_REASONS.get(code, code), status, message)

    def forbidden(self, permission: str, resource: str) -> Response:
        text = f"The caller does not have {permission} access to {resource} (or it may not exist)."
        return self.error("forbidden", 403, text)

    # -- objects

    def _get(self, request: Request, call: Call) -> Response:
        thing = self.store.get(call.params["bucket"], call.params["name"], request.caller, _conditions(request))
        wanted = number(request.query.get("generation"))
        if wanted is not None and wanted != thing.generation:
            raise RefusedError("NoSuchKey", 404, f"No such object: {thing.bucket}/{thing.name}#{wanted}")
        if request.query.get("alt") != "media":
            return answer_json(resource(thing))
        headers = {
            "Content-Type": thing.content_type,
            "X-Goog-Generation": str(thing.generation),
            "X-Goog-Metageneration": str(thing.metageneration),
            "X-Goog-Hash": ",".join(f"{kind}={value}" for kind, value in _hashes(thing).items()),
            "X-Goog-Stored-Content-Length": str(len(thing.data)),
        }
        return served(thing, request.headers.get("range"), headers)

    def _delete(self, request: Request, call: Call) -> Response:
        self.store.delete(call.params["bucket"], call.params["name"], request.caller, _conditions(request))
        return Response(204)

    def _list(self, request: Request, call: Call) -> Response:
        query = request.query
        page = self.store.listed(
            call.params["bucket"],
            query.get("prefix", ""),
            query.get("delimiter", ""),
            query.get("pageToken", ""),
            min(number(query.get("maxResults")) or PAGE, PAGE),
            first=query.get("startOffset", ""),
        )
        result: dict[str, Any] = {"kind": "storage#objects"}
        if page.things:
            result["items"] = [resource(thing) for thing in page.things]
        if page.folders:
            result["prefixes"] = list(page.folders)
        if page.after:
            result["nextPageToken"] = page.after
        return answer_json(result)

    def _patch(self, request: Request, call: Call) -> Response:
        body = request.json()
        with self.store.lock:
            found = self.store.get(call.params["bucket"], call.params["name"], request.caller, _conditions(request))
            changed = {**found.metadata, **(body.get("metadata") or {})}
            kept = {key: str(value) for key, value in changed.items() if value is not None}
            return answer_json(resource(self.store.patch(found, kept, body.get("contentType", found.content_type))))

    def _rewrite(self, request: Request, call: Call) -> Response:
        """Rewrite an object, or copy it, in one call."""
        bucket, name = call.params["source"].removeprefix("projects/_/buckets/").split("/objects/", 1)
        with self.store.lock:
            found = self.store.get(bucket, name, request.caller)
            made = self.store.put(
                call.params["bucket"],
                call.params["name"],
                found.data,
                _conditions(request),
                content_type=found.content_type,
                metadata=found.metadata,
                parts=found.parts,
            )
        if call.action == "objects.copy":
            return answer_json(resource(made))
        size = str(len(made.data))
        result = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return answer_json(result | {"resource": resource(made)})

    def _compose(self, request: Request, call: Call) -> Response:
        bucket, sources = call.params["bucket"], request.json()["sourceObjects"]
        if not 1 <= len(sources) <= 32:
            raise RefusedError("InvalidArgument", 400, "The number of source components must be from 1 to 32.")
        with self.store.lock:
            data = b"".join(self.store.get(bucket, one["name"], request.caller).data for one in sources)
            made = self.store.put(bucket, call.params["name"], data, _conditions(request), parts=len(sources))
        return answer_json(resource(made))

    # -- uploads

    def _insert(self, request: Request, call: Call) -> Response:
        """Store an object by uploadType media or multipart, or begin a resumable session."""
        bucket, name, how = call.params["bucket"], call.params["name"], request.query.get("uploadType")
        kind, data = request.headers.get("content-type", ""), request.body
        result: dict[str, Any] = {}
        if how == "multipart":
            result, kind, data = _related(request)
        elif how == "resumable":
            return self._begin(request, bucket, name)
        elif how != "media":
            raise RefusedError("badRequest", 400, f"Upload type {how} is not supported.")
        made = self.store.put(
            bucket,
            name,
            data,
            _conditions(request),
            content_type=result.get("contentType") or kind or "application/octet-stream",
            metadata=result.get("metadata"),
            hashes={**_told_hashes(result), **read_hashes(request.headers.get("x-goog-hash", ""))},
        )
        return answer_json(resource(made))

    def _begin(self, request: Request, bucket: str, name: str) -> Response:
        record = request.json()
        kind = record.get("contentType") or request.headers.get("x-upload-content-type") or "application/octet-stream"
        session = Upload(bucket, name, kind, _conditions(request), record.get("metadata") or {}, _told_hashes(record))
        identity = self.store.begin(session)
        where = f"{self.project.url}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={identity}"
        return Response(200, b"", {"Location": where, "X-GUploader-UploadID": identity})

    def _resume(self, request: Request, call: Call) -> Response:
        """Receive a chunk of a session, or report the received length (`bytes */N`)."""
        identity = request.query["upload_id"]
        if request.method == "DELETE":
            self.store.uploads.pop(identity, None)
            return Response(499)
        with self.store.lock:
            session = self.store.upload(identity)
            if session.done is not None:
                return answer_json(resource(session.done))
            start, total = _span(request.headers.get("content-range"), len(request.body))
            if start is not None:
                self._take(session, start, request.body, total)
            if total is None or len(session.received) < total:
                there = len(session.received)
                return Response(308, b"", {"Range": f"bytes=0-{there - 1}"} if there else {})
            hashes = {**session.hashes, **read_hashes(request.headers.get("x-goog-hash", ""))}
            session.done = self.store.put(
                session.bucket,
                session.name,
                bytes(session.received),
                session.conditions,
                content_type=session.content_type,
                metadata=session.metadata,
                hashes=hashes,
            )
            return answer_json(resource(session.done))

    def _take(self, session: Upload, start: int, data: bytes, total: int | None) -> None:
        """Append a chunk, skipping bytes already received; refuse a gap."""
        if start > len(session.received):
            raise RefusedError("invalid", 400, f"Bytes from {len(session.received)} are expected, not from {start}.")
        is_last = total is not None and start + len(data) == total
        if not is_last and len(data) % QUANTUM:
            raise RefusedError("invalid", 400, "Chunks must be a multiple of 256 KiB, but for the last.")
        session.received += data[len(session.received) - start :]

    # -- buckets

    def _bucket(self, _request: Request, call: Call) -> Response:
        return answer_json(self._bucket_resource(call.params["bucket"]))

    def _make_bucket(self, request: Request, _call: Call) -> Response:
        body = _checked(request.json(), "Bucket")
        name = str(body.pop("name"))
        self.store.make_bucket(name, str(body.pop("location", "US")))
        self.store.settings[name] = body
        return answer_json(self._bucket_resource(name))

    def _patch_bucket(self, request: Request, call: Call) -> Response:
        """Change a bucket; a null value removes the field."""
        body, name = _checked(_without_nulls(request.json()), "Bucket"), call.params["bucket"]
        self.store.bucket(name)
        known = self.store.settings.setdefault(name, {})
        known.update(body)
        for key in [key for key, value in request.json().items() if value is None]:
            known.pop(key, None)
        return answer_json(self._bucket_resource(name))

    def _delete_bucket(self, _request: Request, call: Call) -> Response:
        self.store.delete_bucket(call.params["bucket"])
        return Response(204)

    def _policy(self, request: Request, call: Call) -> Response:
        """Return a bucket's policy; conditional bindings are omitted for clients of older policy versions."""
        self.store.bucket(call.params["bucket"])
        found = self.store.policies.get(call.params["bucket"])
        if int(request.query.get("optionsRequestedPolicyVersion", 1)) < 3:
            found = {**found, "version": 1, "bindings": [one for one in found["bindings"] if "condition" not in one]}
        return answer_json({"kind": "storage#policy", **found})

    def _set_policy(self, request: Request, call: Call) -> Response:
        self.store.bucket(call.params["bucket"])
        body = _checked(request.json(), "Policy")
        return answer_json({"kind": "storage#policy", **self.store.policies.put(call.params["bucket"], body)})

    def _held(self, request: Request, call: Call) -> Response:
        """Return those of the given permissions that the caller has; none at all leaves out the field."""
        self.store.bucket(call.params["bucket"])
        asked = [value for name, value in request.pairs if name == "permissions"]
        held = self.project.app.held(call.caller, asked, f"projects/_/buckets/{call.params['bucket']}")
        return answer_json({"kind": "storage#testIamPermissionsResponse", **({"permissions": held} if held else {})})

    def _buckets(self, _request: Request, _call: Call) -> Response:
        with self.store.lock:
            items = [self._bucket_resource(name) for name in sorted(self.store.buckets)]
        return answer_json({"kind": "storage#buckets", "items": items})

    def _bucket_resource(self, name: str) -> dict[str, Any]:
        self.store.bucket(name)
        return {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "projectNumber": self.project.number,
            "location": self.store.locations[name].upper(),
            "storageClass": "STANDARD",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
            **self.store.settings.get(name, {}),
        }


def resource(thing: ObjectVersion) -> dict[str, Any]:
    """Return the API's representation of an object."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(thing.created)) + f".{int(thing.created % 1 * 1000):03d}Z"
    result: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{thing.bucket}/{thing.name}/{thing.generation}",
        "name": thing.name,
        "bucket": thing.bucket,
        "generation": str(thing.generation),
        "metageneration": str(thing.metageneration),
        "contentType": thing.content_type,
        "size": str(len(thing.data)),
        "etag": encoded(f"{thing.generation}/{thing.metageneration}".encode()),
        "timeCreated": stamp,
        "updated": stamp,
        "storageClass": "STANDARD",
        "crc32c": thing.crc32c,
    }
    if thing.metadata:
        result["metadata"] = dict(thing.metadata)
    if thing.parts:
        result["componentCount"] = thing.parts
    return result if thing.md5 is None else result | {"md5Hash": encoded(thing.md5)}


class _Route(NamedTuple):
    """Action and resources of a path below `/b`."""

    action: str | None
    """Method of the API; None: unknown."""
    name: str = ""
    """Object name, "" for the bucket; for a copy, the source."""
    target: tuple[str, str] | None = None
    """Destination bucket and object of a copy."""


_POLICY = {
    ("GET", "/iam"): "buckets.getIamPolicy",
    ("PUT", "/iam"): "buckets.setIamPolicy",
    ("GET", "/iam/testPermissions"): "buckets.testIamPermissions",
}


def _route(method: str, bucket: str, rest: str) -> _Route:
    found = re.fullmatch(r"/o(?:/([^/]+)(?:/(rewriteTo|copyTo|compose)(?:/b/([^/]+)/o/([^/]+))?)?)?", rest)
    if not rest:
        own = {"GET": "buckets.get", "PATCH": "buckets.patch", "DELETE": "buckets.delete"}
        return _Route((own if bucket else {"GET": "buckets.list", "POST": "buckets.insert"}).get(method))
    if rest.startswith("/iam"):
        return _Route(_POLICY.get((method, rest)))
    if found is None or not found[1]:
        return _Route({"GET": "objects.list"}.get(method) if found else None)
    name, verb = unquote(found[1]), found[2]
    if verb == "compose":
        return _Route("objects.compose" if method == "POST" else None, name)
    if verb and found[3]:
        action = {"rewriteTo": "objects.rewrite", "copyTo": "objects.copy"}[verb]
        return _Route(action, name, (unquote(found[3]), unquote(found[4])))
    return _Route({"GET": "objects.get", "DELETE": "objects.delete", "PATCH": "objects.patch"}.get(method), name)


def _checked(body: dict[str, Any], schema: str) -> dict[str, Any]:
    """Check a body against the discovery document. Raises RefusedError for unknown fields."""
    if faults := discovery("storage", "v1").faults(schema, body):
        raise RefusedError("invalid", 400, f"Invalid JSON payload received. {'; '.join(faults)}")
    return body


def _without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _conditions(request: Request) -> Conditions:
    return read_conditions(request.query, "ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch")


def _hashes(thing: ObjectVersion) -> dict[str, str]:
    return {"crc32c": thing.crc32c} | ({"md5": encoded(thing.md5)} if thing.md5 is not None else {})


def _told_hashes(told: dict[str, Any]) -> dict[str, str]:
    """Return the content's hashes in an object's resource."""
    return {kind: told[key] for kind, key in (("md5", "md5Hash"), ("crc32c", "crc32c")) if told.get(key)}


def _related(request: Request) -> tuple[dict[str, Any], str, bytes]:
    """Parse multipart/related: the resource, then content type and content. Raises RefusedError."""
    found = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    marks = [mark.start() for mark in re.finditer(re.escape(f"--{found[1]}".encode()), request.body)] if found else []
    if found is None or len(marks) < 3:
        raise RefusedError("badContent", 400, "Malformed multipart body.")
    size = len(found[1]) + 2
    result, content = request.body[marks[0] + size : marks[1]], request.body[marks[1] + size : marks[-1]]
    head, _, data = content.partition(b"\r\n\r\n")
    kind = re.search(rb"(?i)content-type:\s*([^\r\n]+)", head)
    return json.loads(result.partition(b"\r\n\r\n")[2]), kind[1].decode() if kind else "", data.removesuffix(b"\r\n")


def _name_in_body(request: Request) -> str:
    """Return the object's name from the body, for an upload whose URL does not have it."""
    found = re.search(rb'"name":\s*("(?:[^"\\]|\\.)*")', request.body[:65_536])
    return str(json.loads(found[1])) if found else ""


def _span(header: str | None, length: int) -> tuple[int | None, int | None]:
    """Return the chunk's offset (None: no chunk) and the total size (None: not known yet). Raises RefusedError."""
    if header is None:
        return 0, length
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", header)
    if found is None or (found[1] and int(found[2]) - int(found[1]) + 1 != length):
        raise RefusedError("invalid", 400, f"Content-Range {header} does not fit a body of {length} bytes.")
    return (int(found[1]) if found[1] else None), (None if found[3] == "*" else int(found[3]))
