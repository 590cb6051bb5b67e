"""Names and ids of a launch's resources: all are in one resource group, named by the launch token.

Source: Azure's documentation, "Naming rules and restrictions for Azure resources".
"""

from __future__ import annotations

import re
import uuid

from ..base import ProvisionError, node_token

PREFIX = "cloudgpu"
SHARED = PREFIX
"""Name of each resource of which a group has only one: identity, network security group, virtual network …"""
SUBNET = "machines"
STARTED = "cloudgpu-started-"
"""Prefix of the keys of a group's tags whose values list nodes that were started once; the first node follows it."""
ACCESS = "cloudgpu-access-"
"""Prefix of a group's tags; a number follows it. The value is a container that the identity may access, see
Container.to_tag()."""
IDENTITY = "cloudgpu-identity"
"""Tag of a group: resource id of its machines' identity, if that is shared by launches."""
_GROUP = re.compile(rf"{PREFIX}-[0-9a-f]{{32}}")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def group_name(token: str) -> str:
    """Return the name of a launch's resource group, unique in the subscription."""
    return f"{PREFIX}-{token}"


def token_of(group: str) -> str | None:
    """Return the launch token in a resource group's name; None: not created by cloudgpu."""
    return group.rpartition("-")[2] if _GROUP.fullmatch(group.lower()) else None


def node_name(node: str) -> str:
    """Return the name of a node's machine, interface and address. Raises ProvisionError if it would be invalid."""
    name = f"{PREFIX}-{node.replace('.', '-').replace('_', '-').lower()}"
    if not _NAME.fullmatch(name):
        message = f"{node} cannot be the name of a machine: {name} is longer than 63 characters, or has others than -"
        raise ProvisionError("invalid", message, scope="cloud")
    return name


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def resource_id(group: str, kind: str, name: str) -> str:
    """Return a resource id. `group`: id from group_id(); `kind`: e.g. `Microsoft.Network/virtualNetworks`."""
    return f"{group}/providers/{kind}/{name}"


def part_of(resource: str, kind: str) -> str:
    """Return the name after `kind` in a resource id, e.g. after `resourceGroups`; "": not found. Case-insensitive."""
    parts = resource.strip("/").split("/")
    at = next((index for index, part in enumerate(parts) if part.lower() == kind.lower()), len(parts))
    return parts[at + 1] if at + 1 < len(parts) else ""


def leaving_role(stack: str, subscription: str) -> str:
    """Return the UUID of the custom role that allows machines to leave their scale sets.

    The infra stack defines the role, launches assign it. The UUID is derived from the stack, so launches need no query.
    """
    return assignment_name("leaving", f"/subscriptions/{subscription}", stack)


def assignment_name(token: str, scope: str, role: str) -> str:
    """Return a UUID for a role assignment, derived from its arguments, so that a retry does not create a second one."""
    return str(uuid.UUID(node_token(token, role, scope.lower())))
