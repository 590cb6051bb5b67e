"""Names and labels: how ours fit into what Compute Engine allows.

A label's value holds lower-case letters, digits, `_` and `-` only, 63 at most. What else a tag has is written as `__`
and two hexadecimal digits for each byte of UTF-8 (`worker-0.1` is `worker-0__2e1`), and `__` itself likewise, so
that it can be read again. Firewall rules have no labels: their tags are JSON in the description.
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
"""Of the launch's token, in an instance's name: 64 bits."""
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TO_ESCAPE = re.compile(r"__|[^a-z0-9_-]")
_ESCAPED = re.compile(r"(?:__[0-9a-f]{2})+")


def encode(value: str) -> str:
    """A tag as a label's value. Raises ProvisionError if it is too long."""
    label = _TO_ESCAPE.sub(lambda found: "".join(f"__{byte:02x}" for byte in found[0].encode()), value)
    if len(label) > MAX_VALUE:
        message = f"{value!r} does not fit into a label: {label} has more than {MAX_VALUE} characters"
        raise ProvisionError("invalid", message, scope="cloud")
    return label


def decode(label: str) -> str:
    """The tag; what somebody else wrote there is taken as it is."""

    def letters(found: re.Match[str]) -> str:
        return bytes.fromhex(found[0].replace("__", "")).decode(errors="replace")

    return _ESCAPED.sub(letters, label)


def to_labels(values: Mapping[str, str]) -> dict[str, str]:
    return {key: encode(value) for key, value in values.items()}


def from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Tags; labels that are not ours are left out."""
    return {key: decode(value) for key, value in labels.items() if key.startswith(f"{PREFIX}-")}


def with_label(key: str, value: str) -> str:
    """The filter of a list for what has a tag."""
    return f'labels.{key} = "{encode(value)}"'


def to_description(values: Mapping[str, str]) -> str:
    """For what has no labels."""
    return json.dumps(values, sort_keys=True)


def from_description(text: str) -> dict[str, str]:
    """Tags; {} if the description is not ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict) or tags.TOKEN not in found:
        return {}
    return {str(key): str(value) for key, value in found.items()}


def launch_name(token: str) -> str:
    """Of what belongs to all of a launch: its firewall rule, its machines' network tag."""
    return f"{PREFIX}-{token}"


def instance_name(token: str, node: str) -> str:
    """Of a node's machine: the same for the same launch and node. Raises ProvisionError if there can be none."""
    name = f"{instance_prefix(token)}{node.replace('.', '-').replace('_', '-')}"
    if not _NAME.fullmatch(name):
        message = (
            f"{node} cannot be the name of a machine: {name} is longer than 63 characters, or has other than a-z0-9-"
        )
        raise ProvisionError("invalid", message, scope="cloud")
    return name


def instance_prefix(token: str) -> str:
    """What the names of all machines of a launch begin with."""
    return f"{PREFIX}-{token[:_TOKEN_CHARS]}-"


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]
