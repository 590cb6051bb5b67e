"""Conversion of a launch request to Compute Engine's instance body; selection of the image, the disk and the
scheduling."""

from __future__ import annotations

import dataclasses
import json
import uuid
from fractions import Fraction
from typing import Any

import pytest
from google.cloud import compute_v1

from cloudgpu.jobspecs import catalog
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.gcp.labels import decode, encode, from_description, instance_name, to_description
from cloudgpu.provisioners.gcp.machine.images import Image, family_for
from cloudgpu.provisioners.gcp.machine.machine_types import architecture_of, attached_gpus, needs
from cloudgpu.provisioners.gcp.machine.request import Place, check_request, instance, request_id
from cloudgpu.provisioners.gcp.machine.reservations import Reservation
from cloudgpu.provisioners.gcp.resources.network import Attachment, closed_name, closed_rule, peers_rule
from cloudgpu.tests.standins.gcp.discovery import discovery

TOKEN = "0123456789abcdef0123456789abcdef"
IMAGE = Image("https://compute/projects/p/global/images/i-1", 50, shielded=True, secure_boot=False)
NETWORK = "https://compute.googleapis.com/compute/v1/projects/p/global/networks/default"
SUBNETWORK = "https://compute.googleapis.com/compute/v1/projects/p/regions/us-central1/subnetworks/default"
PRIVATE = Attachment("default", NETWORK, SUBNETWORK, private_access=True)
PUBLIC = PRIVATE._replace(private_access=False)
A3 = "a3-ultragpu-8g"


def node(
    machine_type: str = "g2-standard-4", index: int = 0, accelerator: str | None = "L4", count: int = 1
) -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, accelerator, Fraction(count))


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=3,
        token=TOKEN,
        owner=Owner("cloudgpu-tester"),
        job_dir="gs://bucket/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-central1",
        zone="us-central1-a",
        market="on-demand",
        disk_gb=100.5,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def body(
    asked: LaunchRequest, at: Attachment = PRIVATE, image: Image = IMAGE, reservation: Reservation | None = None
) -> Any:
    """Return the request body as sent, checked against Google's discovery document."""
    place = Place(
        "us-central1-a",
        at,
        "m@p.iam.gserviceaccount.com",
        {} if reservation is None else {asked.nodes[0].node: reservation},
    )
    made = instance(asked, asked.nodes[0], place, image)
    text = compute_v1.Instance.to_json(compute_v1.Instance(made), always_print_fields_with_no_presence=False)
    found = json.loads(text)
    assert discovery("compute", "v1").faults("Instance", found) == []
    return found


def reserve(*, by_name_only: bool = True, ends_machines: bool = False) -> Reservation:
    return Reservation("projects/p/reservations/r", "us-central1-a", by_name_only, ends_machines)


# --- the machine ------------------------------------------------------------------------------------------------------


def test_one_machine() -> None:
    found = body(request())
    assert found["name"] == "cloudgpu-0123456789abcdef-worker-0-1"
    assert found["machineType"] == "zones/us-central1-a/machineTypes/g2-standard-4"
    assert "guestAccelerators" not in found, "the machine type has its GPU built in"
    assert found["tags"]["items"] == ["cloudgpu", f"cloudgpu-{TOKEN}"]
    [account] = found["serviceAccounts"]
    assert account["email"] == "m@p.iam.gserviceaccount.com"
    assert not [scope for scope in account["scopes"] if scope.endswith("cloud-platform")]
    assert found["shieldedInstanceConfig"] == {
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
        "enableSecureBoot": False,
    }
    result = {item["key"]: item["value"] for item in found["metadata"]["items"]}
    assert set(result) == {"startup-script", "block-project-ssh-keys"}
    assert result["startup-script"].startswith("#!") and "worker-0.1" in result["startup-script"]


def test_only_machines_that_read_secrets_have_the_scope_for_it() -> None:
    (few,) = body(request())["serviceAccounts"]
    (more,) = body(request(secrets=("gcp-secretmanager://a",)))["serviceAccounts"]
    assert more["scopes"] == [*few["scopes"], "https://www.googleapis.com/auth/cloud-platform"]


