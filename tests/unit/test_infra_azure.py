"""Azure components and programs under strict mocks; a fleet's machines equal those of a direct launch."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import runpy
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pulumi
import pulumi_azure_native  # its types are the reference of these checks
import pytest

import cloudgpu
from cloudgpu.infra.arguments import ArgumentError
from cloudgpu.infra.azure import GpuCluster, GpuFleet, GpuNetwork, JobBucket, MachineRole, OrphanReaper, reaper
from cloudgpu.infra.azure.bucket import account_name
from cloudgpu.infra.azure.programs import fleet_program, infra_program
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.azure import names
from cloudgpu.provisioners.azure.catalog.sizes import is_accelerated
from cloudgpu.provisioners.azure.lifecycle.group_launch import Parts, scale_set_body
from cloudgpu.provisioners.azure.machine import template
from cloudgpu.provisioners.azure.machine.images import image_of
from cloudgpu.provisioners.azure.machine.request import Place, machine
from cloudgpu.provisioners.azure.resources import network, rights
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.azure import schema
from cloudgpu.tests.standins.pulumi.azure import VirtualMachineScaleSet
from cloudgpu.tests.standins.pulumi.mocks import Registered, StrictError, exports, only, run_strict

assert pulumi_azure_native
OWNER, REGION, SUBSCRIPTION = "cloudgpu-tester", "eastus", "00000000-0000-0000-0000-00000000000a"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/standing"
SUBNET = f"{GROUP}/providers/Microsoft.Network/virtualNetworks/cloudgpu/subnets/machines"
ROLE = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/cloudgpu"
RESERVATION = f"{GROUP}/providers/Microsoft.Compute/capacityReservationGroups/mine"
T4, H100 = "Standard_NC4as_T4_v3", "Standard_ND96isr_H100_v5"
IMAGE = "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026052601"
INFRA = InfraSettings("azure", REGION, "infra-azure-eastus", OWNER, account=SUBSCRIPTION)
STANDS_IN = Infrastructure(
    "azure",
    REGION,
    INFRA.stack,
    OWNER,
    SUBNET.rpartition("/subnets/")[0],
    {"": SUBNET},
    machine_role=ROLE,
    machine_role_id="client-id",
    job_dir="az://jobs@account/jobs",
)
SET = "azure-native:compute:VirtualMachineScaleSet"
RULES = "azure-native:network:NetworkSecurityGroup"
ASSIGNMENT, DEFINITION = "azure-native:authorization:RoleAssignment", "azure-native:authorization:RoleDefinition"
ACCOUNT = "azure-native:storage:StorageAccount"
OUTPUTS: dict[str, Mapping[str, Any]] = {
    "azure-native:logic:Workflow": {"identity": {"type": "SystemAssigned", "principalId": "reaper", "tenantId": "t"}},
    "azure-native:managedidentity:UserAssignedIdentity": {"clientId": "client-id", "principalId": "machines"},
}
IDENTITY = {"id": ROLE, "name": "cloudgpu", "location": REGION, "type": "t", "azureApiVersion": "1", "tenantId": "t"}
INVOKES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "azure-native:authorization:getClientConfig": lambda _: {
        "clientId": "c",
        "objectId": "me",
        "subscriptionId": SUBSCRIPTION,
        "tenantId": "t",
    },
    "azure-native:managedidentity:getUserAssignedIdentity": lambda asked: {
        **IDENTITY,
        "clientId": "client-id",
        "principalId": f"principal of {asked['resourceName']} in {asked['resourceGroupName']}",
    },
}


def registered(program: Callable[[], Any], **options: Any) -> list[Registered]:
    return run_strict(program, invokes=INVOKES, outputs=OUTPUTS, **options)


def fleet(**changes: Any) -> FleetSpec:
    base = {
        "name": "big",
        "cloud": "azure",
        "region": REGION,
        "machine_type": T4,
        "accelerator": "T4",
        "gpus": "1",
        "size": 2,
        "disk_gb": 100.5,
    }
    return FleetSpec.model_validate({**base, **changes})


def settings(spec: FleetSpec, **changes: Any) -> FleetSettings:
    base = FleetSettings(
        "cluster-big", OWNER, spec, STANDS_IN, "#cloud-config\n", IMAGE, "az://jobs@account/jobs/fleets/big"
    )
    return dataclasses.replace(base, account=SUBSCRIPTION, **changes)


def of_program(spec: FleetSpec, **changes: Any) -> list[Registered]:
    return registered(lambda: fleet_program(settings(spec, **changes)))


def plain_fleet(**args: Any) -> list[Registered]:
    base = {
        "fleet_name": "big",
        "region": REGION,
        "machine_type": T4,
        "accelerator": "T4",
        "image": IMAGE,
        "user_data": "#cloud-config\n",
        "subscription": SUBSCRIPTION,
        "subnet": SUBNET,
        "machine_role": ROLE,
    }
    return registered(lambda: GpuFleet("fleet", {**base, **args}))  # type: ignore[typeddict-item]


# --- no drift: a fleet's machines equal those of a launch -------------------------------------------------------------

CASES = {
    "one on demand": (fleet(size=1), None),
    "spot": (fleet(market="spot", on_demand=1, zones=("1", "2")), None),
    "peers": (fleet(peers=True, zones=("1",)), None),
    "many cards": (fleet(peers=True, machine_type=H100, accelerator="H100-80GB", gpus="8"), None),
    "small disk": (fleet(disk_gb=10), None),
    "no GPU": (fleet(machine_type="Standard_B2ms", accelerator=None, gpus="0"), None),
    "a reservation": (fleet(market="reservation"), RESERVATION),
}


def request_of(spec: FleetSpec) -> LaunchRequest:
    """Return a launch request for machines of the same kind."""
    nodes = tuple(
        NodeRequest(f"worker-{index}.1", "worker", index, index, spec.machine_type, spec.accelerator, Fraction(1))
        for index in range(2 if spec.peers else 1)
    )
    return LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef" * 2,
        owner=Owner(OWNER),
        job_dir="az://jobs@account/jobs/digits-abc",
        job_sha256="0" * 64,
        region=REGION,
        zone=None,
        market=spec.market,
        disk_gb=spec.disk_gb,
        nodes=nodes,
        lifetime_s=None,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )


def direct(spec: FleetSpec, reservation: str | None, *, public: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the launcher's machine and network interface, of the same kind and in the same network."""
    request = request_of(spec)
    nodes = request.nodes
    reserved = {} if reservation is None else {spec.machine_type: reservation}
    place = Place(None, ROLE, "client-id", reservations=reserved)
    at = network.Attachment(SUBNET, "closed-id", "peers-id" if spec.peers else None, public=public)
    accelerated = is_accelerated(spec.machine_type)
    nic = network.interface(request, nodes[0], at, "address" if public else None, accelerated=accelerated)
    return machine(request, nodes[0], place, image_of(IMAGE), "nic"), nic


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return path -> value of everything that is no object or list."""
    if isinstance(value, Mapping):
        inner = [flat(one, f"{path}.{key}".lstrip(".")) for key, one in value.items()]
    elif isinstance(value, list):
        inner = [flat(one, f"{path}[{index}]") for index, one in enumerate(value)]
    else:
        return {path: value}
    return {key: one for each in inner for key, one in each.items()}


def as_azure_says(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Pulumi's inputs to Resource Manager's form: the inverse of infra/pulumi_arguments.py, written
    independently."""
    found: dict[str, Any] = VirtualMachineScaleSet(None)._body(dict(inputs))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("case", CASES)
