"""Shared parts of all AWS kinds: clients, names, tags, and error codes that mean "not found"."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from botocore.exceptions import ClientError
from botocore.model import Shape

from ...aws.sessions import session
from ..provider import Kind
from ..wire import Props

_T = TypeVar("_T")
_GONE = ("NotFound", "NoSuch")
_SETTINGS = {
    *("region", "skipCredentialsValidation", "skipRegionValidation", "skipMetadataApiCheck", "version"),
    "allowedAccountIds",
}
"""Supported keys of the provider's configuration."""
TIMEOUT_S = 20.0
"""Timeout in seconds for retries while AWS refuses because another resource is still being deleted. (The real provider
waits for minutes.)"""


class Cloud:
    """boto3 sessions and clients for the account that the environment points to."""

    def __init__(self) -> None:
        self.region = os.environ.get("AWS_REGION", "us-east-1")
        self._session = session()
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def configure(self, settings: Props) -> None:
        """Apply the provider's configuration. Raises ValueError for unknown settings or a forbidden account."""
        unknown = sorted(set(settings) - _SETTINGS)
        if unknown:
            raise ValueError(f"the stand-in does not model the provider's {', '.join(unknown)}")
        self.region = str(settings.get("region") or self.region)
        with self._lock:  # the next command may have other credentials
            self._session = session()
            self._clients.clear()
        allowed = json.loads(settings.get("allowedAccountIds") or "[]")
        if allowed and self.account not in allowed:
            raise ValueError(f"AWS account ID not allowed: {self.account}")

    def client(self, service: str, props: Mapping[str, Any] | None = None) -> Any:
        """Return a cached client for the resource's region, or the provider's."""
        region = str((props or {}).get("region") or self.region)
        client: Any = self._session.client
        with self._lock:
            if (service, region) not in self._clients:
                self._clients[service, region] = client(service, region_name=region)
            return self._clients[service, region]

    @property
    def account(self) -> str:
        return str(self.client("sts").get_caller_identity()["Account"])


class AwsKind(Kind[Cloud]):
    """Base of kinds that use one AWS service."""

    service: ClassVar[str] = "ec2"

    def api(self, props: Mapping[str, Any]) -> Any:
        return self.cloud.client(self.service, props)

    def where(self, props: Mapping[str, Any]) -> str:
        """Return the resource's region."""
        return str(props.get("region") or self.cloud.region)

    def arn(self, props: Mapping[str, Any], service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.where(props)}:{self.cloud.account}:{rest}"


def none_if_gone(look: Callable[[], _T]) -> _T | None:
    """Return the result of `look`, or None if the resource does not exist."""
    try:
        return look()
    except ClientError as error:
        if is_gone(error):
            return None
        raise


def is_gone(error: ClientError) -> bool:
    return any(word in code_of(error) for word in _GONE)


def code_of(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def delete_if_exists(delete: Callable[[], Any], *waiting: str) -> None:
    """Delete a resource; one that does not exist is fine. Error codes in `waiting` are retried for TIMEOUT_S
    seconds."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            delete()
        except ClientError as error:
            if is_gone(error):
                return
            if code_of(error) not in waiting or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


# --- tags -------------------------------------------------------------------------------------------------------------


def pairs(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def tags_of(told: list[dict[str, str]] | None) -> dict[str, str]:
    """Return tags as a dict, without AWS's reserved ones."""
    return {one["Key"]: one["Value"] for one in told or [] if not one["Key"].startswith("aws:")}


def specified(kind: str, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the TagSpecifications argument of EC2's create calls."""
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": pairs(tags)}]} if tags else {}


def retag(ec2: Any, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Update an EC2 resource's tags; return the changed outputs."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    if gone := [{"Key": key} for key in before if key not in after]:
        ec2.delete_tags(Resources=[identity], Tags=gone)
    if after and after != before:
        ec2.create_tags(Resources=[identity], Tags=pairs(after))
    return tagged(new)


def tagged(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"tagsAll": dict(inputs.get("tags") or {})}


# --- requests ---------------------------------------------------------------------------------------------------------


def request(shape: Shape, value: Any, renames: Mapping[str, str] | None = None, where: str = "") -> Any:
    """Convert Pulumi's value to botocore's shape: `deviceIndex` to DeviceIndex, "true" to True, tags to pairs.

    `renames` maps Pulumi's names to different API names. Raises ValueError for a field that the API does not have.
    """
    if shape.type_name == "structure":
        return _structure(shape, value, renames or {}, where)
    if shape.type_name == "list":
        element: Shape = shape.member  # type: ignore[attr-defined]
        listed = pairs(value) if isinstance(value, Mapping) else value
        return [request(element, one, renames, f"{where}[]") for one in listed]
    if shape.type_name == "boolean":
        return value == "true" if isinstance(value, str) else bool(value)
    if shape.type_name in ("integer", "long"):
        return int(value)
    return str(value)


def _structure(shape: Shape, value: Mapping[str, Any], renames: Mapping[str, str], where: str) -> dict[str, Any]:
    members: Mapping[str, Shape] = shape.members  # type: ignore[attr-defined]
    names = {name.lower(): name for name in members}
    made = {}
    for key, one in value.items():
        name = names.get(renames.get(key, key).lower())
        if name is None:
            raise ValueError(f"{where}.{key}: the API's {shape.name} has no such field")
        if one is not None:
            made[name] = request(members[name], one, renames, f"{where}.{key}")
    return made


def shape_of(client: Any, name: str) -> Shape:
    found_: Shape = client.meta.service_model.shape_for(name)
    return found_