def test_everything_of_a_machine_has_its_labels() -> None:
    found = body(request(expires=2_000_000_000.0))
    assert (
        found["labels"]
        == found["disks"][0]["initializeParams"]["labels"]
        == {
            "cloudgpu-owner": "cloudgpu-tester",
            "cloudgpu-job": "digits-abc",
            "cloudgpu-attempt": "3",
            "cloudgpu-token": TOKEN,
            "cloudgpu-expires": "2000000000",
            "cloudgpu-role": "worker",
            "cloudgpu-index": "0",
            "cloudgpu-rank": "0",
            "cloudgpu-node": "worker-0__2e1",
        }
    )


def test_the_disk_goes_with_the_machine_and_is_no_smaller_than_the_image() -> None:
    [disk] = body(request())["disks"]
    assert (disk["boot"], disk["autoDelete"]) == (True, True)
    assert disk["initializeParams"]["diskSizeGb"] == "101"
    assert disk["initializeParams"]["diskType"].endswith("/pd-balanced")
    assert disk["initializeParams"]["sourceImage"] == IMAGE.source
    [small] = body(request(disk_gb=10))["disks"]
    assert small["initializeParams"]["diskSizeGb"] == "50"


def test_n1_has_its_gpus_attached() -> None:
    found = body(request(node("n1-standard-8", accelerator="T4", count=2)))
    assert found["guestAccelerators"] == [
        {"acceleratorType": "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ]


def test_a_machine_without_gpu_has_none_attached_and_boots_securely() -> None:
    plain = node("n1-standard-4", accelerator=None)
    assert "guestAccelerators" not in body(request(plain))
    assert attached_gpus(plain) is None
    assert family_for("n1-standard-4", gpu=False).secure_boot
    secure = IMAGE._replace(secure_boot=True)
    assert body(request(plain), image=secure)["shieldedInstanceConfig"]["enableSecureBoot"]


def test_a_part_of_an_attached_gpu_cannot_be_had() -> None:
    with pytest.raises(ProvisionError, match="1/2 × T4"):
        attached_gpus(dataclasses.replace(node("n1-standard-4", accelerator="T4"), count=Fraction(1, 2)))


def test_an_image_without_uefi_is_not_shielded() -> None:
    old = IMAGE._replace(shielded=False)
    assert "shieldedInstanceConfig" not in body(request(), image=old)


def test_an_external_address_only_where_google_is_not_reached_without() -> None:
    [inside] = body(request())["networkInterfaces"]
    assert "accessConfigs" not in inside
    [outside] = body(request(), PUBLIC)["networkInterfaces"]
    assert outside["accessConfigs"] == [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    assert outside["subnetwork"] == SUBNETWORK


# --- lifecycle --------------------------------------------------------------------------------------------------------


def test_on_demand_is_started_again_after_maintenance_and_deleted_should_it_outlive_its_job() -> None:
    assert body(request())["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": True,
        "provisioningModel": "STANDARD",
        "hostErrorTimeoutSeconds": 90,
        "maxRunDuration": {"seconds": "4200"},
        "instanceTerminationAction": "DELETE",
    }


def test_without_a_limit_nobody_ends_it() -> None:
    found = body(request(lifetime_s=None))["scheduling"]
    assert "maxRunDuration" not in found and "instanceTerminationAction" not in found
    assert "maxRunDuration" not in body(request(lifetime_s=200 * 86_400))["scheduling"], "more than may be asked for"


def test_spot_is_deleted_when_it_is_taken_and_does_not_come_back() -> None:
    found = body(request(market="spot", lifetime_s=None))
    assert found["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
    }
    assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}


@pytest.mark.parametrize(("lifetime", "seconds"), [(None, 604_800), (60, 660), (9_000_000, 604_800)])
def test_flex_start_runs_for_at_most_a_week(lifetime: int | None, seconds: int) -> None:
    found = body(request(market="flex-start", lifetime_s=lifetime))
    assert found["scheduling"]["provisioningModel"] == "FLEX_START"
    assert found["scheduling"]["maxRunDuration"] == {"seconds": str(seconds)}
    assert found["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert found["scheduling"]["automaticRestart"] is False
    [script] = [one["value"] for one in found["metadata"]["items"] if one["key"] == "startup-script"]
    assert f'"lifetime_s": {seconds - 600}' in script, "it ends itself before it is ended"
    assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}


def test_one_machine_waits_in_the_queue_and_several_do_not_wait_for_each_other() -> None:
    assert body(request(market="flex-start"))["params"] == {"requestValidForDuration": {"seconds": "7200"}}
    several = request(node(), node(index=1), market="flex-start")
    assert body(several)["params"] == {"requestValidForDuration": {"seconds": "90"}}
    assert "params" not in body(request())


def test_a_reservation_by_name() -> None:
    found = body(request(market="reservation"), reservation=reserve())
    assert found["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["projects/p/reservations/r"],
    }
    assert found["scheduling"]["provisioningModel"] == "STANDARD"


def test_an_open_reservation_is_used_by_any_machine_that_fits() -> None:
    found = body(request(market="reservation"), reservation=reserve(by_name_only=False))
    assert found["reservationAffinity"] == {"consumeReservationType": "ANY_RESERVATION"}


def test_a_machine_of_a_dense_reservation_is_bound_to_it_and_does_not_wait_for_its_local_ssds() -> None:
    ultra = node(A3, accelerator="H200-141GB", count=8)
    found = body(request(ultra, market="reservation", lifetime_s=None), reservation=reserve(ends_machines=True))
    assert found["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert found["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert found["scheduling"]["automaticRestart"] is True
    assert found["scheduling"]["localSsdRecoveryTimeout"] == {"seconds": "0"}, "the default is an hour"
    [disk], [nic] = found["disks"], found["networkInterfaces"]
    assert disk["initializeParams"]["diskType"].endswith("/hyperdisk-balanced")
    assert nic["nicType"] == "GVNIC"


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine_type", "disk", "local_ssd"),
    [
        ("a3-ultragpu-8g", "hyperdisk-balanced", True),
        ("a3-ultragpu-8g-nolssd", "hyperdisk-balanced", False),
        ("a3-megagpu-8g", "pd-balanced", True),
        ("a3-highgpu-8g-nolssd", "pd-balanced", False),
        ("a4-highgpu-8g-nolssd", "hyperdisk-balanced", False),
        ("a4x-highgpu-4g-nolssd", "hyperdisk-balanced", False),
    ],
)
def test_the_disk_that_a_series_takes(machine_type: str, disk: str, local_ssd: bool) -> None:
    found = needs(machine_type)
    assert (found.disk, found.local_ssd) == (disk, local_ssd)


def test_every_type_that_can_be_planned_has_an_image_and_a_disk() -> None:
    for name, machines in catalog.machine_types("gcp").items():
        for machine in machines:
            if machine.status != "retired":
                assert family_for(name, gpu=machine.accelerator is not None).family
                assert needs(name).disk in {"pd-balanced", "hyperdisk-balanced"}


@pytest.mark.parametrize(
    ("machine_type", "gpu", "family"),
    [
        ("n1-standard-8", True, "common-cu129-ubuntu-2404-nvidia-580"),
        ("a2-highgpu-1g", True, "common-cu129-ubuntu-2404-nvidia-580"),
        ("a3-highgpu-1g", True, "common-cu129-ubuntu-2404-nvidia-580"),
        ("a3-highgpu-8g", True, "ubuntu-accelerator-2404-amd64-with-nvidia-580"),
        ("a4-highgpu-8g", True, "ubuntu-accelerator-2404-amd64-with-nvidia-580"),
        ("a4x-highgpu-4g", True, "ubuntu-accelerator-2404-arm64-with-nvidia-580"),
        ("n2-standard-4", False, "ubuntu-2404-lts-amd64"),
        ("c4a-standard-4", False, "ubuntu-2404-lts-arm64"),
    ],
)
def test_images(machine_type: str, gpu: bool, family: str) -> None:
    assert family_for(machine_type, gpu=gpu).family == family


@pytest.mark.parametrize(
    ("machine_type", "architecture"),
    [("a4x-highgpu-4g", "arm64"), ("t2a-standard-1", "arm64"), ("c4a-standard-4", "arm64"), ("e2-medium", "x86_64")],
)
def test_architecture_by_name(machine_type: str, architecture: str) -> None:
    assert architecture_of(machine_type) == architecture


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"market": "capacity-block"}, "no market capacity-block"),
        ({"agent": None}, "no agent file"),
        ({"agent": AgentFile("k", "s", "arm64")}, "g2-standard-4 is x86_64"),
    ],
)
def test_what_cannot_be_launched_is_said_before_anything_is_done(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProvisionError, match=says) as caught:
        check_request(request(**changes))
    assert caught.value.error_class == "invalid"


