"""Google Cloud components and programs: the resources they register; a fleet's machine equals a launch's machine."""

from __future__ import annotations

import dataclasses
import json
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from google.cloud import compute_v1

from cloudgpu.infra.arguments import ArgumentError
from cloudgpu.infra.gcp import GpuCluster, GpuFleet, GpuNetwork, JobBucket, MachineRole
from cloudgpu.infra.gcp.programs import bucket_name, fleet_program, infra_program
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners.base import AgentFile, LaunchRequest, NodeRequest, Owner
from cloudgpu.provisioners.gcp.machine.images import Image, family_for
from cloudgpu.provisioners.gcp.machine.request import Place, instance
from cloudgpu.provisioners.gcp.machine.reservations import Reservation
from cloudgpu.provisioners.gcp.resources.network import Attachment, closed_name
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.tests.standins.gcp.discovery import discovery
from cloudgpu.tests.standins.pulumi.gcp import KINDS, instance_properties
from cloudgpu.tests.standins.pulumi.mocks import Registered, exports, only, run_strict

PROJECT, REGION = "p-1", "us-central1"
NETWORK = f"projects/{PROJECT}/global/networks/cloudgpu-us-central1"
SUBNETWORK = "https://compute/regions/us-central1/subnetworks/cloudgpu-us-central1"
MACHINE = "cloudgpu-us-central1@p-1.iam.gserviceaccount.com"
IMAGE = "https://compute/projects/d/global/images/i-1"
INFRA = InfraSettings("gcp", REGION, "infra-gcp-us-central1", "cloudgpu-me@here", account=PROJECT)
STANDS = Infrastructure(
    "gcp",
    REGION,
    INFRA.stack,
    INFRA.owner,
    network="cloudgpu-us-central1",
    subnets={"": SUBNETWORK},
    machine_role=MACHINE,
    job_dir="gs://b/jobs",
)
FLEET = FleetSpec(
    name="big", cloud="gcp", region=REGION, machine_type="g2-standard-8", accelerator="L4", gpus="1", size=3
)
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
GROUP = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
FIREWALL = "gcp:compute/firewall:Firewall"
PLACEMENT = "gcp:compute/resourcePolicy:ResourcePolicy"
MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
GRANT = "gcp:projects/iAMMember:IAMMember"
ROLE = "gcp:projects/iAMCustomRole:IAMCustomRole"
BUCKET = "gcp:storage/bucket:Bucket"


def settings(fleet: FleetSpec = FLEET, **changes: Any) -> FleetSettings:
    base = FleetSettings(
        stack=f"cluster-{fleet.name}",
        owner="cloudgpu-me@here",
        fleet=fleet,
        infrastructure=STANDS,
        user_data="#!/bin/sh\n",
        image=IMAGE,
        fleet_dir="gs://b/jobs/fleets/big",
        account=PROJECT,
        expires=2_000_000_000.0,
    )
    return dataclasses.replace(base, **changes)


def of_fleet(fleet: FleetSpec = FLEET, **changes: Any) -> list[Registered]:
    return run_strict(lambda: fleet_program(settings(fleet, **changes)), stack="cluster-big")


def changed(**changes: Any) -> FleetSpec:
    return FleetSpec.model_validate({**FLEET.model_dump(), **changes})


# --- infra ------------------------------------------------------------------------------------------------------------


def test_what_stands_before_any_job_is_exported_as_launches_read_it() -> None:
    registered = run_strict(lambda: infra_program(INFRA))
    outputs = Infrastructure.from_json(exports(registered)["cloudgpu"])
    assert (outputs.cloud, outputs.region, outputs.stack, outputs.owner) == ("gcp", REGION, INFRA.stack, INFRA.owner)
    assert outputs.network == "cloudgpu-us-central1"
    assert set(outputs.subnets) == {""}
    assert outputs.job_dir == f"gs://{bucket_name(PROJECT, REGION)}/jobs"
    kinds = {kind.type for kind in KINDS}
    unmodelled = {one.type for one in registered if one.custom and one.type.startswith("gcp:")} - kinds
    assert not unmodelled, "the stand-in of the provider knows all that the program uses"