def test_what_pulumi_registers_is_what_a_launch_asks_for(case: str, public: bool) -> None:
    spec, reservation = CASES[case]
    args: dict[str, Any] = {"public_addresses": public, "reservation": reservation}
    args |= {key: getattr(spec, key) for key in ("machine_type", "accelerator", "market", "on_demand", "disk_gb")}
    args |= {"peers": spec.peers, "zones": list(spec.zones), "gpus": spec.gpus}
    found = plain_fleet(**{key: value for key, value in args.items() if value is not None})
    body = as_azure_says(only(found, SET).inputs)
    assert schema.faults("compute.VirtualMachineScaleSet", body) == []
    theirs, nic = direct(spec, reservation, public=public)

    assert body["sku"]["name"] == theirs["properties"].pop("hardwareProfile")["vmSize"]
    assert body["identity"] == theirs["identity"]
    ours = flat(body["properties"]["virtualMachineProfile"])
    asked = flat(theirs["properties"])
    differing = {path for path in ours.keys() | asked.keys() if ours.get(path) != asked.get(path)}
    allowed = tuple(template.DIFFERS)
    assert {path for path in differing if not path.startswith(allowed)} == set()
    assert {path for path in template.DIFFERS if not any(one.startswith(path) for one in differing)} <= {
        "hardwareProfile.vmSize"
    }, "what is said to differ does"

    profile = body["properties"]["virtualMachineProfile"]["networkProfile"]
    [configuration] = profile["networkInterfaceConfigurations"]
    named = {"fleet-closed-id": "closed-id", "fleet-peers-id": "peers-id"}
    ours = {path: named.get(str(value), value) for path, value in flat(configuration["properties"]).items()}
    asked = flat(nic["properties"])
    inside = "ipConfigurations[0].properties"
    theirs_only = {path for path in asked if ours.get(path) != asked[path]}
    ours_only = {path for path in ours if path not in asked}
    address = {f"{inside}.publicIPAddress.id", f"{inside}.publicIPAddress.properties.deleteOption"} if public else set()
    assert theirs_only == {f"{inside}.privateIPAllocationMethod", *address}
    made = f"{inside}.publicIPAddressConfiguration"
    assert {path for path in ours_only if not path.startswith(made)} == {"primary", "deleteOption"}
    assert ours.get(f"{made}.properties.deleteOption") == ("Delete" if public else None)


