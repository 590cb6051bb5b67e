"""A parsed request to Compute Engine, the argument of its methods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..gcp.service import RefusedError
from .world import World

_LINK = re.compile(r"(?:https?://[^/]+/compute/[^/]+/|/)?(?P<path>.+)")


@dataclass(frozen=True)
class ApiRequest:
    """One request; `params` are the decoded path parameters: `project`, `zone`, `instance` …"""

    world: World
    method: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    caller: str

    @property
    def scope(self) -> str:
        if "zone" in self.params:
            return f"zones/{self.params['zone']}"
        return f"regions/{self.params['region']}" if "region" in self.params else "global"

    @property
    def collection(self) -> str:
        return self.method.partition(".")[0]


def last(link: str) -> str:
    """Return the name at the end of a full or partial URL."""
    return link.rpartition("/")[2]


def path_of(link: str) -> str:
    """Return `projects/p/…` of a full URL; a partial one is returned as it is."""
    found = _LINK.fullmatch(link)
    return found["path"] if found else link


def not_found(path: str) -> RefusedError:
    return RefusedError("notFound", 404, f"The resource '{path}' was not found")


def invalid(field: str, value: object, why: str) -> RefusedError:
    return RefusedError("invalid", 400, f"Invalid value for field '{field}': '{value}'. {why}")


def required(field: str) -> RefusedError:
    return RefusedError("required", 400, f"Required field '{field}' not specified")