def test_a_first_preview_knows_what_can_be_known() -> None:
    registered = run_strict(lambda: infra_program(INFRA), preview=True)
    assert only(registered, "gcp:compute/subnetwork:Subnetwork").inputs["ipCidrRange"] == "10.192.0.0/20"
    assert exports(registered)["cloudgpu"]["stack"] == INFRA.stack


def test_nothing_comes_in_and_launches_find_the_rule_and_the_network() -> None:
    registered = run_strict(lambda: infra_program(INFRA))
    rule = only(registered, FIREWALL).inputs
    assert rule["name"] == closed_name("cloudgpu-us-central1"), "a launch makes no second one"
    assert rule["denies"] == [{"protocol": "all"}] and "allows" not in rule
    assert (rule["direction"], rule["priority"], rule["sourceRanges"]) == ("INGRESS", 100, ["0.0.0.0/0"])
    assert rule["targetTags"] == ["cloudgpu"]
    assert only(registered, "gcp:compute/network:Network").inputs["autoCreateSubnetworks"] is False
    assert only(registered, "gcp:compute/subnetwork:Subnetwork").inputs["privateIpGoogleAccess"] is True
    assert not [one for one in registered if "router" in one.type], "Cloud NAT costs, and is made only if asked for"


def test_cloud_nat_if_asked_for() -> None:
    registered = run_strict(lambda: GpuNetwork("net", {"region": REGION, "nat": True}) and None)
    assert only(registered, "gcp:compute/routerNat:RouterNat").inputs["natIpAllocateOption"] == "AUTO_ONLY"


def test_the_bucket_is_private_and_protected() -> None:
    bucket = only(run_strict(lambda: infra_program(INFRA), stack=INFRA.stack), BUCKET)
    assert bucket.protect and bucket.inputs["forceDestroy"] is False
    assert bucket.inputs["publicAccessPrevention"] == "enforced"
    assert bucket.inputs["uniformBucketLevelAccess"] is True
    assert bucket.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 0}
    assert bucket.inputs["labels"] == {
        "cloudgpu-owner": "cloudgpu-me__40here",
        "cloudgpu-stack": "infra-gcp-us-central1",
    }
    [rule] = bucket.inputs["lifecycleRules"]
    assert rule == {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}


def test_a_bucket_that_may_go_goes_with_all_that_is_in_it() -> None:
    loose = dataclasses.replace(INFRA, protect=False)
    bucket = only(run_strict(lambda: infra_program(loose)), BUCKET)
    assert not bucket.protect and bucket.inputs["forceDestroy"] is True


def test_an_existing_bucket_is_only_used() -> None:
    theirs = dataclasses.replace(INFRA, bucket="theirs", adopt=True)
    registered = run_strict(lambda: infra_program(theirs))
    assert not [one for one in registered if one.type == BUCKET]
    assert only(registered, MEMBER).inputs["bucket"] == "theirs"
    assert exports(registered)["cloudgpu"]["job_dir"] == "gs://theirs/jobs"


def test_machines_reach_one_folder_and_end_only_machines_and_groups_of_ours() -> None:
    registered = run_strict(lambda: infra_program(INFRA))
    objects, bucket = only(registered, MEMBER).inputs, bucket_name(PROJECT, REGION)
    assert objects["role"] == "roles/storage.objectUser"
    assert objects["condition"]["expression"] == (
        f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/jobs/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("jobs/")'
    )
    roles = {one.name: one.inputs for one in registered if one.type == ROLE}
    assert roles["machine-machines-role"]["permissions"] == ["compute.instances.delete"]
    groups = ["compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"]
    assert roles["machine-groups-role"]["permissions"] == groups
    for grant in ("machine-machines", "machine-groups"):
        assert 'startsWith("cloudgpu-")' in only(registered, GRANT, grant).inputs["condition"]["expression"]
    everything = json.dumps([one.inputs for one in registered if one.name.startswith("machine")], default=str)
    assert "logging" not in everything and "roles/editor" not in everything