@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("case", CASES)
def test_what_a_launch_asks_for_its_own_scale_set_is_what_pulumi_registers(case: str, public: bool) -> None:
    """Only the tags differ: a launch has separate ones."""
    spec, reservation = CASES[case]
    args: dict[str, Any] = {"public_addresses": public, "reservation": reservation}
    args |= {key: getattr(spec, key) for key in ("machine_type", "accelerator", "market", "on_demand", "disk_gb")}
    args |= {"peers": spec.peers, "zones": list(spec.zones), "gpus": spec.gpus, "size": spec.size}
    registered_body = as_azure_says(only(plain_fleet(**args), SET).inputs)

    peers = "fleet-peers-id" if spec.peers else None
    at = template.NetworkAttachment(SUBNET, "fleet-closed-id", peers, public, reservation)
    close = "fleet-placement-id" if template.is_close(spec) else None
    made = Parts(image_of(IMAGE), at, ROLE, close, "#cloud-config\n")
    asked = scale_set_body(dataclasses.replace(request_of(spec), grouped=True), spec, made)
    assert schema.faults("compute.VirtualMachineScaleSet", asked) == []
    assert asked.pop("tags")["cloudgpu-token"] == "0123456789abcdef" * 2
    assert registered_body.pop("tags")["cloudgpu-fleet"] == "big"
    # The stack's API version is older than this value.
    assert asked["properties"]["virtualMachineProfile"].pop("securityProfile") == {"securityType": "Standard"}
    assert flat(asked) == flat(registered_body)


# --- fleets -----------------------------------------------------------------------------------------------------------


def test_a_fleet_s_scale_set() -> None:
    found = of_program(fleet(zones=("2", "1")), expires=2e9)
    made = only(found, SET).inputs
    assert made["sku"] == {"name": T4, "tier": "Standard", "capacity": 2}
    assert (made["orchestrationMode"], made["platformFaultDomainCount"], made["zones"]) == ("Flexible", 1, ["1", "2"])
    assert made["singlePlacementGroup"] is False and "proximityPlacementGroup" not in made
    assert made["upgradePolicy"]["mode"] == "Rolling" and made["upgradePolicy"]["rollingUpgradePolicy"]["maxSurge"]
    assert made["identity"] == {"type": "UserAssigned", "userAssignedIdentities": [ROLE]}
    assert base64.b64decode(made["virtualMachineProfile"]["osProfile"]["customData"]) == b"#cloud-config\n"
    for one in found:
        if "tags" in one.inputs:
            assert one.inputs["tags"] == {
                "cloudgpu-owner": OWNER,
                "cloudgpu-stack": "test",
                "cloudgpu-fleet": "big",
                **({} if one.type == SET else {"cloudgpu-expires": "2000000000"}),
            }, one.name
    outputs = FleetOutputs.from_json(exports(found)["cloudgpu"])
    hash_ = fleet(zones=("2", "1")).template_hash
    group = "cloudgpu-cluster-big-machines-id"
    expected = FleetOutputs("big", "azure", REGION, hash_, "", "", group, 2, "az://jobs@account/jobs/fleets/big")
    assert outputs == expected


