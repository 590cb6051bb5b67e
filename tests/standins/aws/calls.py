"""Parser of AWS requests: service and region from the signature, action and parameters from body, path and query.

EC2, IAM and STS use the query protocol (a form); SSM, Service Quotas and Pricing JSON with X-Amz-Target; S3 REST.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from ..faults import Call

_SCOPE = re.compile(r"Credential=(?P<key>[^/,]+)/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
_MOST_BODY = 4 << 20  # bytes of a form or a JSON document; S3's bodies are not read here

_OBJECT = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject", "POST": "PostObject"}
_BUCKET = {"GET": "ListObjects", "HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}
# Actions of S3 that a query parameter selects; the first parameter that is present wins.
_SUBRESOURCES = (
    ("partNumber", {"PUT": "UploadPart"}),
    ("uploadId", {"POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload", "GET": "ListParts"}),
    ("uploads", {"POST": "CreateMultipartUpload", "GET": "ListMultipartUploads"}),
    ("delete", {"POST": "DeleteObjects"}),
    ("list-type", {"GET": "ListObjectsV2"}),
    ("location", {"GET": "GetBucketLocation"}),
)


def read_call(environ: dict[str, Any]) -> Call:
    """Parse a WSGI request; its body can still be read afterwards."""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    service, region, caller = (scope["service"], scope["region"], scope["key"]) if scope else ("", "", "")
    if service == "s3" or not scope:
        action, params = _s3(environ)
        return Call(service or "s3", region, action, caller, params)
    body = read_body(environ)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        params = dict(flatten(json.loads(body or b"{}")))
        return Call(service, region, target.rpartition(".")[2], caller, params)
    params = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    action = params.pop("Action", "") or f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '/')}"
    params.pop("Version", None)
    return Call(service, region, action, caller, params)


def read_body(environ: dict[str, Any]) -> bytes:
    """Read the request's body and put it back for the next reader."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > _MOST_BODY:
        raise ValueError(f"a form of {length} bytes")
    body: bytes = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def flatten(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Flatten a JSON document to a form's parameter names: `Filters.1.Field`."""
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[str, Any]] = value.items()
    elif isinstance(value, list):
        pairs = ((str(number), item) for number, item in enumerate(value, 1))
    else:
        yield name, str(value)
        return
    for key, item in pairs:
        yield from flatten(item, f"{name}.{key}" if name else key)


def numbered(params: Mapping[str, str], prefix: str) -> list[str]:
    """Return the values of `InstanceId.1`, `InstanceId.2`, … in order."""
    found = [(int(name[len(prefix) + 1 :]), value) for name, value in params.items() if _is_nth(name, prefix)]
    return [value for _, value in sorted(found)]


def _is_nth(name: str, prefix: str) -> bool:
    return name.startswith(prefix + ".") and name[len(prefix) + 1 :].isdecimal()


def filters(params: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return names and values of `Filter.<n>`."""
    names = {key: value for key, value in params.items() if re.fullmatch(r"Filter\.\d+\.Name", key)}
    return [(name, numbered(params, key.replace(".Name", ".Value"))) for key, name in names.items()]


def tags_for(params: Mapping[str, str], resource: str) -> dict[str, str]:
    """Return the tags of TagSpecification.<n> for this resource type."""
    tags: dict[str, str] = {}
    for name, value in params.items():
        spec = re.fullmatch(r"(TagSpecification\.\d+)\.ResourceType", name)
        if spec and value == resource:
            for number in range(1, 51):
                if (key := params.get(f"{spec[1]}.Tag.{number}.Key")) is not None:
                    tags[key] = params.get(f"{spec[1]}.Tag.{number}.Value", "")
    return tags


def _s3(environ: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    method = environ["REQUEST_METHOD"]
    bucket, _, key = environ.get("PATH_INFO", "/").lstrip("/").partition("/")
    params = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    action = (_OBJECT if key else _BUCKET).get(method, method) if bucket else "ListBuckets"
    for name, actions in _SUBRESOURCES:
        if name in params and method in actions:
            action = actions[method]
            break
    return action, {**params, "Bucket": bucket, "Key": key}