def test_machines_may_read_the_secrets_named_and_no_others() -> None:
    kind = "gcp:secretmanager/secretIamMember:SecretIamMember"
    assert not [one for one in run_strict(lambda: infra_program(INFRA)) if one.type == kind]
    secrets = {"gcp-secretmanager://a": f"projects/{PROJECT}/secrets/a"}
    found = run_strict(lambda: infra_program(dataclasses.replace(INFRA, secrets=secrets)))
    given = only(found, kind).inputs
    assert (given["project"], given["secretId"], given["role"]) == (PROJECT, "a", "roles/secretmanager.secretAccessor")
    assert given["member"] == only(found, MEMBER).inputs["member"]
    assert Infrastructure.from_json(exports(found)["cloudgpu"]).secrets == list(secrets)
    wrong: Any = {"project": PROJECT, "account_id": "cloudgpu-m", "bucket": "b", "secrets": ["a"]}
    with pytest.raises(ArgumentError, match="secrets: 'a': expected projects/PROJECT/secrets/SECRET"):
        run_strict(lambda: MachineRole("m", wrong) and None)


def test_a_role_without_fleets_may_not_change_groups() -> None:
    args = {"project": PROJECT, "account_id": "cloudgpu-m", "bucket": "b", "users": ["user:me@here"]}
    registered = run_strict(lambda: MachineRole("m", args) and None)  # type: ignore[arg-type]
    assert [one.name for one in registered if one.type == ROLE] == ["m-machines-role"]
    assert "condition" not in only(registered, MEMBER).inputs, "all of the bucket"
    act_as = only(registered, "gcp:serviceaccount/iAMMember:IAMMember").inputs
    assert (act_as["role"], act_as["member"]) == ("roles/iam.serviceAccountUser", "user:me@here")


@pytest.mark.parametrize("region", ["us-central1", "northamerica-northeast1", "australia-southeast2"])
def test_names_fit_in_every_region(region: str) -> None:
    long = dataclasses.replace(INFRA, region=region, account="p" * 30)
    registered = run_strict(lambda: infra_program(long))
    for account in (one for one in registered if one.type == "gcp:serviceaccount/account:Account"):
        assert 6 <= len(account.inputs["accountId"]) <= 30
    assert len({one.inputs["roleId"] for one in registered if one.type == ROLE}) == 6
    assert len(only(registered, BUCKET).inputs["name"]) <= 63


# --- no drift ---------------------------------------------------------------------------------------------------------

FLEETS = {
    "on demand, with a GPU of its type": FLEET,
    "spot, which ends after an hour": changed(market="spot", lifetime_s=3_600),
    "GPUs that are attached": changed(machine_type="n1-standard-8", accelerator="T4", gpus="2", disk_gb=250.5),
    "no GPU": changed(machine_type="n2-standard-8", accelerator=None, gpus="0", market="spot"),
    "Local SSDs": changed(machine_type="a3-highgpu-8g", accelerator="H100-80GB", gpus="8", lifetime_s=86_400),
    "Hyperdisk": changed(machine_type="a4-highgpu-8g", accelerator="B200-180GB", gpus="8", market="spot"),
    "an open reservation": changed(machine_type="a2-highgpu-1g", accelerator="A100-40GB", market="reservation"),
}
MAY_DIFFER = {"name", "description", "labels", "tags", "metadata", "resourcePolicies"}
"""Fields that depend on the way a machine is started, e.g. its name, labels and startup metadata."""


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleets_machine_is_what_a_launch_would_start(name: str) -> None:
    fleet = FLEETS[name]
    registered = instance_properties(only(of_fleet(fleet), TEMPLATE).inputs)
    assert discovery("compute", "v1").faults("InstanceProperties", registered) == []
    launched = launched_as(fleet)
    differs = {key for key in {*registered, *launched} if registered.get(key) != launched.get(key)}
    assert differs <= MAY_DIFFER, {key: (registered.get(key), launched.get(key)) for key in differs - MAY_DIFFER}
    assert keys_of(registered) == keys_of(launched), "nobody logs in to either"