def test_another_time_to_expire_changes_nothing_of_the_scale_set() -> None:
    soon, later, never = (of_program(fleet(), expires=when) for when in (2e9, 2e9 + 3_600, None))
    assert only(soon, SET).inputs == only(later, SET).inputs == only(never, SET).inputs
    tags = [only(found, "azure-native:resources:ResourceGroup").inputs["tags"] for found in (soon, later, never)]
    assert [one.get("cloudgpu-expires") for one in tags] == ["2000000000", "2000003600", None]


def test_a_part_of_spot_machines_is_bought_on_demand_and_those_that_are_taken_are_got_again() -> None:
    made = only(of_program(fleet(market="spot", on_demand=1)), SET).inputs
    assert made["priorityMixPolicy"] == {"baseRegularPriorityCount": 1, "regularPriorityPercentageAboveBase": 0}
    assert made["spotRestorePolicy"] == {"enabled": True}
    plain = only(of_program(fleet(market="spot", heal=False)), SET).inputs
    assert not {"priorityMixPolicy", "spotRestorePolicy", "automaticRepairsPolicy"} & set(plain)


def test_health_is_asked_within_the_machine_and_no_port_is_open() -> None:
    found = of_program(fleet())
    made = only(found, SET).inputs
    assert made["automaticRepairsPolicy"] == {"enabled": True, "gracePeriod": "PT10M", "repairAction": "Replace"}
    [extension] = made["virtualMachineProfile"]["extensionProfile"]["extensions"]
    assert (extension["type"], extension["settings"]) == ("ApplicationHealthLinux", {"protocol": "tcp", "port": 22})
    [rule] = only(found, RULES).inputs["securityRules"]
    assert (rule["access"], rule["direction"], rule["sourceAddressPrefix"]) == ("Deny", "Inbound", "*")


def test_only_peers_may_connect_and_are_placed_together() -> None:
    found = of_program(fleet(peers=True, zones=("2", "1")))
    peers, others = only(found, RULES).inputs["securityRules"]
    group = [{"id": "cloudgpu-cluster-big-peers-id"}]
    assert peers["sourceApplicationSecurityGroups"] == peers["destinationApplicationSecurityGroups"] == group
    assert peers["priority"] < others["priority"] and others["access"] == "Deny"
    made = only(found, SET).inputs
    assert made["singlePlacementGroup"] is True and made["zones"] == ["2"]
    assert made["proximityPlacementGroup"] == {"id": "cloudgpu-cluster-big-placement-id"}
    reserved = of_program(fleet(peers=True, market="reservation"), reservation=RESERVATION)
    assert only(reserved, SET).inputs["singlePlacementGroup"] is False, "they are where the reservation is"


def test_machines_may_end_themselves_and_only_those_in_their_fleets_group() -> None:
    found = of_program(fleet())
    scope = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/cloudgpu-cluster-big-group-name"
    role = only(found, DEFINITION)
    assert role.inputs["scope"] == scope and role.inputs["assignableScopes"] == [scope]
    [permissions] = role.inputs["permissions"]
    assert permissions == {
        "actions": [
            "Microsoft.Compute/virtualMachineScaleSets/delete/action",
            "Microsoft.Compute/virtualMachines/deallocate/action",
            "Microsoft.Compute/virtualMachines/delete",
        ]
    }
    given = only(found, ASSIGNMENT).inputs
    assert (given["scope"], given["roleDefinitionId"]) == (scope, "cloudgpu-cluster-big-leaving-id")
    assert given["principalId"] == "principal of cloudgpu in standing"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"market": "flex-start"}, "azure has no market flex-start"),
        ({"market": "reservation"}, "belong together"),
        ({"reservation": RESERVATION}, "belong together"),
        ({"machine_type": "Standard_NV6ads_A10_v5"}, "cannot be launched"),
        ({"image": "ubuntu"}, "must be publisher:offer:sku:version"),
        ({"size": -1}, "greater than or equal to 0"),
    ],
)
def test_what_azure_cannot_have_is_said_before_anything_is_made(args: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ProvisionError, StrictError), match=message):
        plain_fleet(**args)


