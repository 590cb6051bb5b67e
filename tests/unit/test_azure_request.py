"""From a launch request to the bodies that Azure is sent: which size, image, disk, zone, rights and rules."""

from __future__ import annotations

import base64
import csv
import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import cloudgpu
from cloudgpu.jobspecs import catalog
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.azure import names
from cloudgpu.provisioners.azure.catalog.sizes import Size, architecture_of, size_of, why_not
from cloudgpu.provisioners.azure.machine.images import Image, Urn, urn_for
from cloudgpu.provisioners.azure.machine.request import Place, check_request, machine, zones_for
from cloudgpu.provisioners.azure.machine.vm_profile import unusable_key
from cloudgpu.provisioners.azure.resources import containers, network, resource_groups, rights, security_rules
from cloudgpu.tests.standins.azure.schema import faults

ROOT = Path(cloudgpu.__file__).parent
TOKEN = "0123456789abcdef0123456789abcdef"
SUBSCRIPTION = "00000000-0000-0000-0000-00000000000a"
GROUP = names.group_id(SUBSCRIPTION, names.group_name(TOKEN))
IMAGE = Image(Urn("microsoft-dsvm", "ubuntu-hpc", "2404"), "24.04.2026052601", 64)
SIZE = Size(("1", "2"), "", "standardNCASv3_T4Family", 4, rdma=False, accelerated=True)
PLACE = Place("2", f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/cloudgpu", "client-id")
NIC = f"{GROUP}/providers/Microsoft.Network/networkInterfaces/cloudgpu-worker-0-1"
ALONE = network.Attachment(f"{GROUP}/subnet", f"{GROUP}/nsg", None, public=True)
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


def node(machine_type: str = "Standard_NC4as_T4_v3", index: int = 0, accelerator: str | None = "T4") -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, accelerator, Fraction(1))


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=3,
        token=TOKEN,
        owner=Owner("cloudgpu-tester"),
        job_dir="az://jobs@account/team/digits-abc",
        job_sha256="0" * 64,
        region="eastus",
        zone=None,
        market="on-demand",
        disk_gb=100.5,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
        expires=2_000_000_000.5,
    )
    return dataclasses.replace(base, **changes)


def body(asked: LaunchRequest, place: Place = PLACE) -> dict[str, Any]:
    return machine(asked, asked.nodes[0], place, IMAGE, NIC)


def told(made: dict[str, Any]) -> dict[str, Any]:
    """What the machine is told, from its custom data."""
    data = base64.b64decode(made["properties"]["osProfile"]["customData"]).decode()
    assert data.startswith("#cloud-config\n")
    files = json.loads(data.partition("\n")[2])["write_files"]
    record: dict[str, Any] = json.loads(next(one["content"] for one in files if one["path"].endswith("boot.json")))
    return record


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("market", ["on-demand", "spot"])
@pytest.mark.parametrize("zone", ["1", None])
def test_the_body_is_one_of_the_sdks_models(market: str, zone: str | None) -> None:
    place = dataclasses.replace(PLACE, zone=zone, availability_set=f"{GROUP}/as", proximity_group=f"{GROUP}/ppg")
    made = body(request(market=market), place)
    assert faults("compute.VirtualMachine", made) == []
    assert made.get("zones") == ([zone] if zone else None)


def test_everything_goes_with_the_machine() -> None:
    properties = body(request())["properties"]
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    interface = properties["networkProfile"]["networkInterfaces"][0]
    assert interface == {"id": NIC, "properties": {"primary": True, "deleteOption": "Delete"}}


def test_no_secure_boot_keeps_nvidias_driver_from_being_loaded() -> None:
    assert body(request())["properties"]["securityProfile"] == {"securityType": "Standard"}


def test_a_spot_machine_is_deleted_when_it_is_evicted_and_has_no_maximum_price() -> None:
    spot = body(request(market="spot"))["properties"]
    assert (spot["priority"], spot["evictionPolicy"], spot["billingProfile"]) == ("Spot", "Delete", {"maxPrice": -1})
    assert not {"priority", "evictionPolicy", "billingProfile"} & set(body(request())["properties"])


def test_a_reserved_machine_names_its_group_and_is_no_spot_machine() -> None:
    group = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/capacityReservationGroups/ours"
    place = dataclasses.replace(PLACE, reservations={"Standard_NC4as_T4_v3": group})
    made = body(request(market="reservation"), place)
    assert made["properties"]["capacityReservation"] == {"capacityReservationGroup": {"id": group}}
    assert "priority" not in made["properties"]
    assert faults("compute.VirtualMachine", made) == []
    assert "capacityReservation" not in body(request())["properties"]