def launched_as(fleet: FleetSpec, reservation: Reservation | None = None) -> Any:
    """Return what a direct launch of the same machine sends, in a template's form: names in place of a zone's URLs."""
    node = NodeRequest("worker-0.1", "worker", 0, 0, fleet.machine_type, fleet.accelerator, fleet.count)
    request = LaunchRequest(
        job_id="digits-abc",
        attempt=1,
        token="0123456789abcdef0123456789abcdef",
        owner=Owner("cloudgpu-me@here"),
        job_dir="gs://b/jobs/digits-abc",
        job_sha256="0" * 64,
        region=fleet.region,
        zone="us-central1-a",
        market=fleet.market,
        disk_gb=fleet.disk_gb,
        nodes=(node,),
        lifetime_s=fleet.lifetime_s,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )
    secure = family_for(fleet.machine_type, gpu=fleet.accelerator is not None).secure_boot
    at = Attachment("cloudgpu-us-central1", NETWORK, SUBNETWORK, private_access=True)
    place = Place("us-central1-a", at, MACHINE, {} if reservation is None else {node.node: reservation})
    made = instance(request, node, place, Image(IMAGE, 50, shielded=True, secure_boot=secure))
    text = compute_v1.Instance.to_json(compute_v1.Instance(made), always_print_fields_with_no_presence=False)
    found = json.loads(text, object_hook=_numbers)
    # Compute Engine sets this default for a launch; Pulumi's provider always sends it.
    found["scheduling"]["preemptible"] = found["scheduling"]["provisioningModel"] == "SPOT"
    disk = found["disks"][0]["initializeParams"]
    assert disk.pop("diskName") == found["name"]
    assert disk.pop("labels") == found["labels"]
    disk["labels"] = {"cloudgpu-owner": "cloudgpu-me__40here", "cloudgpu-stack": "cluster-big", "cloudgpu-fleet": "big"}
    for kind in (found, disk):
        kind |= {key: kind[key].rpartition("/")[2] for key in ("machineType", "diskType") if key in kind}
    for gpu in found.get("guestAccelerators", []):
        gpu["acceleratorType"] = gpu["acceleratorType"].rpartition("/")[2]
    return found


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Convert 64-bit numbers, which are strings on the wire."""
    whole = ("seconds", "diskSizeGb")
    return {key: int(one) if key in whole else one for key, one in value.items()}


def keys_of(properties: Any) -> set[str]:
    return {one["key"] for one in properties["metadata"]["items"]}


def test_a_reservation_that_must_be_named() -> None:
    fleet = FLEETS["an open reservation"]
    args: Any = {
        "region": REGION,
        "machine_type": fleet.machine_type,
        "accelerator": fleet.accelerator,
        "market": "reservation",
        "reservation": "projects/p-1/reservations/r",
        "image": IMAGE,
        "user_data": "#!/bin/sh\n",
        "network": NETWORK,
        "subnetwork": SUBNETWORK,
        "service_account": MACHINE,
    }
    registered = run_strict(lambda: GpuFleet("big", args) and None)
    wire = instance_properties(only(registered, TEMPLATE).inputs)
    reservation = Reservation("projects/p-1/reservations/r", "us-central1-a", by_name_only=True, ends_machines=False)
    assert wire["reservationAffinity"] == launched_as(fleet, reservation)["reservationAffinity"]
    assert wire["reservationAffinity"]["consumeReservationType"] == "SPECIFIC_RESERVATION"


# --- fleets -----------------------------------------------------------------------------------------------------------


def test_a_fleet_is_exported_as_the_control_side_reads_it() -> None:
    outputs = FleetOutputs.from_json(exports(of_fleet())["cloudgpu"])
    assert (outputs.name, outputs.size, outputs.template_hash) == ("big", 3, FLEET.template_hash)
    assert outputs.template and outputs.group and outputs.fleet_dir == "gs://b/jobs/fleets/big"


def test_machines_are_labelled_and_carry_the_fleets_script() -> None:
    wire = instance_properties(only(of_fleet(), TEMPLATE).inputs)
    labels = {"cloudgpu-owner": "cloudgpu-me__40here", "cloudgpu-stack": "cluster-big", "cloudgpu-fleet": "big"}
    assert wire["labels"] == wire["disks"][0]["initializeParams"]["labels"] == labels
    assert {"key": "startup-script", "value": "#!/bin/sh\n"} in wire["metadata"]["items"]
    assert wire["tags"]["items"] == ["cloudgpu", "cloudgpu-fleet-big"]


def test_another_time_to_expire_replaces_no_machine() -> None:
    def made(expires: float | None) -> tuple[Any, Any]:
        registered = of_fleet(expires=expires)
        return only(registered, TEMPLATE).inputs, only(registered, GROUP).inputs

    (template, group), (later, group_later), (never, group_never) = made(2e9), made(2e9 + 3_600), made(None)
    assert template == later == never
    ports = [one.pop("namedPorts")[0]["name"] for one in (group, group_later, group_never)]
    assert ports == ["cloudgpu-expires-2000000000", "cloudgpu-expires-2000003600", "cloudgpu-expires-never"]
    assert group == group_later == group_never
    assert "namedPorts" not in next(one.replaces for one in KINDS if one.type == GROUP)


def test_both_groups_of_a_mixed_fleet_expire() -> None:
    groups = [one for one in of_fleet(changed(market="spot", on_demand=1)) if one.type == GROUP]
    assert [one.inputs["namedPorts"][0]["name"] for one in groups] == ["cloudgpu-expires-2000000000"] * 2


def test_a_group_repairs_and_replaces_without_waiting() -> None:
    group = only(of_fleet(changed(zones=("us-central1-a", "us-central1-b"))), GROUP)
    assert group.inputs["baseInstanceName"].startswith("cloudgpu-"), "machines may delete none that is called otherwise"
    assert group.inputs["targetSize"] == 3
    assert group.inputs["distributionPolicyZones"] == ["us-central1-a", "us-central1-b"]
    assert group.inputs["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "REPAIR"}
    assert "autoHealingPolicies" not in group.inputs, "a health check would take an open port"
    assert group.inputs["waitForInstances"] is False
    policy = group.inputs["updatePolicy"]
    assert (policy["type"], policy["minimalAction"]) == ("PROACTIVE", "REPLACE")
    assert (policy["maxSurgeFixed"], policy["maxUnavailableFixed"]) == (0, 2)
    assert group.delete_before_replace, "there is one of a name"


def test_what_is_not_healed_stays_gone() -> None:
    group = only(of_fleet(changed(heal=False)), GROUP)
    assert group.inputs["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}


def test_peers_are_close_to_each_other_and_reach_each_other() -> None:
    registered = of_fleet(changed(peers=True))
    assert only(registered, GROUP).inputs["distributionPolicyTargetShape"] == "ANY_SINGLE_ZONE"
    placement = only(registered, PLACEMENT)
    assert placement.inputs["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
    assert only(registered, TEMPLATE).inputs["resourcePolicies"] == placement.outputs["selfLink"]
    rule = only(registered, FIREWALL).inputs
    assert rule["sourceTags"] == rule["targetTags"] == ["cloudgpu-fleet-big"]
    assert rule["priority"] < 100 and "sourceRanges" not in rule


def test_peers_of_a_type_that_takes_no_placement_are_in_one_zone() -> None:
    registered = of_fleet(changed(peers=True, machine_type="n1-standard-8", accelerator="T4"))
    assert not [one for one in registered if one.type == PLACEMENT]
    assert only(registered, GROUP).inputs["distributionPolicyTargetShape"] == "ANY_SINGLE_ZONE"


def test_a_mixed_fleet_is_two_groups() -> None:
    registered = of_fleet(changed(market="spot", on_demand=1))
    base, spot = only(registered, GROUP, "big-base-group"), only(registered, GROUP, "big-group")
    assert (base.inputs["targetSize"], spot.inputs["targetSize"]) == (1, 2)
    models = [
        instance_properties(only(registered, TEMPLATE, name).inputs)["scheduling"]["provisioningModel"]
        for name in ("big-base-template", "big-template")
    ]
    assert models == ["STANDARD", "SPOT"]
    assert exports(registered)["cloudgpu"]["group"] == spot.outputs["selfLink"]
    assert exports(registered)["cloudgpu"]["size"] == 3


def test_fewer_machines_than_are_bought_on_demand() -> None:
    registered = of_fleet(changed(market="spot", on_demand=2, size=1))
    groups = [only(registered, GROUP, name).inputs["targetSize"] for name in ("big-base-group", "big-group")]
    assert groups == [1, 0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"market": "flex-start"}, "cannot be of market flex-start"),
        ({"market": "spot", "on_demand": 1, "peers": True}, "name one zone"),
        ({"machine_type": "n1-standard-8", "accelerator": "T4", "gpus": "1/2"}, "cannot have 1/2"),
    ],
)
def test_what_cannot_be_a_fleet_is_said_before_anything_is_made(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        of_fleet(changed(**changes))


def test_a_fleet_with_the_longest_name_there_is() -> None:
    fleet = changed(name="a" * 63, market="spot", on_demand=1)
    registered = run_strict(lambda: fleet_program(settings(fleet)), stack="cluster-" + "a" * 63)
    for group in (one for one in registered if one.type == GROUP):
        assert len(group.inputs["baseInstanceName"]) <= 58
    for template in (one for one in registered if one.type == TEMPLATE):
        assert len(template.inputs["namePrefix"]) <= 54


def test_another_size_is_no_other_template() -> None:
    one, other = (only(of_fleet(changed(size=size)), TEMPLATE).inputs for size in (1, 5))
    assert one == other
    assert one != only(of_fleet(changed(disk_gb=200)), TEMPLATE).inputs


# --- components -------------------------------------------------------------------------------------------------------


def test_a_cluster_is_all_that_a_fleet_needs() -> None:
    args: Any = {
        "project": PROJECT,
        "region": REGION,
        "machine_type": "g2-standard-8",
        "accelerator": "L4",
        "size": 2,
        "bucket": "my-bucket",
        "image": IMAGE,
        "user_data": "#!/bin/sh\n",
        "labels": {"team": "vision"},
    }
    registered = run_strict(lambda: pulumi.export("group", GpuCluster("big", args).group))
    assert only(registered, GROUP).inputs["targetSize"] == 2
    wire = instance_properties(only(registered, TEMPLATE).inputs)
    own = {"cloudgpu-owner": "cloudgpu-cloudgpu-test", "cloudgpu-stack": "test", "cloudgpu-fleet": "big"}
    assert wire["labels"] == {"team": "vision", **own}
    assert only(registered, BUCKET).inputs["labels"]["team"] == "vision"
    email = only(registered, "gcp:serviceaccount/account:Account").outputs["email"]
    assert wire["serviceAccounts"][0]["email"] == email
    assert not [one for one in registered if one.name.endswith("-within")], "more machines are not peers by themselves"


def test_a_cluster_in_an_existing_bucket() -> None:
    args: Any = {
        "project": PROJECT,
        "region": REGION,
        "machine_type": "g2-standard-8",
        "size": 1,
        "existing_bucket": "theirs",
        "image": IMAGE,
        "user_data": "#!/bin/sh\n",
    }
    registered = run_strict(lambda: pulumi.export("job_dir", GpuCluster("big", args).job_dir))
    assert exports(registered)["job_dir"] == "gs://theirs/jobs"
    assert not [one for one in registered if one.type == BUCKET]
    assert only(registered, MEMBER).inputs["bucket"] == "theirs"


def test_every_component_is_of_the_token_that_is_fixed_for_ever() -> None:
    registered = run_strict(lambda: infra_program(INFRA)) + of_fleet()
    assert {one.type for one in registered if not one.custom and one.type.startswith("cloudgpu-")} == {
        f"cloudgpu-gcp:index:{name}" for name in ("GpuNetwork", "JobBucket", "MachineRole", "OrphanReaper", "GpuFleet")
    }


def test_all_that_a_component_makes_is_its_child_and_of_its_provider() -> None:
    def program() -> None:
        import pulumi_gcp

        other = pulumi_gcp.Provider("other", project="other-project")
        options = pulumi.ResourceOptions(providers={"gcp": other})
        JobBucket("jobs", {"region": REGION, "bucket": "b"}, options)
        GpuNetwork("net", {"region": REGION}, options)

    registered = run_strict(program)
    made = [one for one in registered if one.custom and one.type.startswith("gcp:")]
    parents = {one.urn: one.type for one in registered}
    assert made and all(parents[one.parent].startswith("cloudgpu-gcp:index:") for one in made)
    assert all("other" in one.provider for one in made)
    assert all(one.name.startswith(("jobs-", "net-")) for one in made)


# --- the reaper -------------------------------------------------------------------------------------------------------


def test_the_reaper_runs_a_workflow_on_a_schedule_with_just_these_rights() -> None:
    registered = run_strict(lambda: infra_program(INFRA))
    workflow = only(registered, "gcp:workflows/workflow:Workflow")
    job = only(registered, "gcp:cloudscheduler/job:Job").inputs
    assert job["schedule"] == "*/30 * * * *" and job["timeZone"] == "Etc/UTC"
    assert job["httpTarget"]["uri"].startswith("https://workflowexecutions.googleapis.com/v1/")
    email = only(registered, "gcp:serviceaccount/account:Account", "reaper-account").outputs["email"]
    assert job["httpTarget"]["oauthToken"] == {"serviceAccountEmail": email}
    assert workflow.inputs["serviceAccount"] == email
    given = {}
    for one in registered:
        if one.type == GRANT and one.name.startswith("reaper-") and one.name != "reaper-run":
            for permission in only(registered, ROLE, f"{one.name}-role").inputs["permissions"]:
                given[permission] = (one.inputs.get("condition") or {}).get("expression", "")
    of_no_machine = ("compute.instances.list", "compute.instanceGroupManagers.list", "logging.logEntries.create")
    assert set(given) == {"compute.instanceGroupManagers.update", "compute.instances.delete", *of_no_machine}
    assert {given.pop(one) for one in of_no_machine} == {""}
    assert all('startsWith("cloudgpu-")' in condition for condition in given.values())


STEP = {"assign", "call", "args", "result", "switch", "for", "try", "except", "retry", "next", "return", "raise"}
CALLS = {"http.get", "http.post", "http.delete", "sys.log"}


def test_the_workflow_is_one_by_its_structure() -> None:
    """Source: Workflows' syntax reference. The workflow has not run at Google."""
    registered = run_strict(lambda: infra_program(INFRA))
    workflow = yaml.safe_load(only(registered, "gcp:workflows/workflow:Workflow").inputs["sourceContents"])
    assert set(workflow) == {"main", "end_all", "end_if_expired", "empty_group", "end_machine"}
    for name, part in workflow.items():
        assert set(part) <= {"params", "steps"}
        names = check_steps(part["steps"], set(workflow))
        assert len(names) == len(set(names)), f"{name}: names of steps are unique"
        assert set(jumps(part["steps"])) <= {*names, "end"}