def test_a_fleet_of_another_cloud_is_refused() -> None:
    with pytest.raises(ProvisionError, match="is of gcp, not of azure"):
        template.check_fleet(fleet(cloud="gcp"), reserved=False)


def test_the_fleet_is_previewed_before_anything_is_there() -> None:
    found = registered(lambda: fleet_program(settings(fleet(peers=True))), preview=True)
    assert only(found, SET).inputs["sku"]["capacity"] == 2


# --- the infrastructure that fleets use -------------------------------------------------------------------------------


def test_the_infra_program_exports_what_launches_use() -> None:
    found = registered(lambda: infra_program(INFRA))
    name = "cloudgpu-infra-azure-eastus"
    assert Infrastructure.from_json(exports(found)["cloudgpu"]) == Infrastructure(
        "azure",
        REGION,
        INFRA.stack,
        OWNER,
        f"{name}-network-id",
        {"": f"{name}-subnet-id"},
        machine_role=f"{name}-role-identity-id",
        machine_role_id="client-id",
        job_dir=f"az://{name}-data-container-name@{name}-data-account-name/jobs",
    )
    protected = {one.name.removeprefix(f"{name}-data-") for one in found if one.protect}
    assert protected == {"group", "account", "container", "lifecycle", "user-0"}
    assert not [
        one for one in registered(lambda: infra_program(dataclasses.replace(INFRA, protect=False))) if one.protect
    ]


def test_an_existing_bucket_is_used_and_neither_created_nor_changed() -> None:
    adopting = dataclasses.replace(INFRA, bucket="group/account/data", adopt=True)
    found = registered(lambda: infra_program(adopting))
    assert not [one for one in found if one.type.startswith("azure-native:storage:")]
    assert exports(found)["cloudgpu"]["job_dir"] == "az://data@account/jobs"
    with pytest.raises(ValueError, match="must be GROUP/ACCOUNT/CONTAINER"):
        registered(lambda: infra_program(dataclasses.replace(adopting, bucket="account/data")))


def test_a_bucket_by_name() -> None:
    found = registered(lambda: infra_program(dataclasses.replace(INFRA, bucket="myaccount/data")))
    assert only(found, ACCOUNT).inputs["accountName"] == "myaccount"
    assert only(found, "azure-native:storage:BlobContainer").inputs["containerName"] == "data"


def test_a_storage_account_is_closed_to_all_but_identities_with_a_role() -> None:
    made = registered(lambda: JobBucket("jobs", {"region": REGION, "subscription": SUBSCRIPTION, "users": ["me"]}))
    account = only(made, ACCOUNT).inputs
    assert account["minimumTlsVersion"] == "TLS1_2" and account["enableHttpsTrafficOnly"] is True
    for door in ("allowBlobPublicAccess", "allowSharedKeyAccess", "allowCrossTenantReplication"):
        assert account[door] is False, door
    assert re.fullmatch(r"[a-z0-9]{3,24}", account["accountName"])
    assert (
        account_name("another")
        != account["accountName"]
        == account_name(f"/subscriptions/{SUBSCRIPTION}/resourceGroups/jobs")
    )
    [rule] = only(made, "azure-native:storage:ManagementPolicy").inputs["policy"]["rules"]
    actions = rule["definition"]["actions"]["baseBlob"]
    assert set(actions) == {"tierToCool"}, "nothing is deleted unless somebody says so"


