"""Stand-in for azure-native: the resources of cloudgpu's programs, on the Resource Manager that the environment points
to.

    AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET, AZURE_SUBSCRIPTION_ID, AZURE_AUTHORITY_HOST,
    CLOUDGPU_AZURE_ENDPOINT, REQUESTS_CA_BUNDLE                # Azure.environ() of tests/standins/azure has them

A resource is managed by PUT, GET and DELETE of its id with Azure's client, each awaited until it is done, as the
provider does it. Names are Azure's; fields in Azure's `properties` are one level up in Pulumi. The models of Azure's
SDK drive the conversion in both directions.

Copied behaviour of the provider: calls without a response are retried; an existing resource is not created again; the
state of an operation that fails midway is kept; a network's subnets are preserved when the network is changed; lists of
identities come back as maps, and are unknown in a preview (pulumi-azure-native, pkg/convert/previewOutputs.go). Not
copied: auto-naming and defaults.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..azure import schema
from .provider import CheckError, Kind, Made, PartialError, Props, Provider

_POLL_S = 0.02
_READ_S = 180.0
_RETRIES = 3
"""Retries of calls without a response, or with 5xx or 429, as in Azure's Go library, which the provider uses."""


class Cloud:
    """Azure's management client, created on first use."""

    @property
    def subscription(self) -> str:
        return os.environ["AZURE_SUBSCRIPTION_ID"]

    @functools.cached_property
    def credential(self) -> Any:
        from azure.identity import ClientSecretCredential

        result = os.environ
        return ClientSecretCredential(
            result["AZURE_TENANT_ID"],
            result["AZURE_CLIENT_ID"],
            result["AZURE_CLIENT_SECRET"],
            authority=result["AZURE_AUTHORITY_HOST"],
            disable_instance_discovery=True,
            connection_verify=result["REQUESTS_CA_BUNDLE"],
        )

    @functools.cached_property
    def resources(self) -> Any:
        from azure.mgmt.resource.resources import ResourceManagementClient

        return ResourceManagementClient(
            self.credential,
            self.subscription,
            base_url=os.environ["CLOUDGPU_AZURE_ENDPOINT"],
            credential_scopes=["https://management.azure.com/.default"],
            connection_verify=os.environ["REQUESTS_CA_BUNDLE"],
            polling_interval=_POLL_S,
            read_timeout=_READ_S,
            retry_total=_RETRIES,
            retry_backoff_factor=_POLL_S,
        ).resources

    def get(self, path: str, api: str) -> Props | None:
        from azure.core.exceptions import ResourceNotFoundError

        def answer(response: Any, *_: object) -> Props:
            result: Props = json.loads(response.http_response.text())
            return result

        try:
            found: Props = self.resources.get_by_id(path.lstrip("/"), api_version=api, cls=answer)
        except ResourceNotFoundError:
            return None
        return found

    def put(self, path: str, api: str, body: Props) -> None:
        text = io.BytesIO(json.dumps(body).encode())
        begin = self.resources.begin_create_or_update_by_id
        begin(path.lstrip("/"), text, api_version=api, content_type="application/json").result(_READ_S)

    def delete(self, path: str, api: str) -> None:
        self.resources.begin_delete_by_id(path.lstrip("/"), api_version=api).result(_READ_S)