def check_steps(steps: Sequence[Any], functions: set[str]) -> list[str]:
    names = []
    for one in steps:
        [(name, step)] = one.items()
        assert set(step) <= STEP, (name, set(step) - STEP)
        if "call" in step:
            assert step["call"] in CALLS | functions, step["call"]
        names.append(name)
        for inner in (step.get("for", {}), step.get("except", {})):
            names += check_steps(inner.get("steps", []), functions)
    return names


def jumps(steps: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the steps that `next` jumps to."""
    for one in steps:
        [step] = one.values()
        yield from (case["next"] for case in (step, *step.get("switch", [])) if "next" in case)
        yield from jumps(step.get("for", {}).get("steps", []))


# --- the example ------------------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "pulumi" / "gcp"


def test_the_example_is_a_program_that_registers_what_its_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_for("g2-standard-4", gpu=True).family
    given = {"gcp:project": PROJECT, "gcp:region": REGION, "cloudgpu:image": "images/i", "cloudgpu:expires": "2e9"}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(given))
    registered = run_strict(lambda: runpy.run_path(str(EXAMPLE / "__main__.py")))
    properties = instance_properties(only(registered, TEMPLATE).inputs)
    assert properties["machineType"] == "g2-standard-4" and properties["scheduling"]["provisioningModel"] == "SPOT"
    assert properties["disks"][0]["initializeParams"]["sourceImage"] == "images/i"
    assert family in (EXAMPLE / "README.md").read_text(), "as launches boot"
    assert "cloudgpu-expires-2000000000" in str(only(registered, GROUP).inputs["namedPorts"])
    assert only(registered, BUCKET).protect
    assert set(exports(registered)) == {"group", "job_dir"}
    config = yaml.safe_load((EXAMPLE / "Pulumi.yaml").read_text())["config"]
    assert properties["machineType"] == config["machineType"]["default"]