def test_machines_of_launches_may_switch_machines_off_and_nothing_more() -> None:
    """The scope is the whole subscription, because resource groups of launches do not exist yet. Hence there is no
    right to start machines."""
    found = registered(lambda: infra_program(INFRA))
    off = only(found, DEFINITION, "cloudgpu-infra-azure-eastus-role-off")
    assert off.inputs["permissions"] == [{"actions": ["Microsoft.Compute/virtualMachines/deallocate/action"]}]
    given = only(found, ASSIGNMENT, "cloudgpu-infra-azure-eastus-role-off").inputs
    assert given["roleDefinitionId"] == "cloudgpu-infra-azure-eastus-role-off-id"
    assert given["scope"] == f"/subscriptions/{SUBSCRIPTION}"


def test_the_stack_does_not_assign_the_leaving_role() -> None:
    found = registered(lambda: infra_program(INFRA))
    leaving = only(found, DEFINITION, "cloudgpu-infra-azure-eastus-role-leaving").inputs
    assert leaving["permissions"] == [{"actions": list(rights.LEAVING)}]
    assert leaving["roleDefinitionId"] == names.leaving_role(INFRA.stack, SUBSCRIPTION)
    assert leaving["assignableScopes"] == [f"/subscriptions/{SUBSCRIPTION}"]
    given = {one.inputs["roleDefinitionId"] for one in found if one.type == ASSIGNMENT}
    assert not [one for one in given if "leaving" in one]


def test_machines_may_read_the_secrets_named_and_no_others() -> None:
    few = registered(lambda: infra_program(INFRA))
    scope = f"{GROUP}/providers/Microsoft.KeyVault/vaults/my-vault/secrets/a"
    secrets = {"azure-keyvault://my-vault/a": scope}
    more = registered(lambda: infra_program(dataclasses.replace(INFRA, secrets=secrets)))
    known = {one.name for one in few}
    [added] = [one for one in more if one.name not in known]
    assert added.type == ASSIGNMENT and added.inputs["scope"] == scope
    assert added.inputs["roleDefinitionId"].endswith(rights.SECRETS)
    assert Infrastructure.from_json(exports(more)["cloudgpu"]).secrets == list(secrets)
    args: Any = {"region": REGION, "resource_group": "g", "subscription": SUBSCRIPTION, "container": f"{GROUP}/c"}
    args["secrets"] = ["a"]
    with pytest.raises(ArgumentError, match="secrets: 'a': expected …/vaults/VAULT/secrets/SECRET"):
        registered(lambda: MachineRole("role", args))


def test_machines_reach_their_folder_only() -> None:
    args = {"region": REGION, "resource_group": "g", "subscription": SUBSCRIPTION, "container": f"{GROUP}/c"}
    found = registered(lambda: MachineRole("role", {**args, "prefix": "jobs"}))  # type: ignore[typeddict-item]
    given = only(found, ASSIGNMENT).inputs
    assert given["scope"] == f"{GROUP}/c" and given["conditionVersion"] == "2.0"
    assert "StringStartsWith 'jobs/'" in given["condition"]
    everything = only(registered(lambda: MachineRole("role", args)), ASSIGNMENT).inputs  # type: ignore[arg-type]
    assert "condition" not in everything and "conditionVersion" not in everything


@pytest.mark.parametrize("gateway", [False, True])
def test_a_network_lets_nothing_in(gateway: bool) -> None:
    found = registered(lambda: GpuNetwork("net", {"region": REGION, "nat": gateway}))
    within, others = only(found, RULES).inputs["securityRules"]
    assert within["sourceAddressPrefix"] == within["destinationAddressPrefix"] == "10.0.0.0/18"
    assert (others["access"], others["sourceAddressPrefix"]) == ("Deny", "*")
    subnet = only(found, "azure-native:network:Subnet").inputs
    assert subnet["networkSecurityGroup"] == {"id": "net-closed-id"} and subnet["defaultOutboundAccess"] is False
    assert ("natGateway" in subnet) is gateway
    assert only(found, "azure-native:network:VirtualNetwork").ignore_changes == ["subnets"]