def test_the_disk_is_large_enough_for_job_and_image_and_of_the_kind_that_the_plan_counts() -> None:
    disk = body(request())["properties"]["storageProfile"]["osDisk"]
    assert (disk["diskSizeGB"], disk["managedDisk"]["storageAccountType"]) == (101, "StandardSSD_LRS")
    with (ROOT / "jobspecs" / "tables" / "disk_prices.csv").open(newline="") as file:
        products = {row["product"] for row in csv.DictReader(file) if row["cloud"] == "azure"}
    assert products == {"Standard SSD E10 LRS"}
    small = body(request(disk_gb=1))["properties"]["storageProfile"]["osDisk"]
    assert small["diskSizeGB"] == 64 == catalog.billed_disk_gb("azure", 1)
    in_another_zone = body(request(), dataclasses.replace(PLACE, zone="1"))["properties"]["storageProfile"]["osDisk"]
    assert in_another_zone["name"] != disk["name"]


def test_the_image_is_named_by_its_number_so_that_a_repeated_call_asks_for_the_same() -> None:
    reference = body(request())["properties"]["storageProfile"]["imageReference"]
    assert reference == {
        "publisher": "microsoft-dsvm",
        "offer": "ubuntu-hpc",
        "sku": "2404",
        "version": "24.04.2026052601",
    }
    assert body(request()) == body(request())


def test_tags_say_whose_the_machine_is() -> None:
    assert body(request())["tags"] == {
        "cloudgpu-owner": "cloudgpu-tester",
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "3",
        "cloudgpu-token": TOKEN,
        "cloudgpu-expires": "2000000000",
        "cloudgpu-role": "worker",
        "cloudgpu-index": "0",
        "cloudgpu-rank": "0",
        "cloudgpu-node": "worker-0.1",
    }


def test_custom_data_tells_the_machine_who_it_is_and_whom_to_ask_as() -> None:
    record = told(body(request(), dataclasses.replace(PLACE, api_endpoint="https://localhost:1")))
    assert record["job_dir"] == "az://jobs@account/team/digits-abc"
    assert (record["node"], record["cloud"], record["notices"]) == ("worker-0.1", "azure", "azure")
    assert (record["identity"], record["lifetime_s"], record["region"]) == ("client-id", 3_600, "eastus")
    assert record["api_endpoint"] == "https://localhost:1"


def test_nobody_can_log_in() -> None:
    system = body(request())["properties"]["osProfile"]
    assert system["linuxConfiguration"]["disablePasswordAuthentication"] is True
    assert "adminPassword" not in system
    kind, blob, _ = unusable_key(TOKEN).split()
    data = base64.b64decode(blob)
    assert (kind, len(data), data[4:15]) == ("ssh-ed25519", 51, b"ssh-ed25519")
    assert unusable_key(TOKEN) != unusable_key("f" * 32)


def test_a_job_dir_elsewhere_cannot_be_started_from() -> None:
    with pytest.raises(ProvisionError, match=r"worker-0\.1 cannot be started: s3://bucket/x") as refused:
        body(request(job_dir="s3://bucket/x"))
    assert refused.value.error_class == "invalid"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"market": "flex-start"}, "no market flex-start"),
        ({"agent": None}, "no agent file"),
        ({"agent": AgentFile("agent/a.pyz", "a" * 64, "arm64")}, "is x86_64, the job's agent file is for arm64"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_anything_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProvisionError, match=message) as refused:
        check_request(request(**changes))
    assert refused.value.error_class == "invalid"


# --- sizes, zones, images ---------------------------------------------------------------------------------------------

SKU = {
    "resourceType": "virtualMachines",
    "name": "Standard_NC4as_T4_v3",
    "family": "Standard NCASv3_T4 Family",
    "locationInfo": [{"location": "eastus", "zones": ["3", "1", "2"]}],
    "restrictions": [],
    "capabilities": [
        {"name": "vCPUs", "value": "4"},
        {"name": "RdmaEnabled", "value": "True"},
        {"name": "PremiumIO", "value": "True"},
        {"name": "LowPriorityCapable", "value": "True"},
        {"name": "AcceleratedNetworkingEnabled", "value": "False"},
    ],
}


def restricted(kind: str, *, zones: tuple[str, ...] = ()) -> dict[str, Any]:
    limit = {"type": kind, "values": ["eastus"], "reasonCode": "NotAvailableForSubscription"}
    return {**SKU, "restrictions": [{**limit, "restrictionInfo": {"locations": ["eastus"], "zones": list(zones)}}]}


