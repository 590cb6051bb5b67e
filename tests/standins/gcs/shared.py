"""Shared parts of the XML and JSON APIs."""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Mapping

from ..faults import Call
from ..gcp.project import Project
from ..gcp.service import ANY_SCOPE, RefusedError, Request, Response, Service
from .store import NAME, Conditions, ObjectVersion, Store

_SCOPE = "https://www.googleapis.com/auth/devstorage"
_READS = ("objects.get", "objects.list", "buckets.get", "buckets.list")
_stores: weakref.WeakKeyDictionary[Project, Store] = weakref.WeakKeyDictionary()


def store_of(project: Project) -> Store:
    """Return the project's store, which both of its services use."""
    return _stores.setdefault(project, Store())


class StorageService(Service):
    """Base of both APIs."""

    name = NAME

    def __init__(self, project: Project) -> None:
        self.project, self.store = project, store_of(project)

    def scopes(self, call: Call) -> Collection[str]:
        kinds = ["read_write", "full_control", *(["read_only"] if call.action in _READS else [])]
        return (ANY_SCOPE, *(f"{_SCOPE}.{kind}" for kind in kinds))

    def made_call(self, request: Request, action: str, bucket: str, name: str = "", **params: str) -> Call:
        """Return a Call with the resource's IAM name and whether the object exists."""
        resource = f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if name else "")
        there = "true" if name and self.store.find(bucket, name) else "false"
        known = {"bucket": bucket, "name": name, "resource": resource, "exists": there}
        known["bucketResource"] = f"projects/_/buckets/{bucket}"
        return Call(NAME, "", action, request.caller, {**request.query, **known, **params})

    def allows_anonymous(self, call: Call) -> bool:
        """Allow calls without a login to public buckets, and to buckets that do not exist (to report that)."""
        bucket = call.params["bucket"]
        return bucket in self.store.public or (bucket != "" and bucket not in self.store.buckets)

    def reset(self) -> None:
        self.store.clear()


def number(text: str | None) -> int | None:
    """Parse a number in an optional header or parameter. Raises RefusedError."""
    if text is None or text == "":
        return None
    if not text.isdecimal():
        raise RefusedError("InvalidArgument", 400, f"Invalid argument: {text} is no whole number.")
    return int(text)


def read_conditions(told: Mapping[str, str], generation: str, not_generation: str, metageneration: str) -> Conditions:
    """Read preconditions by an API's names for them."""
    return Conditions(number(told.get(generation)), number(told.get(not_generation)), number(told.get(metageneration)))


def read_hashes(header: str) -> dict[str, str]:
    """Parse `x-goog-hash: crc32c=AAAAAA==,md5=…`."""
    return dict(part.strip().partition("=")[::2] for part in header.split(",") if "=" in part)


def served(thing: ObjectVersion, span: str | None, headers: dict[str, str]) -> Response:
    """Return the content, or the part named by `Range`. Raises RefusedError."""
    size = len(thing.data)
    if not span:
        return Response(200, thing.data, headers | {"Content-Length": str(size)})
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", span)
    if found is None or not (found[1] or found[2]):
        return Response(200, thing.data, headers | {"Content-Length": str(size)})
    start = int(found[1]) if found[1] else max(0, size - int(found[2]))
    end = min(int(found[2]) + 1, size) if found[1] and found[2] else size
    if start >= size or end <= start:
        raise RefusedError("InvalidRange", 416, "The requested range cannot be satisfied.")
    headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
    return Response(206, thing.data[start:end], headers)