def test_a_cluster_is_all_of_it_in_one() -> None:
    args = {
        "region": REGION,
        "machine_type": T4,
        "accelerator": "T4",
        "size": 3,
        "image": IMAGE,
        "user_data": pulumi.Output.from_input("#cloud-config\n"),
        "subscription": SUBSCRIPTION,
        "expires": 2e9,
    }
    found = registered(lambda: GpuCluster("all", args))  # type: ignore[arg-type]
    assert only(found, SET).inputs["sku"]["capacity"] == 3
    groups = {one.name: one.inputs["tags"] for one in found if one.type == "azure-native:resources:ResourceGroup"}
    assert "cloudgpu-expires" in groups["all-group"]
    assert "cloudgpu-expires" not in groups["all-data-group"], "what machines wrote outlives them"
    given = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/theirs/blobServices/default/containers/c"

    def standing() -> None:
        pulumi.export("job_dir", GpuCluster("all", {**args, "container": given}).job_dir)  # type: ignore[typeddict-item]

    there = registered(standing)
    assert not [one for one in there if one.type == ACCOUNT]
    assert exports(there)["job_dir"] == "az://c@theirs/jobs"


def test_providers_are_respected() -> None:
    def program() -> None:
        import pulumi_azure_native as azure

        own = azure.Provider("own", subscription_id=SUBSCRIPTION)
        GpuNetwork("net", {"region": REGION}, pulumi.ResourceOptions(providers={"azure-native": own}))

    made = [one for one in registered(program) if one.type.startswith("azure-native:")]
    assert made and all("::own::" in one.provider for one in made)


# --- the reaper -------------------------------------------------------------------------------------------------------


def test_the_reaper_may_delete_groups_and_nothing_else() -> None:
    args = {"region": REGION, "resource_group": "g", "subscription": SUBSCRIPTION}
    found = registered(lambda: OrphanReaper("reaper", args))  # type: ignore[arg-type]
    [permissions] = only(found, DEFINITION).inputs["permissions"]
    assert sorted(one.rpartition("/")[2] for one in permissions["actions"]) == ["delete", "read"]
    assert all("/resourceGroups/" in one for one in permissions["actions"])
    assert only(found, ASSIGNMENT).inputs["principalId"] == "reaper", "the identity of the Logic App"
    workflow = only(found, "azure-native:logic:Workflow").inputs
    assert workflow["parameters"]["subscription"] == {"type": "String", "value": SUBSCRIPTION}
    assert workflow["state"] == "Enabled"


def test_the_reaper_s_definition_looks_and_deletes_what_has_expired() -> None:
    definition = reaper.definition()
    assert definition["triggers"]["hourly"]["recurrence"] == {"frequency": "Hour", "interval": 1}
    assert set(definition["parameters"]) == {"subscription"}
    actions = definition["actions"]
    order = {name: list(one["runAfter"]) for name, one in actions.items()}
    assert order == {"groups": [], "expired": ["groups"], "each": ["expired"]}
    where = actions["expired"]["inputs"]["where"]
    assert "cloudgpu-expires" in where and "startsWith(toLower(item()['name']), 'cloudgpu-')" in where
    assert where.count("(") == where.count(")")
    calls = [actions["groups"]["inputs"], actions["each"]["actions"]["delete"]["inputs"]]
    assert [one["method"] for one in calls] == ["GET", "DELETE"]
    for one in calls:
        assert one["authentication"]["type"] == "ManagedServiceIdentity"
        assert one["uri"].startswith("https://management.azure.com") and "api-version=" in one["uri"]
    assert "key" not in json.dumps(definition).lower() and "secret" not in json.dumps(definition).lower()


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_example_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(cloudgpu.__file__).parent / "examples" / "pulumi" / "azure" / "__main__.py"
    monkeypatch.setenv(
        "PULUMI_CONFIG", json.dumps({"cloudgpu:image": IMAGE, "cloudgpu:size": "3", "cloudgpu:expires": "2e9"})
    )
    found = registered(lambda: runpy.run_path(str(program)))
    made = only(found, SET).inputs
    assert (made["sku"]["capacity"], made["virtualMachineProfile"]["priority"]) == (3, "Spot")
    script = base64.b64decode(made["virtualMachineProfile"]["osProfile"]["customData"]).decode()
    assert "AZCOPY_MSI_CLIENT_ID=client-id\n" in script
    assert exports(found)["job_dir"].endswith("/jobs")
