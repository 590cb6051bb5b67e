"""Partial responses: the `fields` parameter of Google's APIs.

It follows "Partial responses" in the guides of the API client libraries: names separated by commas; `a/b` is b in a;
`a(b,c)` selects several fields of a; `*` matches any. A name that is not in the response's schema is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Mask = dict[str, "Mask"]
"""name -> mask of its fields; {}: all."""
_TOKEN = re.compile(r"[A-Za-z0-9_*]+|[(),/]")


class FieldsError(ValueError):
    """Invalid `fields` parameter."""


def parse(text: str) -> Mask:
    """Parse `fields`; {} selects everything. Raises FieldsError."""
    if not text:
        return {}
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise FieldsError(f"Invalid field selection {text}")
    found, rest = _several(tokens)
    if rest:
        raise FieldsError(f"Invalid field selection {''.join(rest)}")
    return found


def _several(tokens: list[str]) -> tuple[Mask, list[str]]:
    found: Mask = {}
    while tokens:
        name, tokens = tokens[0], tokens[1:]
        if not re.fullmatch(r"[\w*]+", name):
            raise FieldsError(f"Invalid field selection {name}")
        inner = found.setdefault(name, {})
        while tokens[:1] == ["/"]:
            name, tokens = tokens[1] if len(tokens) > 1 else "", tokens[2:]
            inner = inner.setdefault(name, {})
        if tokens[:1] == ["("]:
            more, tokens = _several(tokens[1:])
            inner |= more
            if tokens[:1] != [")"]:
                raise FieldsError("Invalid field selection: a parenthesis is not closed")
            tokens = tokens[1:]
        if tokens[:1] != [","]:
            break
        tokens = tokens[1:]
    return found, tokens


def check(mask: Mask, api: str, schema: str) -> None:
    """Raise FieldsError for a name that is not in the schema (of googleapiclient's discovery document)."""
    schemas = _schemas(api)
    _check(mask, {"$ref": schema}, schemas)


def _check(mask: Mask, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> None:
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    if schema.get("type") == "array":
        _check(mask, schema["items"], schemas)
        return
    known = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for name, inner in mask.items():
        of = known.get(name) or (others if others is not None else None)
        if name != "*" and of is None:
            raise FieldsError(f"Invalid field selection {name}")
        if inner and of is not None:
            _check(inner, of, schemas)


def pruned(value: Any, mask: Mask) -> Any:
    """Return the selected part of the value."""
    if not mask:
        return value
    if isinstance(value, list):
        return [pruned(one, mask) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, one in value.items():
        inner = mask.get(name, mask.get("*"))
        if inner is not None:
            found[name] = pruned(one, inner)
    return found


@cache
def _schemas(api: str) -> Mapping[str, Any]:
    path = files("googleapiclient") / f"discovery_cache/documents/{api}.v1.json"
    schemas: Mapping[str, Any] = json.loads(path.read_text())["schemas"]
    return schemas
