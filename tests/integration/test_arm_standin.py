"""The Azure stand-in keeps its word, over the wire, to Azure's own clients, as the product's tests need it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import ClientSecretCredential
from azure.mgmt.authorization import AuthorizationManagementClient
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.msi import ManagedServiceIdentityClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from cloudgpu.tests.standins.azure import SUBMITTER, SUBSCRIPTION, Azure
from cloudgpu.tests.standins.azure.machines import InstanceState
from cloudgpu.tests.standins.azure.schema import faults
from cloudgpu.tests.standins.faults import HANG, HTML, KILL_AFTER, KILL_BEFORE, LOSE, RESET, Fault, error

SIZE, FAMILY = "Standard_NC4as_T4_v3", "Standard NCASv3_T4 Family"
GROUP, REGION = "one-launch", "eastus"
WRITER, POWER = "ba92f5b4-2d11-453d-a403-e96b0029c9fe", "40c5ff49-9181-41f8-ae61-143b0e78555e"
NAME = "11111111-1111-4111-8111-111111111111"
PATIENT_S = 180.0
Body = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Azure]:
    with Azure(boot=True) as azure:
        yield azure


class Subscription:
    """Azure's clients, and what a machine needs: a group, a network, an identity."""

    def __init__(self, azure: Azure, folder: Path) -> None:
        self.arm, self.control, self.certificate = azure.arm, azure.control, str(azure.certificate)
        told = azure.environ(folder)
        trust: Body = {"connection_verify": self.certificate, "read_timeout": 5, "retry_total": 0}
        self.credential = ClientSecretCredential(
            told["AZURE_TENANT_ID"],
            told["AZURE_CLIENT_ID"],
            told["AZURE_CLIENT_SECRET"],
            authority=told["AZURE_AUTHORITY_HOST"],
            disable_instance_discovery=True,
            connection_verify=self.certificate,
        )
        scopes = ["https://management.azure.com/.default"]
        where: Body = {**trust, "base_url": azure.arm, "credential_scopes": scopes, "polling_interval": 0.05}
        self.resources = ResourceManagementClient(self.credential, SUBSCRIPTION, **where)
        self.compute = ComputeManagementClient(self.credential, SUBSCRIPTION, **where)
        self.network = NetworkManagementClient(self.credential, SUBSCRIPTION, **where)
        self.identities = ManagedServiceIdentityClient(self.credential, SUBSCRIPTION, **where)
        self.roles = AuthorizationManagementClient(self.credential, SUBSCRIPTION, **where)
        self.subnet, self.identity, self.principal = "", "", ""

    def settle(self) -> None:
        """A group with a closed network and an identity."""
        self.resources.resource_groups.create_or_update(GROUP, {"location": REGION, "tags": {"whose": "ours"}})
        space: Body = {"addressPrefixes": ["10.0.0.0/16"]}
        subnets: list[Body] = [{"name": "machines", "properties": {"addressPrefix": "10.0.0.0/20"}}]
        network: Any = {"location": REGION, "properties": {"addressSpace": space, "subnets": subnets}}
        made = self.network.virtual_networks.begin_create_or_update(GROUP, "net", network).result(PATIENT_S)
        self.subnet = str(made.subnets[0].id)
        identity = self.identities.user_assigned_identities.create_or_update(GROUP, "who", {"location": REGION})
        self.identity, self.principal = str(identity.id), str(identity.principal_id)

    def nic(self, name: str, *, public: bool = True, rules: list[Body] | None = None) -> str:
        """Its id."""
        inner: Body = {"subnet": {"id": self.subnet}}
        if public:
            address: Any = {
                "location": REGION,
                "sku": {"name": "Standard"},
                "properties": {"publicIPAllocationMethod": "Static"},
            }
            ip = self.network.public_ip_addresses.begin_create_or_update(GROUP, f"{name}-ip", address).result(PATIENT_S)
            inner["publicIPAddress"] = {"id": ip.id, "properties": {"deleteOption": "Delete"}}
        body: Any = {"location": REGION, "properties": {"ipConfigurations": [{"name": "only", "properties": inner}]}}
        if rules is not None:
            closed: Any = {"location": REGION, "properties": {"securityRules": rules}}
            groups = self.network.network_security_groups
            made = groups.begin_create_or_update(GROUP, f"{name}-nsg", closed).result(PATIENT_S)
            body["properties"]["networkSecurityGroup"] = {"id": made.id}
        return str(self.network.network_interfaces.begin_create_or_update(GROUP, name, body).result(PATIENT_S).id)

    def body(self, name: str, *, runs: str = "true", **changes: Any) -> Body:
        """Of a machine on an interface of its own; `changes` are of its properties, and None removes one."""
        config = f"#cloud-config\nruncmd:\n- [sh, -c, {json.dumps(runs)}]\n"
        zones = changes.pop("zones", ["1"])
        image = {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2404", "version": "latest"}
        key = {"path": "/home/cloudgpu/.ssh/authorized_keys", "keyData": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA x"}
        nic = changes.pop("nic", None) or self.nic(name)
        properties: Body = {
            "hardwareProfile": {"vmSize": SIZE},
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": -1},
            "storageProfile": {
                "imageReference": image,
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete", "diskSizeGB": 64},
            },
            "osProfile": {
                "computerName": name,
                "adminUsername": "cloudgpu",
                "customData": base64.b64encode(config.encode()).decode(),
                "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
            },
            "networkProfile": {"networkInterfaces": [{"id": nic, "properties": {"deleteOption": "Delete"}}]},
            "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
        }
        properties |= changes
        identity = {"type": "UserAssigned", "userAssignedIdentities": {self.identity: {}}}
        made: Body = {"location": REGION, "tags": {"rank": "0"}, "zones": zones, "identity": identity}
        return {**made, "properties": {name: value for name, value in properties.items() if value is not None}}

    def start(self, name: str = "vm", **changes: Any) -> Any:
        """The machine, once its operation is done."""
        return self.put(name, self.body(name, **changes))

    def put(self, name: str, body: Any) -> Any:
        return self.compute.virtual_machines.begin_create_or_update(GROUP, name, body).result(PATIENT_S)

    def delete(self, name: str = "vm") -> None:
        self.compute.virtual_machines.begin_delete(GROUP, name).result(PATIENT_S)

    def told(self, name: str = "vm") -> InstanceState:
        return next(one for one in reversed(self.control.instances()) if one.name == name)

    def kinds(self) -> set[str]:
        """What is in the group."""
        found = self.resources.resources.list_by_resource_group(GROUP)
        return {str(one.type).rpartition("/")[2] for one in found}

    def raw(self, method: str, path: str, body: Any = None, token: str | None = None) -> requests.Response:
        """As anybody may ask, at the API version 2024-07-01."""
        given = token or self.credential.get_token("https://management.azure.com/.default").token
        query = "" if "?" in path else "?api-version=2024-07-01"
        return requests.request(
            method,
            f"{self.arm}{path}{query}",
            json=body,
            headers={"Authorization": f"Bearer {given}"},
            verify=self.certificate,
            timeout=180,
        )


@pytest.fixture
def azure(server: Azure, tmp_path: Path) -> Iterator[Subscription]:
    server.control.reset()
    made = Subscription(server, tmp_path)
    made.settle()
    yield made
    server.control.reset()


def until(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENT_S
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def refused(what: Callable[[], Any]) -> tuple[int | None, str, str]:
    """Status, code and message."""
    with pytest.raises(HttpResponseError) as caught:
        what()
    told = caught.value.error
    assert told is not None
    return caught.value.status_code, str(told.code), str(told.message)


class TestAMachine:
    def test_it_boots_and_is_deleted_with_all_that_goes_with_it(self, azure: Subscription) -> None:
        made = azure.start(runs="echo it boots", nic=azure.nic("vm", rules=[]))
        assert (made.provisioning_state, made.zones) == ("Succeeded", ["1"])
        until(lambda: "it boots" in azure.told().console)
        told = azure.told()
        assert (told.status, told.market, told.region, told.tags) == ("running", "spot", REGION, {"rank": "0"})
        assert told.external and told.open == [] and told.trouble == []
        assert {"virtualMachines", "disks", "networkInterfaces", "publicIPAddresses"} <= azure.kinds()
        azure.delete()
        assert azure.kinds() == {"virtualNetworks", "networkSecurityGroups", "userAssignedIdentities"}
        assert (azure.told().status, azure.told().reason) == ("", "delete")

    def test_custom_data_is_never_shown(self, azure: Subscription) -> None:
        azure.start()
        found = azure.raw("GET", azure.told().id).text
        assert "customData" not in found and "adminUsername" in found

    def test_what_it_prints_can_be_read_without_a_token(self, azure: Subscription) -> None:
        azure.start(runs="echo on the console")
        until(lambda: "on the console" in azure.told().console)
        told = azure.compute.virtual_machines.retrieve_boot_diagnostics_data(GROUP, "vm")
        text = requests.get(str(told.serial_console_log_blob_uri), verify=azure.certificate, timeout=180).text
        assert "on the console" in text

    def test_off_from_within_it_is_stopped_and_bills(self, azure: Subscription) -> None:
        azure.start(runs="shutdown -P now")
        until(lambda: azure.told().status == "stopped")
        view = azure.compute.virtual_machines.instance_view(GROUP, "vm")
        assert [one.code for one in view.statuses or []] == ["ProvisioningState/succeeded", "PowerState/stopped"]
        assert "virtualMachines" in azure.kinds()

    def test_deallocated_it_takes_no_place_and_may_start_again(self, azure: Subscription) -> None:
        azure.control.set_capacity(SIZE, REGION, "1", "spot", 1)
        azure.start()
        azure.compute.virtual_machines.begin_deallocate(GROUP, "vm").result(PATIENT_S)
        assert azure.told().status == "deallocated"
        azure.start("other")
        azure.delete("other")
        azure.compute.virtual_machines.begin_start(GROUP, "vm").result(PATIENT_S)
        assert azure.told().status == "running"

    def test_without_a_way_out_it_does_not_boot(self, azure: Subscription) -> None:
        azure.start(nic=azure.nic("closed", public=False), runs="echo hello")
        assert "no way out" in azure.told().trouble[0]

    def test_rules_that_let_the_internet_in_are_told(self, azure: Subscription) -> None:
        rule: Body = {"protocol": "Tcp", "access": "Allow", "direction": "Inbound", "priority": 100}
        rule |= {"sourceAddressPrefix": "*", "sourcePortRange": "*", "destinationAddressPrefix": "*"}
        rule["destinationPortRange"] = "22"
        azure.start(nic=azure.nic("open", rules=[{"name": "ssh", "properties": rule}]))
        assert azure.told().open == ["ssh"]

    def test_the_same_again_is_the_same_machine(self, azure: Subscription) -> None:
        body = azure.body("vm")
        first = azure.put("vm", body)
        assert azure.put("vm", body).vm_id == first.vm_id
        body["properties"]["osProfile"]["customData"] = base64.b64encode(b"#cloud-config\n").decode()
        assert refused(lambda: azure.put("vm", body))[:2] == (409, "PropertyChangeNotAllowed")
        assert len(azure.control.instances()) == 1

    def test_tags_are_replaced(self, azure: Subscription) -> None:
        azure.start()
        machines = azure.compute.virtual_machines
        tags: Any = {"tags": {"new": "one"}}
        machines.begin_update(GROUP, "vm", tags).result(PATIENT_S)
        assert azure.told().tags == {"new": "one"}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("how", "code"),
        [("allocation", "ZonalAllocationFailed"), ("constraints", "OverconstrainedZonalAllocationRequest")],
    )
    def test_no_capacity_is_told_by_the_operation_and_leaves_the_machine(
        self, azure: Subscription, how: Any, code: str
    ) -> None:
        azure.control.set_capacity(SIZE, REGION, "1", "spot", 0, how=how)
        assert refused(azure.start)[:2] == (200, code)
        assert (azure.told().status, azure.told().provisioning) == ("failed", "Failed")
        view = azure.compute.virtual_machines.instance_view(GROUP, "vm")
        assert [one.code for one in view.statuses or []] == [f"ProvisioningState/failed/{code}"]
        azure.delete()
        assert not {"virtualMachines", "disks", "networkInterfaces"} & azure.kinds()

    def test_no_capacity_may_be_told_at_once(self, azure: Subscription) -> None:
        azure.control.set_capacity(SIZE, REGION, "1", "spot", 0, how="sku")
        status, code, text = refused(azure.start)
        assert (status, code) == (409, "SkuNotAvailable") and "zones '1'" in text
        assert "virtualMachines" not in azure.kinds()

    def test_a_region_without_zones_asked_for(self, azure: Subscription) -> None:
        azure.control.set_capacity(SIZE, REGION, "", "on-demand", 0)
        usual: Body = {"priority": None, "evictionPolicy": None, "billingProfile": None, "zones": []}
        assert refused(lambda: azure.start(**usual))[:2] == (200, "AllocationFailed")

    @pytest.mark.parametrize(
        ("name", "market", "words"),
        [
            (FAMILY, "on-demand", f"exceeding approved {FAMILY} Cores quota"),
            ("cores", "on-demand", "exceeding approved Total Regional Cores quota"),
            ("lowPriorityCores", "spot", "exceeding approved LowPriorityCores quota"),
        ],
    )
    def test_quotas_are_told_at_once(self, azure: Subscription, name: str, market: str, words: str) -> None:
        azure.control.set_quota(REGION, name, 4)
        changes: Body = {} if market == "spot" else dict.fromkeys(("priority", "evictionPolicy", "billingProfile"))
        azure.start("first", **changes)
        status, code, text = refused(lambda: azure.start("second", **changes))
        assert (status, code) == (409, "OperationNotAllowed")
        assert words in text and "Current Limit: 4, Current Usage: 4, Additional Required: 4" in text
        usages = {str(one.name.value): (one.current_value, one.limit) for one in azure.compute.usage.list(REGION)}
        assert usages[name] == (4, 4)

    def test_a_size_that_the_subscription_may_not_have(self, azure: Subscription) -> None:
        azure.control.set_sku(SIZE, REGION, restricted=["1"])
        assert refused(azure.start)[:2] == (409, "SkuNotAvailable")
        listed = [one for one in azure.compute.resource_skus.list(filter=f"location eq '{REGION}'") if one.name == SIZE]
        (restriction,) = listed[0].restrictions or []
        assert (restriction.type, restriction.reason_code) == ("Zone", "NotAvailableForSubscription")
        azure.start("elsewhere", zones=["2"])

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"hardwareProfile": {"vmSize": "Standard_NC6"}}, "InvalidParameter"),
            ({"priority": None}, "InvalidParameter"),
            ({"evictionPolicy": "Deleted"}, "InvalidRequestContent"),
            ({"billingProfile": {"maxPrise": -1}}, "InvalidRequestContent"),
            ({"vmId": "x"}, "InvalidRequestContent"),
            ({"proximityPlacementGroup": {"id": f"/subscriptions/{SUBSCRIPTION}/x"}}, "InvalidResourceReference"),
            ({"osProfile": None}, "InvalidParameter"),
            ({"zones": ["4"]}, "AvailabilityZoneNotSupported"),
        ],
        ids=lambda one: str(one)[:40],
    )
    def test_a_body_that_is_wrong(self, azure: Subscription, changes: Body, code: str) -> None:
        assert refused(lambda: azure.start(**changes))[1] == code
        assert azure.control.instances() == []

    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("adminUsername", "root", "Admin Username"),
            ("customData", "not base64!", "Base64"),
            ("customData", base64.b64encode(b"x" * 65_536).decode(), "87380"),
            ("computerName", "-", "host name"),
            ("linuxConfiguration", {"disablePasswordAuthentication": True}, "SSH"),
        ],
    )
    def test_a_system_that_is_wrong(self, azure: Subscription, field: str, value: Any, words: str) -> None:
        body = azure.body("vm")
        body["properties"]["osProfile"][field] = value
        status, code, text = refused(lambda: azure.put("vm", body))
        assert (status, code) == (400, "InvalidParameter") and words in text

    def test_an_image_that_is_not_there(self, azure: Subscription) -> None:
        body = azure.body("vm")
        body["properties"]["storageProfile"]["imageReference"]["sku"] = "1404"
        assert refused(lambda: azure.put("vm", body))[:2] == (404, "PlatformImageNotFound")

    def test_what_is_in_use_cannot_be_deleted(self, azure: Subscription) -> None:
        azure.start()
        network = azure.network
        assert refused(lambda: network.network_interfaces.begin_delete(GROUP, "vm").result(PATIENT_S))[1] == "NicInUse"
        code = refused(lambda: network.virtual_networks.begin_delete(GROUP, "net").result(PATIENT_S))[1]
        assert code == "InUseSubnetCannotBeDeleted"
        taken = azure.told().id.replace("Compute/virtualMachines", "Network/networkInterfaces")
        assert refused(lambda: azure.start("second", nic=taken))[1] == "NicInUse"

    def test_who_has_no_token_or_names_no_version(self, azure: Subscription) -> None:
        path = f"/subscriptions/{SUBSCRIPTION}/resourcegroups/{GROUP}"
        assert azure.raw("GET", path, token="nonsense").status_code == 401
        assert azure.raw("GET", f"{path}?x=y").json()["error"]["code"] == "MissingApiVersionParameter"
        other = azure.credential.get_token("https://storage.azure.com/.default").token
        assert azure.raw("GET", path, token=other).status_code == 401

    def test_a_wrong_secret(self, azure: Subscription) -> None:
        wrong = ClientSecretCredential(
            azure.credential._tenant_id,
            azure.credential._client_id,
            "wrong",
            authority=azure.arm,
            disable_instance_discovery=True,
            connection_verify=azure.certificate,
        )
        with pytest.raises(ClientAuthenticationError, match="AADSTS7000215"):
            wrong.get_token("https://management.azure.com/.default")

    def test_what_it_does_not_know_is_told_so(self, azure: Subscription) -> None:
        path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Batch/batchAccounts/x"
        answer = azure.raw("PUT", path, {})
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "StandinNotImplemented")


