"""Google's discovery documents: matching of requests to methods, and validation of bodies.

The documents come with google-api-python-client. Unlike in plain JSON Schema, a body with an unknown field is invalid,
as in the APIs. The stand-in checks what a document does not specify (required fields, valid combinations).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import jsonschema

_FOLDER = "discovery_cache/documents"
_UPLOAD = re.compile(r"\{(\+?)(\w+)\}")


@dataclass(frozen=True)
class Method:
    """One method of an API."""

    id: str
    """Id without the API's name: `instances.insert`."""
    http: str
    pattern: re.Pattern[str]
    weight: int
    """Length of the path's literal part; of several matching methods the one with the greatest wins."""
    scopes: tuple[str, ...]
    request: str
    """Name of the request body's schema; "": no body."""
    response: str
    queries: frozenset[str]


@dataclass(frozen=True)
class Match:
    """A request's method, and its decoded path parameters."""

    method: Method
    params: Mapping[str, str]


class Discovery:
    """One API's document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._base = "/" + str(document.get("servicePath") or "").strip("/")
        self._methods = sorted(self._read(document, str(document["name"])), key=lambda method: -method.weight)
        self._common = frozenset(document.get("parameters", {}))
        definitions = {name: _schema(value) for name, value in document["schemas"].items()}
        self._definitions = definitions
        self._validators: dict[str, Any] = {}

    def match(self, http: str, path: str) -> Match | None:
        """Return the match of a percent-encoded path; None: the API has no such method."""
        for method in self._methods:
            if method.http == http and (found := method.pattern.fullmatch(path)):
                return Match(method, {name: unquote(value) for name, value in found.groupdict().items()})
        return None

    def methods(self) -> Sequence[Method]:
        return self._methods

    def unknown_queries(self, method: Method, query: Mapping[str, str]) -> list[str]:
        """Return the query parameters that the method does not have."""
        known = method.queries | self._common | {"$alt", "alt", "$.xgafv", "$httpHeaders"}
        return [name for name in query if name not in known]

    def faults(self, schema: str, body: Any) -> list[str]:
        """Return the errors in a body, by field."""
        if schema not in self._validators:
            whole = {"$ref": f"#/$defs/{schema}", "$defs": self._definitions}
            self._validators[schema] = jsonschema.Draft202012Validator(whole)
        return [_say(error) for error in self._validators[schema].iter_errors(body)]

    def _read(self, document: Mapping[str, Any], api: str) -> Iterator[Method]:
        for resource in document.get("resources", {}).values():
            yield from self._read(resource, api)
        for method in document.get("methods", {}).values():
            path = method.get("flatPath") or method["path"]
            text = f"{self._base.rstrip('/')}/{path}"
            yield Method(
                method["id"].removeprefix(f"{api}."),
                method["httpMethod"],
                re.compile(_UPLOAD.sub(lambda found: f"(?P<{found[2]}>{'.+' if found[1] else '[^/]+'})", _quote(text))),
                len(_UPLOAD.sub("", text)),
                tuple(method.get("scopes", ())),
                method.get("request", {}).get("$ref", ""),
                method.get("response", {}).get("$ref", ""),
                frozenset(name for name, one in method.get("parameters", {}).items() if one["location"] == "query"),
            )


@functools.cache
def discovery(api: str, version: str) -> Discovery:
    """Return an API's document, e.g. ("compute", "v1")."""
    name = f"{_FOLDER}/{api}.{version}.json"
    return Discovery(json.loads((files("googleapiclient") / name).read_text()))


def _quote(path: str) -> str:
    """Escape a path for a pattern, except its parameters."""
    return "".join(part if part.startswith("{") else re.escape(part) for part in re.split(r"(\{[^}]*\})", path))


def _schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a discovery schema to JSON Schema."""
    if "$ref" in value:
        return {"$ref": f"#/$defs/{value['$ref']}"}
    kind = value.get("type")
    if kind == "any":
        return {}
    if kind == "object":
        rest = value.get("additionalProperties")
        return {
            "type": "object",
            "properties": {name: _schema(one) for name, one in value.get("properties", {}).items()},
            "additionalProperties": _schema(rest) if rest is not None else False,
        }
    if kind == "array":
        return {"type": "array", "items": _schema(value["items"])}
    return _simple(value)


_INTEGER = r"-?[0-9]+"


def _simple(value: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": value["type"]}
    if "enum" in value:
        made["enum"] = value["enum"]
    if value["type"] == "string" and value.get("format") in ("int64", "uint64"):
        # JSON has no such numbers: they are sent as text, and accepted as either.
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^{_INTEGER}$"}]}
    if value["type"] == "string" and value.get("pattern") and "enum" not in value:
        made["pattern"] = f"^(?:{value['pattern']})$"
    if value["type"] == "number":
        return {"anyOf": [made, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    return made


def _say(error: jsonschema.ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path) or "the body"
    return f"{where}: {error.message[:300]}"
