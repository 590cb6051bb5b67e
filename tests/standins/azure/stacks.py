"""Resources of an infra stack, as `cloudgpu infra up` leaves them in the subscription and the state directory."""

from __future__ import annotations

from typing import Any

from cloudgpu.provisioners.azure.names import assignment_name, leaving_role
from cloudgpu.provisioners.azure.resources.rights import LEAVING
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure

from ..pulumi.azure import Cloud
from .control import AzureControl
from .names import SUBSCRIPTION

_NETWORK_API, _ROLES_API = "2024-05-01", "2022-04-01"
SWITCH_OFF = "Microsoft.Compute/virtualMachines/deallocate/action"


def create_stack(azure: AzureControl, region: str, job_dir: str) -> Infrastructure:
    """Create a subnet without outbound access, an identity that may deallocate machines, and the role with which
    launched machines remove themselves from their scale set. The calls for this are removed from the record."""
    cloud, stack = Cloud(), f"infra-azure-{region}"
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/standing-{region}"
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/cloudgpu"
    role = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/cloudgpu"
    cloud.put(group, "2024-03-01", {"location": region})
    put_network(cloud, network, region)
    cloud.put(role, "2023-01-31", {"location": region})
    identity = (cloud.get(role, "2023-01-31") or {})["properties"]
    _define(cloud, leaving_role(stack, SUBSCRIPTION), f"{stack} leaving", LEAVING)
    off = _define(cloud, assignment_name(stack, "", "off"), f"{stack} off", (SWITCH_OFF,))
    _give(cloud, off, identity["principalId"])
    outputs = Infrastructure(
        "azure",
        region,
        stack,
        "cloudgpu-tester",
        network,
        {"": f"{network}/subnets/machines"},
        machine_role=role,
        machine_role_id=identity["clientId"],
        job_dir=job_dir,
    )
    infra_outputs.save(outputs)
    azure.forget()
    return outputs


def put_network(cloud: Cloud, network: str, region: str, **subnet: Any) -> None:
    """Create a network at this resource id; `subnet`: further properties of its only subnet."""
    inside = {"addressPrefix": "10.0.0.0/18", "defaultOutboundAccess": False, **subnet}
    properties = {
        "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
        "subnets": [{"name": "machines", "properties": inside}],
    }
    cloud.put(network, _NETWORK_API, {"location": region, "properties": properties})


def _define(cloud: Cloud, uuid: str, name: str, actions: tuple[str, ...]) -> str:
    """Create a custom role; return its resource id."""
    scope = f"/subscriptions/{SUBSCRIPTION}"
    path = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{uuid}"
    result = {"roleName": name, "assignableScopes": [scope], "permissions": [{"actions": list(actions)}]}
    cloud.put(path, _ROLES_API, {"properties": result})
    return path


def _give(cloud: Cloud, role: str, principal: str) -> None:
    """Assign a role in the whole subscription."""
    scope = f"/subscriptions/{SUBSCRIPTION}"
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments/{assignment_name(principal, scope, role)}"
    result = {"roleDefinitionId": role, "principalId": principal, "principalType": "ServicePrincipal"}
    cloud.put(path, _ROLES_API, {"properties": result})
