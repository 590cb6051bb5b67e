"""Models of services whose SDK is not installed, in the older SDKs' format, for schema.py.

They follow the REST references of Microsoft.Storage (2024-01-01) and Microsoft.Logic (2019-05-01), restricted to the
fields that cloudgpu sends; any other field is an error, as if unknown to the service. `!`: required; `=`: read-only.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Any

_ENUMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "storage": {
        "Kind": ("StorageV2", "BlockBlobStorage"),
        "SkuName": ("Standard_LRS", "Standard_ZRS", "Standard_GRS", "Premium_LRS"),
        "AccessTier": ("Hot", "Cool", "Cold", "Premium"),
        "MinimumTlsVersion": ("TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3"),
        "PublicAccess": ("None", "Container", "Blob"),
        "RuleType": ("Lifecycle",),
    },
    "logic": {
        "WorkflowState": ("Enabled", "Disabled"),
        "IdentityType": ("SystemAssigned", "UserAssigned", "None"),
        "ParameterType": ("String", "SecureString", "Int", "Float", "Bool", "Array", "Object", "SecureObject"),
    },
}
_MODELS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "storage": {
        "StorageAccount": {
            "id=": "str",
            "name=": "str",
            "type=": "str",
            "kind!": "Kind",
            "sku!": "Sku",
            "location!": "str",
            "tags": "{str}",
            "properties": "StorageAccountProperties",
        },
        "Sku": {"name!": "SkuName", "tier=": "str"},
        "StorageAccountProperties": {
            "provisioningState=": "str",
            "accessTier": "AccessTier",
            "minimumTlsVersion": "MinimumTlsVersion",
            "supportsHttpsTrafficOnly": "bool",
            "allowBlobPublicAccess": "bool",
            "allowSharedKeyAccess": "bool",
            "allowCrossTenantReplication": "bool",
            "defaultToOAuthAuthentication": "bool",
        },
        "BlobContainer": {"id=": "str", "name=": "str", "type=": "str", "properties": "ContainerProperties"},
        "ContainerProperties": {"publicAccess": "PublicAccess", "metadata": "{str}", "provisioningState=": "str"},
        "ManagementPolicy": {"id=": "str", "name=": "str", "type=": "str", "properties!": "PolicyProperties"},
        "PolicyProperties": {"policy!": "PolicySchema", "lastModifiedTime=": "str"},
        "PolicySchema": {"rules!": "[Rule]"},
        "Rule": {"name!": "str", "type!": "RuleType", "enabled": "bool", "definition!": "RuleDefinition"},
        "RuleDefinition": {"actions!": "Actions", "filters": "Filter"},
        "Filter": {"blobTypes!": "[str]", "prefixMatch": "[str]"},
        "Actions": {"baseBlob": "BaseBlob"},
        "BaseBlob": {"tierToCool": "Age", "delete": "Age"},
        "Age": {"daysAfterModificationGreaterThan": "float", "daysAfterCreationGreaterThan": "float"},
    },
    "logic": {
        "Workflow": {
            "id=": "str",
            "name=": "str",
            "type=": "str",
            "location!": "str",
            "tags": "{str}",
            "identity": "ManagedIdentity",
            "properties": "WorkflowProperties",
        },
        "ManagedIdentity": {
            "type!": "IdentityType",
            "principalId=": "str",
            "tenantId=": "str",
            "userAssignedIdentities": "{object}",
        },
        "WorkflowProperties": {
            "provisioningState=": "str",
            "state": "WorkflowState",
            "definition": "object",
            "parameters": "{WorkflowParameter}",
        },
        "WorkflowParameter": {"type": "ParameterType", "value": "object", "description": "str"},
    },
}


@functools.cache
def model(package: str, name: str) -> Any:
    """Return a class like the SDK's. Raises KeyError if it is not defined here."""
    if name in _ENUMS[package]:
        return enum.Enum(name, {value: value for value in _ENUMS[package][name]}, type=str)
    fields = _MODELS[package][name].items()
    names = {key.rstrip("!="): result for key, result in fields}
    rules = {key.rstrip("!="): {"required": key.endswith("!"), "readonly": key.endswith("=")} for key, _ in fields}
    result = {
        "_attribute_map": {key: {"key": key, "type": kind} for key, kind in names.items()},
        "_validation": rules,
        "__module__": f"azure.mgmt.{package}.models",
    }
    return type(name, (), result)


def knows(package: str) -> bool:
    return package in _MODELS
