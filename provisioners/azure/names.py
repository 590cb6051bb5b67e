"""Names and ids of what a launch makes: all of it in one resource group, named by the launch's token.

Source: Azure's documentation, "Naming rules and restrictions for Azure resources".
"""

from __future__ import annotations

import re
import uuid

from ..base import ProvisionError, node_token

PREFIX = "cloudgpu"
SHARED = PREFIX
"""Of what a group has one of: its identity, network security group, virtual network …"""
SUBNET = "machines"
STARTED = "cloudgpu-started-"
"""Tags of a group, followed by a node: that node, and those in the value, were started once."""
ACCESS = "cloudgpu-access-"
"""Tags of a group, followed by a number: a container to which its identity was let in, as Container.to_tag()."""
IDENTITY = "cloudgpu-identity"
"""Tag of a group: resource id of the identity of its machines, where that is not the launch's own."""
_GROUP = re.compile(rf"{PREFIX}-[0-9a-f]{{32}}")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def group_name(token: str) -> str:
    """Of a launch's resource group: unique in the subscription."""
    return f"{PREFIX}-{token}"


def token_of(group: str) -> str | None:
    """Of the launch that a resource group is of; None: it is none of ours."""
    return group.rpartition("-")[2] if _GROUP.fullmatch(group.lower()) else None


def node_name(node: str) -> str:
    """Of a node's machine, interface and address. Raises ProvisionError if there can be none."""
    name = f"{PREFIX}-{node.replace('.', '-').replace('_', '-').lower()}"
    if not _NAME.fullmatch(name):
        message = f"{node} cannot be the name of a machine: {name} is longer than 63 characters, or has others than -"
        raise ProvisionError("invalid", message, scope="cloud")
    return name


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def resource_id(group: str, kind: str, name: str) -> str:
    """`group`: as group_id() says it; `kind`: e.g. `Microsoft.Network/virtualNetworks`."""
    return f"{group}/providers/{kind}/{name}"


def part_of(resource: str, kind: str) -> str:
    """The name after `kind` in a resource id, e.g. after `resourceGroups`; "": there is none. Ids ignore case."""
    parts = resource.strip("/").split("/")
    at = next((index for index, part in enumerate(parts) if part.lower() == kind.lower()), len(parts))
    return parts[at + 1] if at + 1 < len(parts) else ""


def leaving_role(stack: str, subscription: str) -> str:
    """UUID of the role by which machines of launches leave their scale sets: the infra stack defines it, and launches
    give it. The same for the same stack, so that whoever launches need not look for it."""
    return assignment_name("leaving", f"/subscriptions/{subscription}", stack)


def assignment_name(token: str, scope: str, role: str) -> str:
    """A UUID for a role assignment: the same for the same launch, so that a repeated call makes no second one."""
    return str(uuid.UUID(node_token(token, role, scope.lower())))
