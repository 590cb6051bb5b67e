"""Naming rules for a Blob Storage container, its storage account and its resource group.

https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules, Microsoft.Storage
"""

from __future__ import annotations

import re

from ..names import Rule

RULE = Rule(
    re.compile(r"[\w.()-]{0,89}[\w()-]/[a-z0-9]{3,24}/[a-z0-9](?:-?[a-z0-9]){2,62}"),
    re.compile(r"(?!)"),
    "GROUP/ACCOUNT/CONTAINER: a resource group, 3 to 24 lower-case letters and digits, then 3 to 63 with single "
    "hyphens between",
)