def test_what_azure_says_of_a_size() -> None:
    size = size_of(SKU, "eastus")
    assert (size.zones, size.reason, size.vcpus) == (("1", "2", "3"), "", 4)
    assert (size.rdma, size.accelerated) == (True, False)
    assert size_of(restricted("Zone", zones=("2",)), "eastus").zones == ("1", "3")
    assert size_of(restricted("Zone", zones=("1", "2", "3")), "eastus").reason == "no zone is open to it"
    assert size_of(restricted("Location"), "EastUS").reason == "NotAvailableForSubscription"
    assert size_of(restricted("Location"), "westus").reason == ""


def test_why_a_size_cannot_be_had() -> None:
    assert not why_not(size_of(SKU, "eastus"), "spot")
    assert "(NotAvailableForSubscription)" in why_not(size_of(restricted("Location"), "eastus"), "on-demand")
    never_spot = {**SKU, "capabilities": [{"name": "LowPriorityCapable", "value": "False"}]}
    assert why_not(size_of(never_spot, "eastus"), "spot") == "it is not sold as Spot"
    assert not why_not(size_of(never_spot, "eastus"), "on-demand")


def test_zones_to_try_are_those_that_all_sizes_have() -> None:
    assert zones_for([SIZE, SIZE._replace(zones=("2", "3"))], None, "eastus") == ["2"]
    assert zones_for([SIZE], None, "eastus") == ["1", "2"]
    assert zones_for([SIZE], "2", "eastus") == ["2"]
    assert zones_for([SIZE._replace(zones=())], None, "eastus") == [None]
    for sizes, zone, message in (
        ([SIZE, SIZE._replace(zones=("3",))], None, "no zone with all"),
        ([SIZE], "3", "only 1, 2"),
    ):
        with pytest.raises(ProvisionError, match=message) as refused:
            zones_for(sizes, zone, "eastus")
        assert refused.value.error_class == "not_offered"


def test_every_size_of_the_catalogue_has_an_image_or_a_reason_why_not() -> None:
    launched = set()
    for name, rows in catalog.machine_types("azure").items():
        if rows[0].status == "retired":
            continue
        try:
            launched.add((name, urn_for(name, gpu=True).sku))
        except ProvisionError as refused:
            assert refused.error_class == "invalid"
            assert str(refused).startswith(f"{name} cannot be launched: ")
    assert ("Standard_NC4as_T4_v3", "2404") in launched
    assert ("Standard_ND96isr_H100_v5", "2404") in launched
    assert ("Standard_ND96isr_MI300X_v5", "2404-rocm") in launched
    assert not [name for name, _ in launched if name.startswith(("Standard_NV", "Standard_NG"))]


def test_machines_without_gpus_have_plain_ubuntu_for_their_processor() -> None:
    assert urn_for("Standard_D4s_v5", gpu=False) == Urn("Canonical", "ubuntu-24_04-lts", "server")
    assert urn_for("Standard_D4ps_v6", gpu=False).sku == "server-arm64"
    assert [architecture_of(name) for name in ("Standard_D4plds_v6", "Standard_E8-4as_v5")] == ["arm64", "x86_64"]


# --- network ----------------------------------------------------------------------------------------------------------


def test_nothing_may_come_in_and_peers_reach_each_other_only_where_there_are_several() -> None:
    closed = security_rules.security_rules(None)
    assert [one["properties"]["access"] for one in closed] == ["Deny"]
    assert closed[0]["properties"]["sourceAddressPrefix"] == "*"
    both = security_rules.security_rules(f"{GROUP}/asg")
    assert [one["properties"]["access"] for one in both] == ["Allow", "Deny"]
    peers = both[0]["properties"]
    assert peers["priority"] < both[1]["properties"]["priority"]
    assert peers["sourceApplicationSecurityGroups"] == peers["destinationApplicationSecurityGroups"]
    assert "sourceAddressPrefix" not in peers
    assert faults("network.NetworkSecurityGroup", {"location": "eastus", "properties": {"securityRules": both}}) == []


def test_network_address_and_interface_are_the_sdks_models() -> None:
    asked = request(node(), node(index=1))
    together = ALONE._replace(peers=f"{GROUP}/asg")
    address = f"{GROUP}/address"
    made = network.interface(asked, node(), together, address, accelerated=True)
    assert faults("network.NetworkInterface", made) == []
    assert faults("network.VirtualNetwork", network.own_network(asked)) == []
    assert faults("network.PublicIPAddress", network.public_address(asked, node())) == []
    inner = made["properties"]["ipConfigurations"][0]["properties"]
    assert inner["publicIPAddress"] == {"id": address, "properties": {"deleteOption": "Delete"}}
    assert inner["applicationSecurityGroups"] == [{"id": f"{GROUP}/asg"}]
    assert made["properties"]["networkSecurityGroup"] == {"id": f"{GROUP}/nsg"}
    private = network.interface(request(), node(), ALONE, None, accelerated=False)["properties"]
    assert "publicIPAddress" not in private["ipConfigurations"][0]["properties"]