def test_a_job_dir_elsewhere_is_refused() -> None:
    with pytest.raises(ProvisionError, match="s3://bucket") as caught:
        body(request(job_dir="s3://bucket/jobs/digits-abc"))
    assert caught.value.error_class == "invalid"


# --- names, labels, ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("worker-0.1", "worker-0__2e1"),
        ("parameter_server", "parameter_server"),
        ("a__2e", "a__5f__5f2e"),
        ("___", "__5f__5f_"),
        ("Größe", "__47r__c3__b6__c3__9fe"),
        ("_.", "___2e"),
        ("", ""),
    ],
)
def test_a_tag_as_a_label_can_be_read_again(value: str, label: str) -> None:
    assert encode(value) == label
    assert decode(label) == value


def test_labels_that_somebody_else_wrote_are_taken_as_they_are() -> None:
    assert decode("somebody__s") == "somebody__s"
    assert decode("__ff") == "\ufffd"
    assert from_description("a rule of mine") == from_description('{"a": 1}') == from_description("[]") == {}
    assert from_description(to_description({"cloudgpu-token": "t"})) == {"cloudgpu-token": "t"}


def test_a_tag_that_is_too_long_is_refused() -> None:
    with pytest.raises(ProvisionError, match="63"):
        encode("a" * 64)