class TestAGroup:
    def test_it_goes_with_all_that_is_in_it(self, azure: Subscription) -> None:
        azure.start()
        azure.control.set_times(group=0.5)
        deleting = azure.resources.resource_groups.begin_delete(GROUP)
        assert azure.told().gone is not None
        code = refused(lambda: azure.resources.resource_groups.create_or_update(GROUP, {"location": REGION}))[1]
        assert code == "ResourceGroupBeingDeleted"
        deleting.result(PATIENT_S)
        assert azure.control.all_resources() == []

    def test_lists_know_it_late_and_a_get_at_once(self, azure: Subscription) -> None:
        azure.control.set_times(lag=1.0)
        groups = azure.resources.resource_groups
        groups.create_or_update("new", {"location": REGION, "tags": {"whose": "ours"}})
        assert groups.get("new").name == "new"
        where = "tagName eq 'whose' and tagValue eq 'ours'"
        assert [one.name for one in groups.list(filter=where)] == [GROUP]
        until(lambda: [one.name for one in groups.list(filter=where)] == [GROUP, "new"])
        assert list(groups.list(filter="tagName eq 'whose' and tagValue eq 'theirs'")) == []

    def test_its_tags_are_merged_and_deleted(self, azure: Subscription) -> None:
        path = f"subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"

        def change(how: str, **told: str) -> dict[str, str]:
            body: Any = {"operation": how, "properties": {"tags": told}}
            azure.resources.tags.begin_update_at_scope(path, body).result(PATIENT_S)
            return dict(azure.resources.resource_groups.get(GROUP).tags or {})

        assert change("Merge", more="yes") == {"whose": "ours", "more": "yes"}
        assert change("Delete", whose="ours") == {"more": "yes"}

    def test_nothing_is_made_in_one_that_is_not_there(self, azure: Subscription) -> None:
        body: Any = {"location": REGION, "properties": {}}
        make = azure.network.network_security_groups.begin_create_or_update
        assert refused(lambda: make("nowhere", "x", body))[:2] == (404, "ResourceGroupNotFound")
        assert azure.resources.resource_groups.check_existence("nowhere") is False

    def test_another_place_is_refused(self, azure: Subscription) -> None:
        code = refused(lambda: azure.resources.resource_groups.create_or_update(GROUP, {"location": "westus2"}))[1]
        assert code == "InvalidResourceGroupLocation"