def test_a_network_of_our_own_has_no_hidden_way_out() -> None:
    subnet = network.own_network(request())["properties"]["subnets"][0]
    assert subnet["properties"]["defaultOutboundAccess"] is False


# --- identity ---------------------------------------------------------------------------------------------------------


def test_a_role_is_limited_to_the_jobs_folder_of_its_container() -> None:
    limit = rights.condition(rights.WRITER, ("team/digits-abc",))
    assert limit is not None
    assert f"@Resource[{BLOBS}:path] StringStartsWith 'team/digits-abc/'" in limit
    assert f"@Request[{BLOBS}:prefix] StringStartsWith 'team/digits-abc/'" in limit
    for action in ("read", "write", "delete", "add/action", "move/action"):
        assert f"ActionMatches{{'{BLOBS}/{action}'}}" in limit
    assert limit.count("(") == limit.count(")")
    reading = rights.condition(rights.READER, ("data",))
    assert reading is not None
    assert "write" not in reading
    assert rights.condition(rights.READER, ("data", "")) is None


def test_urls_of_blob_storage() -> None:
    assert containers.split_url("az://jobs@account/a/b/") == ("jobs", "account", "a/b")
    assert containers.split_url("az://jobs@account") == ("jobs", "account", "")
    for url in ("az://jobs/a", "s3://jobs@account/a", "az://@account/a", "az://jobs@account/a'b", "az://jobs@a/x*"):
        with pytest.raises(ProvisionError) as refused:
            containers.split_url(url)
        assert refused.value.error_class == "invalid"


def test_a_container_survives_in_a_tag() -> None:
    container = containers.Container("storage-group", "account", "jobs")
    assert containers.Container.from_tag(container.to_tag()) == container
    assert containers.Container.from_tag("somebody changed it") is None
    longest = containers.Container("g" * 90, "a" * 24, "c" * 63)
    assert len(longest.to_tag()) <= 256
    assert container.scope(SUBSCRIPTION).endswith(
        "/resourceGroups/storage-group/providers/Microsoft.Storage/storageAccounts/account"
        "/blobServices/default/containers/jobs"
    )


def test_role_assignments_have_the_same_name_when_they_are_made_again() -> None:
    first = names.assignment_name(TOKEN, "/subscriptions/S/x", rights.WRITER)
    assert names.assignment_name(TOKEN, "/subscriptions/s/X", rights.WRITER) == first
    others = {
        names.assignment_name(TOKEN, "/subscriptions/S/y", rights.WRITER),
        names.assignment_name(TOKEN, "/subscriptions/S/x", rights.READER),
        names.assignment_name("f" * 32, "/subscriptions/S/x", rights.WRITER),
    }
    assert len(others | {first}) == 4


# --- names and tags ---------------------------------------------------------------------------------------------------


def test_names_say_whose_a_thing_is() -> None:
    assert names.token_of(names.group_name(TOKEN)) == TOKEN
    assert names.token_of(names.group_name(TOKEN).upper().replace("CLOUDGPU", "CloudGPU")) is not None
    assert names.token_of("cloudgpu-storage") is None
    assert names.node_name("parameter_server-0.12") == "cloudgpu-parameter-server-0-12"
    with pytest.raises(ProvisionError, match="cannot be the name of a machine"):
        names.node_name("r" * 60 + "-0.1")
    assert names.part_of(NIC, "resourcegroups") == f"cloudgpu-{TOKEN}"
    assert names.part_of(NIC, "subnets") == ""


def test_nodes_that_were_started_fit_into_tags() -> None:
    many = [f"worker-{index}.1" for index in range(200)]
    tags = resource_groups.started_tags(many)
    assert len(tags) < 20  # of 50 that Azure allows
    assert all(len(value) <= 256 for value in tags.values())
    assert resource_groups.started_tags(["worker-0.1"]) == {"cloudgpu-started-worker-0.1": "worker-0.1"}
    group = resource_groups.Group(
        names.group_name(TOKEN), "eastus", "Succeeded", {**tags, "cloudgpu-access-0": "g/a/c"}
    )
    assert group.started == frozenset(many)
    assert group.access == ["g/a/c"]
    assert group.token == TOKEN
    assert resource_groups.started_tags([]) == {}