class Resource(Kind[Cloud]):
    """A resource of Azure Resource Manager."""

    path: ClassVar[str]
    """The resource's path, with the identifying inputs in braces."""
    model: ClassVar[str]
    """Name of the SDK model, as in schema.faults()."""
    api: ClassVar[str]
    """API version that the provider uses."""
    renames: ClassVar[Mapping[str, str]] = {}
    """Pulumi's name -> Azure's, for top-level fields with different names."""

    def __init_subclass__(cls) -> None:
        known = schema.fields(cls.model)
        inner = schema.shape(known["properties"][0])[1] if "properties" in known else {}
        back = {wire: result for result, wire in cls.renames.items()}
        cls.named = frozenset(re.findall(r"\{(\w+)\}", cls.path)) - {"subscription"}
        cls.inputs = cls.named | {back.get(name, name) for name in {*known, *(inner or {})}} - {"properties"}
        cls.required = cls.named
        cls.replaces = {*cls.named, "location", *cls.fixed}

    named: ClassVar[frozenset[str]]
    """Inputs that are part of the path."""
    fixed: ClassVar[frozenset[str]] = frozenset()
    """Further inputs whose change requires a replacement."""
    deletes_first = True
    computed: ClassVar[frozenset[str]] = frozenset({"name"})

    def create(self, name: str, inputs: Props) -> Made:
        from azure.core.exceptions import HttpResponseError

        path = self._path(inputs)
        if self.cloud.get(path, self.api) is not None:
            raise RuntimeError(f"cannot create already existing resource '{path}'")
        try:
            self.cloud.put(path, self.api, self._body(inputs))
        except HttpResponseError as error:
            found = self.cloud.get(path, self.api)
            if found is not None:
                raise PartialError(path, self._outputs(found, inputs), str(error)) from error
            raise
        return Made(path, self._told(path, inputs))

    def read(self, identity: str, state: Props) -> Props | None:
        found = self.cloud.get(identity, self.api)
        if found is None:
            return None
        result = self._outputs(found, state)
        return {name: result[name] for name in state if name in result and name not in self.reshaped}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        from azure.core.exceptions import HttpResponseError

        try:
            self.cloud.put(identity, self.api, self._body(new))
        except HttpResponseError as error:
            found = self.cloud.get(identity, self.api)
            if found is not None and (found.get("properties") or {}).get("provisioningState") == "Failed":
                raise PartialError(identity, self._outputs(found, new), str(error)) from error
            raise
        return self._told(identity, new)

    def delete(self, identity: str, state: Props) -> None:
        self.cloud.delete(identity, self.api)

    def _path(self, inputs: Props) -> str:
        result = {"subscription": self.cloud.subscription, **{name: str(inputs[name]) for name in self.named}}
        return self.path.format(**{name: value.lstrip("/") for name, value in result.items()})

    def _body(self, inputs: Props) -> Props:
        given = {self.renames.get(key, key): value for key, value in inputs.items() if key not in self.named}
        return _nested(schema.fields(self.model), given)

    def _told(self, path: str, inputs: Props) -> Props:
        found = self.cloud.get(path, self.api)
        if found is None:
            raise RuntimeError(f"{path} was made, and is not there")
        return self._outputs(found, inputs)

    def _outputs(self, found: Props, known: Props) -> Props:
        """Return all of Azure's fields. For fields that are known already, additions by Azure are dropped, since they
        are not changes."""
        back = {wire: result for result, wire in self.renames.items()}
        flat = _flat(schema.fields(self.model), found)
        result = {back.get(name, name): value for name, value in flat.items() if name != "id"}
        comparable = known.keys() & result.keys() - self.reshaped
        same = {name: _projected(known[name], result[name]) for name in comparable}
        return result | same


_GROUP = "/subscriptions/{subscription}/resourceGroups/{resourceGroupName}"
_NETWORK = f"{_GROUP}/providers/Microsoft.Network"
_ACCOUNT = f"{_GROUP}/providers/Microsoft.Storage/storageAccounts/{{accountName}}"


class ResourceGroup(Resource):
    type = "azure-native:resources:ResourceGroup"
    path, model, api = _GROUP, "resource.resources.ResourceGroup", "2024-03-01"


class NetworkSecurityGroup(Resource):
    type = "azure-native:network:NetworkSecurityGroup"
    path = f"{_NETWORK}/networkSecurityGroups/{{networkSecurityGroupName}}"
    model, api = "network.NetworkSecurityGroup", "2024-05-01"


class ApplicationSecurityGroup(Resource):
    type = "azure-native:network:ApplicationSecurityGroup"
    path = f"{_NETWORK}/applicationSecurityGroups/{{applicationSecurityGroupName}}"
    model, api = "network.ApplicationSecurityGroup", "2024-05-01"