def test_names_of_all_nodes_there_can_be() -> None:
    assert instance_name(TOKEN, "parameter_server-1023.12") == "cloudgpu-0123456789abcdef-parameter-server-1023-12"
    with pytest.raises(ProvisionError, match="63"):
        instance_name(TOKEN, "w" * 60)


def test_request_ids_are_uuids_and_differ_by_node_zone_and_what_was_before() -> None:
    ids = {
        request_id(TOKEN, node, zone, *after)
        for node in ("a", "b")
        for zone in ("z-a", "z-b")
        for after in ((), ("after", "op-1"))
    }
    assert len(ids) == 8
    assert all(str(uuid.UUID(one)) == one for one in ids)


# --- firewall ---------------------------------------------------------------------------------------------------------


def test_nothing_comes_in_but_from_the_launchs_own_machines() -> None:
    closed, peers = closed_rule("cloudgpu-closed-default", NETWORK), peers_rule(request(node(), node(index=1)), NETWORK)
    for rule in (closed, peers):
        text = compute_v1.Firewall.to_json(compute_v1.Firewall(rule), always_print_fields_with_no_presence=False)
        assert discovery("compute", "v1").faults("Firewall", json.loads(text)) == []
    assert closed["priority"] > peers["priority"], "lower numbers win"
    assert closed["denied"] == peers["allowed"] == [{"I_p_protocol": "all"}]
    assert (closed["source_ranges"], closed["target_tags"]) == (["0.0.0.0/0"], ["cloudgpu"])
    assert peers["source_tags"] == peers["target_tags"] == [f"cloudgpu-{TOKEN}"]
    assert json.loads(peers["description"])["cloudgpu-owner"] == "cloudgpu-tester"


def test_a_network_with_a_long_name_has_a_rule_of_its_own() -> None:
    long = "n" * 62
    assert len(closed_name(f"{long}a")) <= 63
    assert closed_name(f"{long}a") != closed_name(f"{long}b")