class TestRoles:
    def assign(self, azure: Subscription, scope: str, role: str, **more: Any) -> Any:
        definition = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{role}"
        told: Any = {"roleDefinitionId": definition, "principalId": azure.principal, **more}
        return azure.roles.role_assignments.create(scope, more.pop("name", NAME), {"properties": told})

    def test_the_same_again_is_the_same_and_another_of_the_role_is_not(self, azure: Subscription) -> None:
        scope = f"{azure.control.add_storage('account')}/blobServices/default/containers/jobs"
        kind = {"principalType": "ServicePrincipal"}
        assert self.assign(azure, scope, WRITER, **kind).id == self.assign(azure, scope, WRITER, **kind).id
        definition = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{WRITER}"
        body: Any = {"properties": {"roleDefinitionId": definition, "principalId": azure.principal}}
        other = NAME.replace("1", "2")
        create = azure.roles.role_assignments.create
        assert refused(lambda: create(scope, other, body))[:2] == (409, "RoleAssignmentExists")
        azure.roles.role_assignments.delete(scope, NAME)
        assert list(azure.roles.role_assignments.list_for_scope(scope)) == []

    def test_a_new_principal_is_not_known_to_who_does_not_say_what_it_is(self, azure: Subscription) -> None:
        azure.control.set_times(roles=60.0)
        made = azure.identities.user_assigned_identities.create_or_update(GROUP, "new", {"location": REGION})
        azure.principal = str(made.principal_id)
        scope = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
        assert refused(lambda: self.assign(azure, scope, POWER))[:2] == (400, "PrincipalNotFound")
        self.assign(azure, scope, POWER, principalType="ServicePrincipal")

    @pytest.mark.parametrize(
        "condition", ["((ActionMatches{'x'})", "(ActionMatches{'x})", "true"], ids=["parenthesis", "quote", "no action"]
    )
    def test_a_condition_that_cannot_be_read(self, azure: Subscription, condition: str) -> None:
        scope = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
        told = {"condition": condition, "conditionVersion": "2.0"}
        assert refused(lambda: self.assign(azure, scope, WRITER, **told))[:2] == (400, "BadRequestFormat")

    def test_a_machine_may_do_only_what_its_identity_was_given(self, azure: Subscription) -> None:
        azure.start()
        told = azure.told()
        query = "api-version=2018-02-01&resource=https://management.azure.com/"
        asked = {"headers": {"Metadata": "true"}, "timeout": 30.0}
        token = requests.get(f"{told.metadata}/metadata/identity/oauth2/token?{query}", **asked).json()["access_token"]  # type: ignore[arg-type]
        answer = azure.raw("POST", f"{told.id}/deallocate", token=token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "AuthorizationFailed")
        group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
        self.assign(azure, group, POWER, principalType="ServicePrincipal")
        assert azure.raw("DELETE", told.id, token=token).status_code == 403
        assert azure.raw("POST", f"{told.id}/deallocate", token=token).status_code == 202
        until(lambda: azure.told().status == "deallocated")

    def test_submitters_may_be_held_to_a_list_of_actions(self, azure: Subscription) -> None:
        azure.control.enforce({SUBMITTER: ["Microsoft.Network/networkInterfaces/*", "Microsoft.Resources/*"]})
        azure.resources.resource_groups.get(GROUP)
        status, code, text = refused(lambda: azure.nic("vm", public=False))
        assert (status, code) == (403, "LinkedAuthorizationFailed")
        assert "Microsoft.Network/virtualNetworks/subnets/join/action" in text
        assert (SUBMITTER, "Microsoft.Network/networkInterfaces/write") in azure.control.used()