class VirtualNetwork(Resource):
    type = "azure-native:network:VirtualNetwork"
    path = f"{_NETWORK}/virtualNetworks/{{virtualNetworkName}}"
    model, api = "network.VirtualNetwork", "2024-05-01"

    def _body(self, inputs: Props) -> Props:
        body = super()._body(inputs)
        there = self.cloud.get(self._path(inputs), self.api) or {"properties": {}}
        subnets = [
            {"name": one["name"], "properties": {**one["properties"], "provisioningState": None}}
            for one in there["properties"].get("subnets", [])
        ]
        return {**body, "properties": {"subnets": subnets, **body["properties"]}}


class Subnet(Resource):
    type = "azure-native:network:Subnet"
    path = f"{_NETWORK}/virtualNetworks/{{virtualNetworkName}}/subnets/{{subnetName}}"
    model, api = "network.Subnet", "2024-05-01"


class NatGateway(Resource):
    type = "azure-native:network:NatGateway"
    path = f"{_NETWORK}/natGateways/{{natGatewayName}}"
    model, api = "network.NatGateway", "2024-05-01"


class PublicIPAddress(Resource):
    type = "azure-native:network:PublicIPAddress"
    path = f"{_NETWORK}/publicIPAddresses/{{publicIpAddressName}}"
    model, api = "network.PublicIPAddress", "2024-05-01"


class UserAssignedIdentity(Resource):
    type = "azure-native:managedidentity:UserAssignedIdentity"
    path = f"{_GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{{resourceName}}"
    model, api = "msi.Identity", "2023-01-31"
    computed = frozenset({"clientId", "name", "principalId", "tenantId"})


class RoleAssignment(Resource):
    type = "azure-native:authorization:RoleAssignment"
    path = "/{scope}/providers/Microsoft.Authorization/roleAssignments/{roleAssignmentName}"
    model, api = "authorization.RoleAssignmentCreateParameters", "2022-04-01"
    fixed = frozenset({"principalId", "roleDefinitionId"})


class RoleDefinition(Resource):
    type = "azure-native:authorization:RoleDefinition"
    path = "/{scope}/providers/Microsoft.Authorization/roleDefinitions/{roleDefinitionId}"
    model, api = "authorization.RoleDefinition", "2022-05-01-preview"


class StorageAccount(Resource):
    type = "azure-native:storage:StorageAccount"
    path, model, api = _ACCOUNT, "storage.StorageAccount", "2024-01-01"
    renames: ClassVar[Mapping[str, str]] = {"enableHttpsTrafficOnly": "supportsHttpsTrafficOnly"}


class BlobContainer(Resource):
    type = "azure-native:storage:BlobContainer"
    path = f"{_ACCOUNT}/blobServices/default/containers/{{containerName}}"
    model, api = "storage.BlobContainer", "2024-01-01"


class ManagementPolicy(Resource):
    type = "azure-native:storage:ManagementPolicy"
    path = f"{_ACCOUNT}/managementPolicies/{{managementPolicyName}}"
    model, api = "storage.ManagementPolicy", "2024-01-01"


class Workflow(Resource):
    type = "azure-native:logic:Workflow"
    path = f"{_GROUP}/providers/Microsoft.Logic/workflows/{{workflowName}}"
    model, api = "logic.Workflow", "2019-05-01"
    reshaped = frozenset({"identity"})
    computed = frozenset({"identity", "name"})


class ProximityPlacementGroup(Resource):
    type = "azure-native:compute:ProximityPlacementGroup"
    path = f"{_GROUP}/providers/Microsoft.Compute/proximityPlacementGroups/{{proximityPlacementGroupName}}"
    model, api = "compute.ProximityPlacementGroup", "2024-11-01"


class VirtualMachineScaleSet(Resource):
    type = "azure-native:compute:VirtualMachineScaleSet"
    path = f"{_GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/{{vmScaleSetName}}"
    model, api = "compute.VirtualMachineScaleSet", "2024-11-01"
    reshaped = frozenset({"identity"})
    """Fields that are lists in inputs and maps in outputs."""


