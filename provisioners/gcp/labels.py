"""Conversion of names and tags to the names and labels that Compute Engine allows.

A label's value may contain only lower-case letters, digits, `_` and `-`, at most 63. Other characters of a tag are
escaped as `__` and two hexadecimal digits for each byte of UTF-8 (`worker-0.1` becomes `worker-0__2e1`); `__` itself is
escaped, too, so the encoding is reversible. Firewall rules have no labels: their tags are JSON in the description.
Source: Compute Engine's documentation, "Organize resources using labels", "Naming resources" (RFC 1035).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..base import ProvisionError
from ..shared import tags

MAX_VALUE = 63
PREFIX = "cloudgpu"
_TOKEN_CHARS = 16
"""Number of the launch token's characters in an instance's name: 64 bits."""
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TO_ESCAPE = re.compile(r"__|[^a-z0-9_-]")
_ESCAPED = re.compile(r"(?:__[0-9a-f]{2})+")


def encode(value: str) -> str:
    """Encode a tag as a label's value. Raises ProvisionError if it is too long."""
    label = _TO_ESCAPE.sub(lambda found: "".join(f"__{byte:02x}" for byte in found[0].encode()), value)
    if len(label) > MAX_VALUE:
        message = f"{value!r} does not fit into a label: {label} has more than {MAX_VALUE} characters"
        raise ProvisionError("invalid", message, scope="cloud")
    return label


def decode(label: str) -> str:
    """Decode a label's value to the tag; values that encode() did not write are returned unchanged."""

    def letters(found: re.Match[str]) -> str:
        return bytes.fromhex(found[0].replace("__", "")).decode(errors="replace")

    return _ESCAPED.sub(letters, label)


def to_labels(values: Mapping[str, str]) -> dict[str, str]:
    return {key: encode(value) for key, value in values.items()}


def from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Decode labels to tags; labels without cloudgpu's prefix are left out."""
    return {key: decode(value) for key, value in labels.items() if key.startswith(f"{PREFIX}-")}


def with_label(key: str, value: str) -> str:
    """Return a filter expression of the list API for resources with this tag."""
    return f'labels.{key} = "{encode(value)}"'


def to_description(values: Mapping[str, str]) -> str:
    """Encode tags as a description, for resources without labels."""
    return json.dumps(values, sort_keys=True)


def from_description(text: str) -> dict[str, str]:
    """Return the tags in a description; {} if cloudgpu did not write it."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict) or tags.TOKEN not in found:
        return {}
    return {str(key): str(value) for key, value in found.items()}


def launch_name(token: str) -> str:
    """Return the name of a launch's shared resources, such as its firewall rule and its machines' network tag."""
    return f"{PREFIX}-{token}"


def instance_name(token: str, node: str) -> str:
    """Return the name of a node's machine, derived from token and node. Raises ProvisionError if it would be
    invalid."""
    name = f"{instance_prefix(token)}{node.replace('.', '-').replace('_', '-')}"
    if not _NAME.fullmatch(name):
        message = (
            f"{node} cannot be the name of a machine: {name} is longer than 63 characters, or has other than a-z0-9-"
        )
        raise ProvisionError("invalid", message, scope="cloud")
    return name


def instance_prefix(token: str) -> str:
    """Return the prefix of the names of a launch's machines."""
    return f"{PREFIX}-{token[:_TOKEN_CHARS]}-"


def region_of(zone: str) -> str:
    """Return a zone's region: `us-central1` for `us-central1-a`."""
    return zone.rpartition("-")[0]