class TestWhatHappens:
    @pytest.mark.parametrize("policy", ["Delete", "Deallocate"])
    def test_an_eviction_is_announced_and_then_happens(self, azure: Subscription, policy: str) -> None:
        azure.start(evictionPolicy=policy)
        azure.control.evict("vm", 1.0)
        (event,) = self.events(azure)
        assert (event["EventType"], event["Resources"], event["EventStatus"]) == ("Preempt", ["vm"], "Scheduled")
        until(lambda: azure.told().gone is not None)
        assert azure.told().reason == "evicted"
        assert ("virtualMachines" in azure.kinds()) == (policy == "Deallocate")

    def test_an_event_that_is_let_begin_happens_at_once(self, azure: Subscription) -> None:
        azure.start(runs="echo booted")
        until(lambda: azure.told().console.count("booted") == 1)
        azure.control.maintain("vm", "Reboot", 600.0)
        (event,) = self.events(azure)
        body = {"StartRequests": [{"EventId": event["EventId"]}]}
        url = f"{azure.told().metadata}/metadata/scheduledevents?api-version=2020-07-01"
        assert requests.post(url, json=body, headers={"Metadata": "true"}, timeout=180).status_code == 200
        until(lambda: self.events(azure) == [])
        assert (azure.told().status, azure.told().events) == ("running", [event["EventId"]])

    def test_simulate_eviction_is_for_spot(self, azure: Subscription) -> None:
        azure.start()
        azure.compute.virtual_machines.simulate_eviction(GROUP, "vm")
        assert [one["EventType"] for one in self.events(azure)] == ["Preempt"]
        azure.start("usual", priority=None, evictionPolicy=None, billingProfile=None)
        simulate = azure.compute.virtual_machines.simulate_eviction
        assert refused(lambda: simulate(GROUP, "usual"))[:2] == (409, "OperationNotAllowed")

    def test_metadata_are_told_only_to_who_asks_rightly(self, azure: Subscription) -> None:
        azure.start()
        url = f"{azure.told().metadata}/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"
        assert requests.get(url, headers={"Metadata": "true"}, timeout=180).text == SIZE
        assert requests.get(url, timeout=180).status_code == 400
        proxied = {"Metadata": "true", "X-Forwarded-For": "10.0.0.1"}
        assert requests.get(url, headers=proxied, timeout=180).status_code == 400

    def test_an_operation_may_fail_as_a_test_wants(self, azure: Subscription) -> None:
        machines = "Microsoft.Compute/virtualMachines"
        azure.control.fail_operation(machines, "provision", "OSProvisioningTimedOut", "It did not report.")
        assert refused(azure.start)[:2] == (200, "OSProvisioningTimedOut")
        assert azure.told().running

    @staticmethod
    def events(azure: Subscription) -> list[Body]:
        url = f"{azure.told().metadata}/metadata/scheduledevents?api-version=2020-07-01"
        found: list[Body] = requests.get(url, headers={"Metadata": "true"}, timeout=180).json()["Events"]
        return found