def get_client_config(cloud: Cloud, _arguments: Props) -> Props:
    """Return the identity of the credentials, from the access token."""
    import jwt

    token = cloud.credential.get_token("https://management.azure.com/.default").token
    result = jwt.decode(token, options={"verify_signature": False})
    return {
        "clientId": os.environ["AZURE_CLIENT_ID"],
        "objectId": result["oid"],
        "subscriptionId": cloud.subscription,
        "tenantId": result["tid"],
    }


def get_identity(cloud: Cloud, arguments: Props) -> Props:
    kind = UserAssignedIdentity(cloud)
    path = kind._path(arguments)
    found = cloud.get(path, kind.api)
    if found is None:
        raise RuntimeError(f'Code="ResourceNotFound" Message="The Resource \'{path}\' was not found."')
    return {"id": path, "azureApiVersion": kind.api, **kind._outputs(found, {})}


_KINDS = [one for one in list(globals().values()) if isinstance(one, type) and issubclass(one, Resource)]
_INVOKES: Mapping[str, Callable[[Any, Props], Props]] = {
    "azure-native:authorization:getClientConfig": get_client_config,
    "azure-native:managedidentity:getUserAssignedIdentity": get_identity,
}


def provider() -> Provider:
    kinds = [one for one in _KINDS if one is not Resource]
    return Provider("azure-native", cloud=Cloud(), kinds=kinds, invokes=_INVOKES)


# --- Pulumi's form and Azure's ----------------------------------------------------------------------------------------


def _nested(fields: Mapping[str, Any], flat: Mapping[str, Any]) -> Props:
    """Convert flat fields to Azure's nested form. Raises CheckError for fields unknown to Azure's models."""
    made: Props = {}
    inner = schema.shape(fields["properties"][0])[1] if "properties" in fields else None
    for name, value in flat.items():
        result, read_only, _ = fields.get(name, (None, True, False))
        if not read_only:
            made[name] = _deep(result, value, _nested)
        elif inner and name in inner:
            made.setdefault("properties", {})[name] = _deep(inner[name][0], value, _nested)
        else:
            raise CheckError(name, "Azure's model does not have it")
    return made


def _flat(fields: Mapping[str, Any], body: Mapping[str, Any]) -> Props:
    """Convert Azure's form to Pulumi's flat one; fields unknown to the models are kept as they are."""
    made: Props = {}
    # properties' fields win over top-level ones of the same name
    for name, value in sorted(body.items(), key=lambda one: one[0] == "properties"):
        shape, inner = schema.shape(fields[name][0]) if name in fields else ("plain", None)
        if name == "properties" and inner and shape == "object":
            made |= _flat(inner, value)
        else:
            made[name] = _deep(fields[name][0], value, _flat) if name in fields else value
    return made


def _deep(told: Any, value: Any, change: Callable[[Mapping[str, Any], Mapping[str, Any]], Props]) -> Any:
    shape, inner = schema.shape(told)
    if shape == "object" and isinstance(value, Mapping):
        return change(inner, value)
    if shape == "list" and isinstance(value, list):
        return [_deep(inner, one, change) for one in value]
    if shape == "map" and isinstance(value, list):  # identities: a list in Pulumi's inputs
        return {str(one): {} for one in value}
    if shape == "map" and isinstance(value, Mapping):
        return {key: _deep(inner, one, change) for key, one in value.items()}
    return value


def _projected(known: Any, found: Any) -> Any:
    """Return the found value restricted to the known fields, since Azure's additions are not changes."""
    if isinstance(known, Mapping) and isinstance(found, Mapping):
        # A field that is not returned (custom data) is assumed to be unchanged.
        return {key: _projected(value, found[key]) if key in found else value for key, value in known.items()}
    if isinstance(known, list) and isinstance(found, list) and len(known) == len(found):
        return [_projected(one, other) for one, other in zip(known, found, strict=True)]
    return found
