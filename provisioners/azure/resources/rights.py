"""Roles of machines' identities, and conditions that limit them. Pure functions.

Sources: Azure's documentation, "Azure built-in roles", "Example Azure role assignment conditions for Blob Storage",
"Azure role assignment conditions: format"; the roles' ids are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

READER, WRITER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Ids of the roles for reading, and for writing, blobs."""
SECRETS = "4633458b-17de-408a-b874-0445c86b69e6"
"""Id of the role for reading the values of secrets: assigned on single secrets."""
SWITCH_OFF = "40c5ff49-9181-41f8-ae61-143b0e78555e"
"""Id of the built-in role that allows deallocating a machine, but not creating or changing one. A machine that only
powers itself off is still billed."""
NAMES = {
    READER: "Storage Blob Data Reader",
    WRITER: "Storage Blob Data Contributor",
    SECRETS: "Key Vault Secrets User",
    SWITCH_OFF: "Desktop Virtualization Power On Off Contributor",
}
"""Display names of roles in the portal and in Azure's documentation."""
LEAVING = (
    "Microsoft.Compute/virtualMachineScaleSets/delete/action",
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/delete",
)
"""Permissions of a scale set's machines in its resource group: a machine that is no longer needed deletes itself, which
shrinks the scale set.

They do not allow creating resources or scaling up. Where machines of several scale sets share an identity, as in an
infra stack, each scale set gives it access to its own group, so those machines could delete each other. No built-in
role is this narrow, so stacks define a custom one.
"""
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_WRITES = ("write", "delete", "add/action", "move/action")


def condition(role: str, prefixes: Sequence[str]) -> str | None:
    """Return a condition that limits a role to blobs below these prefixes; None: no limit."""
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