class TestFaults:
    def test_an_error_of_azures_own(self, azure: Subscription) -> None:
        azure.control.fail("resourceGroups.read", error("TooManyRequests", 429, "later", **{"Retry-After": "7"}))
        with pytest.raises(HttpResponseError) as caught:
            azure.resources.resource_groups.get(GROUP)
        response: Any = caught.value.response
        assert response is not None and (caught.value.status_code, response.headers["Retry-After"]) == (429, "7")
        azure.resources.resource_groups.get(GROUP)

    @pytest.mark.parametrize(
        ("fault", "done"), [(HTML, False), (RESET, False), (LOSE, True)], ids=lambda one: str(one)[:20]
    )
    def test_what_is_done_and_not_told(self, azure: Subscription, fault: Fault, done: bool) -> None:
        azure.control.fail("resourceGroups.write", fault, where={"name": "new"})
        with pytest.raises((HttpResponseError, ServiceRequestError, ServiceResponseError)):
            azure.resources.resource_groups.create_or_update("new", {"location": REGION})
        assert azure.resources.resource_groups.check_existence("new") is done
        assert [call.fault for call in azure.control.calls("resourceGroups.write", name="new")] == [fault.kind]

    def test_no_answer(self, azure: Subscription) -> None:
        azure.control.fail("resourceGroups.read", HANG)
        with pytest.raises(ServiceResponseError):
            azure.resources.resource_groups.get(GROUP, read_timeout=0.5)

    @pytest.mark.parametrize(
        ("fault", "done"), [(KILL_BEFORE, False), (KILL_AFTER, True)], ids=lambda one: str(one)[:24]
    )
    def test_the_caller_is_killed(self, azure: Subscription, fault: Fault, done: bool) -> None:
        token = azure.credential.get_token("https://management.azure.com/.default").token
        azure.control.fail("resourceGroups.write", fault, where={"name": "new"})
        url = f"{azure.arm}/subscriptions/{SUBSCRIPTION}/resourcegroups/new?api-version=2025-04-01"
        program = (
            "import requests, sys\n"
            "who = {'Authorization': 'Bearer ' + sys.argv[2]}\n"
            "requests.put(sys.argv[1], json={'location': 'eastus'}, headers=who, verify=sys.argv[3], timeout=180)"
        )
        command = [sys.executable, "-c", program, url, token, azure.certificate]
        assert subprocess.run(command, timeout=180, check=False).returncode == -9
        assert azure.resources.resource_groups.check_existence("new") is done

    def test_many_at_once_get_no_more_than_there_is(self, azure: Subscription) -> None:
        azure.control.set_capacity(SIZE, REGION, "1", "spot", 2)
        bodies = {name: azure.body(name) for name in ("a", "b", "c", "d")}
        outcomes: list[str] = []

        def start(name: str) -> None:
            try:
                azure.put(name, bodies[name])
                outcomes.append("started")
            except HttpResponseError as refusal:
                outcomes.append(str(refusal.error.code if refusal.error else ""))

        threads = [threading.Thread(target=start, args=(name,)) for name in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["ZonalAllocationFailed"] * 2 + ["started"] * 2

    def test_a_verb_that_is_not_there(self, azure: Subscription) -> None:
        with pytest.raises(AssertionError, match="no verb of the control"):
            azure.control.do("nonsense")

    def test_the_control_needs_no_tls_and_nobody_else_gets_in_without_trust(self, azure: Subscription) -> None:
        assert azure.control.url.startswith("http://") and azure.arm.startswith("https://")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(azure.arm, timeout=180)


@pytest.mark.parametrize(
    ("model", "body", "wrong"),
    [
        ("network.NetworkInterface", {"location": "x", "properties": {"ipConfiguration": []}}, "ipConfiguration"),
        ("msi.Identity", {"locaton": "x"}, "locaton"),
        ("resource.resources.ResourceGroup", {"location": "x", "tags": {"a": 1}}, "tags.a"),
        ("authorization.RoleAssignmentCreateParameters", {"properties": {"roleDefinitionId": "x"}}, "principalId"),
        ("compute.VirtualMachine", {"location": "x", "properties": {"priority": ["Spot"]}}, "priority"),
    ],
)
def test_bodies_are_checked_by_the_sdks_own_models(model: str, body: Body, wrong: str) -> None:
    """Of both of its generators."""
    assert any(wrong in fault for fault in faults(model, body))
