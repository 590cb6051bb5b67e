"""Stacks on Google Cloud, from creation to teardown: Automation API, engine, provider and the cloud's stand-in.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. The provider is a stand-in
for both.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp
import pytest

from cloudgpu.infra.engine.automation import ProgressCallbacks, Stack, opened
from cloudgpu.infra.engine.backend import backend_of
from cloudgpu.infra.engine.executable import find
from cloudgpu.infra.errors import InfraError
from cloudgpu.infra.gcp import GpuCluster, GpuClusterArgs, MachineRole, MachineRoleArgs
from cloudgpu.infra.gcp.programs import fleet_program, infra_program
from cloudgpu.infra.settings import FleetOutputs, FleetSettings, InfraSettings
from cloudgpu.jobspecs.fleets import FleetSpec
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure
from cloudgpu.provisioners.stacks.fleet_queries import account_of, image_of
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import PROJECT, Gcp
from cloudgpu.tests.standins.gcs.control import GcsControl
from cloudgpu.tests.standins.pulumi import gcp as gcp_provider
from cloudgpu.tests.standins.pulumi.engines import Engine, engine
from cloudgpu.tests.standins.pulumi.provider import Provider

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.timeout(600)

REGION = "us-central1"
ANN = "user:ann@example.com"
TIMEOUT_S = 180.0
INFRA = InfraSettings("gcp", REGION, "infra-gcp-us-central1", "cloudgpu-me@here", account=PROJECT)
FLEET = FleetSpec(
    name="big",
    cloud="gcp",
    region=REGION,
    zones=("us-central1-a", "us-central1-b"),
    machine_type="g2-standard-4",
    accelerator="L4",
    gpus="1",
    size=2,
)
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"


class Desk:
    """Brings stacks up and down, and inspects the cloud that they are in."""

    def __init__(self, gcp: Gcp, provider: Provider) -> None:
        self.gce, self.gcs, self.cloud = GceControl(gcp.url), GcsControl(gcp.url), gcp.control
        self.provider = provider

    @contextlib.contextmanager
    def stack(self, name: str) -> Iterator[Stack]:
        found = find()
        assert found is not None
        with opened(name, backend_of(None, os.environ), found, ProgressCallbacks(), os.environ) as stack:
            yield stack

    def infra_up(self, settings: InfraSettings = INFRA) -> Infrastructure:
        with self.stack(settings.stack) as stack:
            return Infrastructure.from_json(stack.up(lambda: infra_program(settings))["cloudgpu"])

    def settings(self, fleet: FleetSpec) -> FleetSettings:
        stands = Infrastructure(
            "gcp",
            REGION,
            "infra",
            "cloudgpu-me@here",
            network="default",
            subnets={"": f"projects/{PROJECT}/regions/{REGION}/subnetworks/default"},
            machine_role=f"cloudgpu-machine@{PROJECT}.iam.gserviceaccount.com",
            job_dir="gs://b/jobs",
        )
        return FleetSettings(
            "cluster-big",
            "cloudgpu-me@here",
            fleet,
            stands,
            user_data="#!/bin/sh\n",
            image=IMAGE,
            fleet_dir="gs://b/jobs/fleets/big",
            account=PROJECT,
            expires=2_000_000_000.0,
        )

    def machines(self) -> list[dict[str, Any]]:
        return sorted(self.gce.resources("instances"), key=lambda one: str(one["name"]))

    def running(self) -> list[str]:
        return [one["name"] for one in self.machines() if one["status"] == "RUNNING"]


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until, "too late"
        time.sleep(0.05)


@pytest.fixture
def desk(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with Gcp() as gcp:
        for name, value in {**gcp.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        provider = gcp_provider.provider()
        engine.attach(provider)
        yield Desk(gcp, provider)


def changes(stack: Stack, program: Callable[[], None]) -> list[str]:
    return sorted({change.op for change in stack.preview(program)})


# --- infra ------------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_infra_from_creation_to_teardown(desk: Desk) -> None:
    outputs = desk.infra_up()
    assert outputs.network == "cloudgpu-us-central1"
    assert outputs.subnets[""].endswith("/regions/us-central1/subnetworks/cloudgpu-us-central1")
    assert outputs.machine_role == f"cloudgpu-us-central1@{PROJECT}.iam.gserviceaccount.com"
    bucket = outputs.job_dir.removeprefix("gs://").removesuffix("/jobs")
    assert {"cloudgpu-us-central1", "default"} == {one["name"] for one in desk.gce.resources("networks")}
    [rule] = desk.gce.resources("firewalls")
    assert rule["denied"] == [{"IPProtocol": "all"}] and rule["name"] == "cloudgpu-closed-cloudgpu-us-central1"
    policies = desk.cloud.do("cloudresourcemanager/policies")[PROJECT]["bindings"]
    own = [one for one in policies if f"serviceAccount:{outputs.machine_role}" in one["members"]]
    assert len(own) == 2 and all("cloudgpu-" in one["condition"]["expression"] for one in own)
    [workflow] = desk.cloud.do("workflows/resources")
    assert workflow["labels"]["cloudgpu-stack"] == INFRA.stack
    assert desk.gcs.do("storage/bucket", name=bucket)["iamConfiguration"]["publicAccessPrevention"] == "enforced"

    with desk.stack(INFRA.stack) as stack:
        stack.recover()
        assert changes(stack, lambda: infra_program(INFRA)) == ["same"]
        left = stack.down(keep_protected=True)
    assert {one.name for one in left.resources if one.protected} == {"bucket-bucket"}
    assert desk.gce.resources("firewalls") == [] and [one["name"] for one in desk.gce.resources("networks")] == [
        "default"
    ]
    assert desk.cloud.do("iam/resources") == [] or all(one.get("deleted") for one in desk.cloud.do("iam/resources"))
    assert desk.cloud.do("cloudresourcemanager/policies") == {}
    assert desk.gcs.objects(bucket) == {}, "the bucket is there"

    again = desk.infra_up(replace(INFRA, protect=False))
    assert again.machine_role == outputs.machine_role, "its roles were deleted, and are had back"
    with desk.stack(INFRA.stack) as stack:
        assert not stack.down(keep_protected=False).resources
    for collection in ("cloudscheduler", "workflows"):
        assert desk.cloud.do(f"{collection}/resources") == []
    with pytest.raises(AssertionError):
        desk.gcs.objects(bucket)


# --- fleets -----------------------------------------------------------------------------------------------------------


@pytest.mark.on_engine
def test_a_fleet_from_nothing_to_nothing(desk: Desk) -> None:
    settings = desk.settings(FLEET)

    def up(fleet: FleetSpec) -> FleetOutputs:
        with desk.stack("cluster-big") as stack:
            stack.recover()
            made = stack.up(lambda: fleet_program(replace(settings, fleet=fleet)))
            return FleetOutputs.from_json(made["cloudgpu"])

    outputs = up(FLEET)
    assert (outputs.size, outputs.template_hash) == (2, FLEET.template_hash)
    wait(lambda: len(desk.running()) == 2)
    for one in desk.machines():
        assert one["labels"] == {
            "cloudgpu-owner": "cloudgpu-me__40here",
            "cloudgpu-stack": "cluster-big",
            "cloudgpu-fleet": "big",
        }
        assert (
            one["scheduling"]["onHostMaintenance"] == "TERMINATE" and "accessConfigs" not in one["networkInterfaces"][0]
        )
    first = desk.running()

    with desk.stack("cluster-big") as stack:
        stack.recover()
        assert changes(stack, lambda: fleet_program(settings)) == ["same"]
    [group] = desk.gce.resources("regionInstanceGroupManagers")
    assert [one["name"] for one in group["namedPorts"]] == ["cloudgpu-expires-2000000000"]
    settings = replace(settings, expires=2_000_003_600.0)
    with desk.stack("cluster-big") as stack:
        assert changes(stack, lambda: fleet_program(settings)) == ["same", "update"]
    up(FLEET)
    settings = replace(settings, expires=None)
    up(FLEET)
    [group] = desk.gce.resources("regionInstanceGroupManagers")
    assert [one["name"] for one in group["namedPorts"]] == ["cloudgpu-expires-never"]
    assert desk.running() == first, "nobody is replaced by another time to expire"
    up(FLEET.model_copy(update={"size": 4}))
    wait(lambda: len(desk.running()) == 4)
    assert set(first) <= set(desk.running()), "nobody is replaced by more"
    up(FLEET)
    wait(lambda: len(desk.machines()) == 2)

    # A machine is deleted by hand: the group replaces it.
    gone = desk.running()[0]
    ids = {one["id"] for one in desk.machines()}
    zone = next(one["zone"] for one in desk.machines() if one["name"] == gone).rpartition("/")[2]
    desk.provider.cloud.ordered("DELETE", desk.provider.cloud.compute(f"zones/{zone}", "instances", gone))
    wait(lambda: len(desk.running()) == 2 and {one["id"] for one in desk.machines()} != ids)

    # A changed template replaces all machines, as many at once as there are zones, and deletes the old template.
    before = set(desk.running())
    changed = FLEET.model_copy(update={"disk_gb": 200.0})
    assert up(changed).template != outputs.template
    wait(lambda: len(desk.machines()) == 2 == len(desk.running()) and not before & set(desk.running()))
    assert {one["disks"][0]["diskSizeGb"] for one in desk.machines()} == {"200"}
    assert len(desk.gce.resources("instanceTemplates")) == 1

    # A machine leaves by itself: the group stays smaller until the next `up`.
    leaver = next(one for one in desk.machines())
    path = outputs.group[outputs.group.index("/projects/") :]
    body = {"instances": [leaver["selfLink"]]}
    desk.provider.cloud.ordered("POST", f"/compute/v1{path}/deleteInstances", body)
    wait(lambda: len(desk.machines()) == 1)
    up(changed)
    wait(lambda: len(desk.running()) == 2)

    with desk.stack("cluster-big") as stack:
        assert stack.down(keep_protected=False).resources == ()
    for collection in ("instances", "disks", "instanceTemplates", "regionInstanceGroupManagers", "firewalls"):
        assert desk.gce.resources(collection) == [], collection


def test_a_disk_that_the_image_does_not_fit_on_is_said_before_anything_is_made(desk: Desk) -> None:
    assert image_of(FLEET).startswith("https://") and "/images/common-cu129" in image_of(FLEET)
    with pytest.raises(ProvisionError, match="write disk: 50GB"):
        image_of(FLEET.model_copy(update={"disk_gb": 20.0}))
    assert account_of("gcp", REGION) == PROJECT


def test_a_zone_without_room_and_a_failure_in_the_middle(desk: Desk) -> None:
    peers = FLEET.model_copy(update={"market": "spot", "on_demand": 1, "size": 3})
    settings = desk.settings(peers)
    desk.gce.set_capacity("g2-standard-4", "us-central1-a", "spot", 0)
    desk.cloud.fail("regionInstanceGroupManagers.insert", error("quotaExceeded", 403, "Quota exceeded"), times=1)
    with desk.stack("cluster-big") as stack, pytest.raises(InfraError, match="Quota exceeded"):
        stack.up(lambda: fleet_program(settings))
    with desk.stack("cluster-big") as stack:
        stack.recover()
        outputs = FleetOutputs.from_json(stack.up(lambda: fleet_program(settings))["cloudgpu"])
        assert outputs.size == 3 and outputs.group.endswith("/cloudgpu-fleet-big")
        wait(lambda: len(desk.running()) == 3)
        markets = sorted(one["scheduling"]["provisioningModel"] for one in desk.machines())
        assert markets == ["SPOT", "SPOT", "STANDARD"]
        zones = {
            one["zone"].rpartition("/")[2]
            for one in desk.machines()
            if one["scheduling"]["provisioningModel"] == "SPOT"
        }
        assert zones == {"us-central1-b"}
        assert len(desk.gce.resources("regionInstanceGroupManagers")) == 2, "what was made before the failure is used"
        stack.down(keep_protected=False)
    for collection in ("instances", "instanceTemplates", "regionInstanceGroupManagers", "resourcePolicies"):
        assert desk.gce.resources(collection) == [], collection


def test_a_cluster_component_of_peers_with_a_way_out(desk: Desk) -> None:
    """The component also has what cloudgpu's own stacks lack: Cloud NAT, users who may act as the machines, and a
    placement policy and a firewall rule for peers."""
    role: MachineRoleArgs = {"project": PROJECT, "account_id": "cloudgpu-ann", "bucket": "of-big", "users": [ANN]}

    def program(size: int) -> None:
        args: GpuClusterArgs = {
            "project": PROJECT,
            "region": REGION,
            "machine_type": "g2-standard-4",
            "accelerator": "L4",
            "size": size,
            "peers": True,
            "market": "spot",
            "bucket": "of-big",
            "protect": False,
            "nat": True,
            "image": IMAGE,
            "user_data": "#!/bin/sh\n",
        }
        google = pulumi.ResourceOptions(
            providers={"gcp": pulumi_gcp.Provider("google", project=PROJECT, region=REGION)}
        )
        cluster = GpuCluster("big", args, google)
        google.depends_on = [cluster]
        MachineRole("ann", role, google)

    with desk.stack("mine") as stack:
        stack.up(lambda: program(2))
        wait(lambda: len(desk.running()) == 2)
        [policy] = desk.gce.resources("resourcePolicies")
        assert policy["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
        machines = desk.machines()
        assert len({one["zone"] for one in machines}) == 1, "in one zone"
        assert all(one["resourcePolicies"] == [policy["name"]] for one in machines)
        rules = {one["name"]: one for one in desk.gce.resources("firewalls")}
        within = rules["cloudgpu-fleet-big"]
        assert within["sourceTags"] == within["targetTags"] and within["network"].endswith("/cloudgpu-big")
        [router] = desk.gce.resources("routers")
        assert router["nats"][0]["natIpAllocateOption"] == "AUTO_ONLY"
        [binding] = desk.cloud.do("iam/policies").popitem()[1]["bindings"]
        assert (binding["role"], binding["members"]) == ("roles/iam.serviceAccountUser", [ANN])
        stack.down(keep_protected=False)
    for collection in ("instances", "instanceTemplates", "resourcePolicies", "firewalls", "routers"):
        assert desk.gce.resources(collection) == [], collection
    assert [one["name"] for one in desk.gce.resources("networks")] == ["default"]
    assert desk.cloud.do("iam/policies") == {}
