"""Azure Resource Manager's requests and responses, and parsing of paths.

It follows the "Resource Provider Contract" (github.com/Azure/azure-resource-manager-rpc): ids are case-insensitive;
errors are `{"error": {"code": …, "message": …}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote


class RefusedError(Exception):
    """The service refuses the request."""

    def __init__(self, code: str, status: int, message: str, *, target: str = "") -> None:
        super().__init__(message)
        self.code, self.status, self.message, self.target = code, status, message, target


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    """Decoded, without the query."""
    query: Mapping[str, str]
    """Query parameters by lower-case name."""
    body: bytes

    def json(self) -> dict[str, Any]:
        """Parse the body; an empty one is {}. Raises RefusedError."""
        try:
            found = json.loads(self.body or b"{}")
        except ValueError as error:
            text = f"The request content was invalid and could not be deserialized: '{error}'."
            raise RefusedError("InvalidRequestContent", 400, text) from error
        if not isinstance(found, dict):
            raise RefusedError("InvalidRequestContent", 400, "The request content is no object.")
        return found


@dataclass
class Response:
    """HTTP response. The app adds Content-Length."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    result = {name.replace("_", "-"): one for name, one in headers.items()}
    return Response(status, json.dumps(value).encode(), {"Content-Type": "application/json; charset=utf-8", **result})


def error(code: str, status: int, message: str, target: str = "") -> Response:
    result = {"code": code, "message": message, **({"target": target} if target else {})}
    return answer({"error": result}, status)


@dataclass(frozen=True)
class Target:
    """Parsed path: alternating `types` and `names` after the last `/providers/`. One type more than names: a
    collection, or an action on a resource."""

    subscription: str = ""
    group: str = ""
    scope: str = ""
    """Scope; for an extension resource (a role assignment) the path before its `/providers/`."""
    namespace: str = ""
    types: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """Return `Microsoft.Compute/virtualMachines`, also for an action on one."""
        whole = self.types if len(self.types) == len(self.names) else self.types[:-1] or self.types
        return "/".join([self.namespace, *whole])

    @property
    def path(self) -> str:
        """Return the path of the resource, for an action of its resource."""
        parts = [self.scope, "providers", self.namespace] if self.namespace else [self.scope]
        for kind, name in zip(self.types, self.names, strict=False):
            parts += [kind, name]
        return "/".join(parts)

    @property
    def verb(self) -> str:
        """Return the last type if it has no name: the collection or action."""
        return self.types[-1] if len(self.types) > len(self.names) else ""


def parse(path: str) -> Target:
    """Parse a path. Raises RefusedError."""
    words = [unquote(word) for word in path.strip("/").split("/")]
    lower = [word.lower() for word in words]
    if lower[0] != "subscriptions" or len(words) < 2:
        raise RefusedError("InvalidResourcePath", 404, f"{path} is no path of the stand-in")
    group = words[3] if len(words) > 3 and lower[2] == "resourcegroups" else ""
    providers = [number for number, word in enumerate(lower) if word == "providers"]
    if not providers:
        return Target(
            words[1], group, "/" + "/".join(words[: 4 if group else 2]), "", words[4:] if group else words[2:]
        )
    at = providers[-1]
    rest = words[at + 1 :]
    return Target(words[1], group, "/" + "/".join(words[:at]), rest[0] if rest else "", rest[1::2], rest[2::2])


def key(path: str) -> str:
    """Return the key under which a resource is stored."""
    return path.rstrip("/").lower()


def last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
