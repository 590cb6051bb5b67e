"""A parsed request to Azure Resource Manager, the argument of its handlers, and shared checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import catalog
from .arm import RefusedError, Request, Response, Target, answer, key
from .operations import Work
from .tokens import Principal
from .world import World, refs


@dataclass(frozen=True)
class ApiRequest:
    world: World
    request: Request
    target: Target
    caller: Principal

    @property
    def body(self) -> dict[str, Any]:
        return self.request.json()

    @property
    def path(self) -> str:
        return self.target.path

    def found(self) -> dict[str, Any]:
        """Return the requested resource. Raises RefusedError."""
        known = resolve(self.world, self.path)
        if known is None:
            raise not_found(self.path)
        return known

    def begin(self, work: Work, failed: Callable[[], None] = lambda: None) -> dict[str, str]:
        """Start an operation; return the response's headers."""
        name = self.world.operations.begin(work, failed)
        namespace = self.target.namespace or "Microsoft.Resources"
        region = "eastus"
        query = f"api-version={self.request.query['api-version']}"
        base = f"{self.world.url}/subscriptions/{self.target.subscription}/providers/{namespace}/locations/{region}"
        return {
            "Azure-AsyncOperation": f"{base}/operations/{name}?{query}",
            "Location": f"{base}/operationResults/{name}?{query}",
            "Retry-After": str(self.world.retry_s),
        }


def accepted(headers: dict[str, str]) -> Response:
    return Response(202, b"", headers)


def begun(resource: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    """Return the response to a PUT that continues asynchronously."""
    result = answer(resource, status)
    result.headers |= {name: value for name, value in headers.items() if name != "Location"}
    return result


def not_found(path: str) -> RefusedError:
    words = path.strip("/").split("/")
    name = "/".join([words[5], *words[6:]]) if len(words) > 6 else path
    group = words[3] if len(words) > 3 else ""
    text = (
        f"The Resource '{name}' under resource group '{group}' was not found. For more details please go to "
        "https://aka.ms/ARMResourceNotFoundFix"
    )
    return RefusedError("ResourceNotFound", 404, text)


def group_of(world: World, ask: ApiRequest, *, writes: bool = True) -> dict[str, Any]:
    """Return the request's resource group. Raises RefusedError."""
    path = f"/subscriptions/{ask.target.subscription}/resourceGroups/{ask.target.group}"
    found = world.find(path)
    if found is None:
        text = f"Resource group '{ask.target.group}' could not be found."
        raise RefusedError("ResourceGroupNotFound", 404, text)
    if writes and key(path) in world.deleting:
        text = f"The resource group '{ask.target.group}' is in deprovisioning state and cannot perform this operation."
        raise RefusedError("ResourceGroupBeingDeleted", 409, text)
    return found


def check_location(body: dict[str, Any], kind: str) -> str:
    """Check the location; return the region's name. Raises RefusedError."""
    region = catalog.region_name(str(body.get("location", "")))
    if region not in catalog.regions():
        text = (
            f"The provided location '{body.get('location')}' is not available for resource type '{kind}'. List of "
            f"available regions for the resource type is '{','.join(sorted(catalog.regions()))}'."
        )
        raise RefusedError("LocationNotAvailableForResourceType", 400, text)
    return region


def check_tags(body: dict[str, Any]) -> None:
    """Check tags against "Use tags to organize your Azure resources": limits and characters. Raises RefusedError."""
    tags = body.get("tags") or {}
    if len(tags) > 50:
        raise RefusedError("InvalidTags", 400, f"The tag count {len(tags)} exceeds the limit of 50.")
    for name, value in tags.items():
        if len(name) > 512 or len(str(value)) > 256 or not name:
            raise RefusedError("InvalidTagNameLength", 400, f"Tag '{name[:60]}' or its value is too long.")
        if any(letter in "<>%&\\?/" for letter in name):
            text = f"The tag names '{name}' have reserved characters '<,>,%,&,\\,?,/' or control characters."
            raise RefusedError("InvalidTagNameCharacters", 400, text)


def check_references(world: World, body: dict[str, Any], path: str) -> None:
    """Check that all referenced resources exist. Raises RefusedError."""
    for ref in refs(body):
        if not ref.startswith("/subscriptions/"):
            raise RefusedError("LinkedInvalidPropertyId", 400, f"Property id '{ref}' at path '' is invalid.")
        if resolve(world, ref) is None and key(ref) != key(path):
            text = (
                f"Resource {ref} referenced by resource {path} was not found. Please make sure that the referenced "
                "resource exists, and that both resources are in the same region."
            )
            raise RefusedError("InvalidResourceReference", 400, text)


def resolve(world: World, path: str) -> dict[str, Any] | None:
    """Return a resource, or a part of one with an id, such as a subnet or security rule; None: it does not exist."""
    found = world.find(path)
    if found is not None:
        return found
    above, _, _ = path.rstrip("/").rpartition("/")
    owner = world.find(above.rpartition("/")[0])
    if owner is None:
        return None
    parts = owner.get("properties", {}).get(above.rpartition("/")[2], [])
    if not isinstance(parts, list):
        return None
    return next((one for one in parts if key(str(one.get("id", ""))) == key(path)), None)
