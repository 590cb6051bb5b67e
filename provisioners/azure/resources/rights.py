"""The roles that machines are given, and how they are limited. Pure.

Sources: Azure's documentation, "Azure built-in roles", "Example Azure role assignment conditions for Blob Storage",
"Azure role assignment conditions: format"; the roles' ids are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

READER, WRITER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Ids of the roles that let a machine read its blobs, and write them."""
SWITCH_OFF = "40c5ff49-9181-41f8-ae61-143b0e78555e"
"""Id of the built-in role by which a machine can be deallocated, and neither
made nor changed. A machine that only powers itself off goes on billing."""
NAMES = {
    READER: "Storage Blob Data Reader",
    WRITER: "Storage Blob Data Contributor",
    SWITCH_OFF: "Desktop Virtualization Power On Off Contributor",
}
"""Display names of roles in the portal and in Azure's documentation."""
LEAVING = (
    "Microsoft.Compute/virtualMachineScaleSets/delete/action",
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/delete",
)
"""What machines of a scale set may do, in the resource group that it is in: one that is not needed any more has itself
deleted, and its set be smaller by it. They can make nothing, nor scale the set up. Where the machines of several sets
have one identity, as in an infra stack, each set lets it in to its own group: they could end each other. No built-in
role is so narrow: stacks define one."""
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_WRITES = ("write", "delete", "add/action", "move/action")


def condition(role: str, prefixes: Sequence[str]) -> str | None:
    """Limits a role to blobs whose path begins with one of these; None: it is not limited."""
    if "" in prefixes:
        return None
    path, prefix = f"@Resource[{_BLOBS}:path]", f"@Request[{_BLOBS}:prefix]"
    paths = " OR ".join(f"{path} StringEquals '{one}' OR {path} StringStartsWith '{one}/'" for one in prefixes)
    lists = " OR ".join(f"{prefix} StringStartsWith '{one}/'" for one in prefixes)
    others = "".join(f" AND !(ActionMatches{{'{_BLOBS}/{one}'}})" for one in (_WRITES if role == WRITER else ()))
    reading = f"ActionMatches{{'{_BLOBS}/read'}}"
    return (
        f"((!({reading} AND NOT SubOperationMatches{{'Blob.List'}}){others}) OR ({paths}))"
        f" AND ((!({reading} AND SubOperationMatches{{'Blob.List'}})) OR ({lists}))"
    )
