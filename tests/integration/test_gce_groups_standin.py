"""Tests of managed instance groups of the Compute Engine stand-in with Google's own client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1 as cv
from google.oauth2 import service_account

from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import PROJECT, SUBMITTER, Gcp

REGION, ZONES = "us-central1", ("us-central1-a", "us-central1-b")
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
ALL = "https://www.googleapis.com/auth/cloud-platform"
TYPE = "n1-standard-4"


class Region:
    """Google's clients for the stand-in, and the group that the tests create."""

    def __init__(self, gcp: Gcp, folder: Path) -> None:
        self.control = GceControl(gcp.url)
        key = self.control.key_file(SUBMITTER, folder / "key.json")
        credentials = service_account.Credentials.from_service_account_file(str(key), scopes=[ALL])  # type: ignore[no-untyped-call]
        options: dict[str, Any] = {"credentials": credentials, "client_options": {"api_endpoint": gcp.url}}
        self.templates = cv.InstanceTemplatesClient(**options)
        self.groups = cv.RegionInstanceGroupManagersClient(**options)
        self.instances = cv.InstancesClient(**options)
        self.networks = cv.NetworksClient(**options)

    def template(self, name: str, **more: Any) -> str:
        properties = {
            "machine_type": TYPE,
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": {"source_image": IMAGE}}],
            "network_interfaces": [{"network": "global/networks/default"}],
            **more,
        }
        made = cv.InstanceTemplate(name=name, properties=cv.InstanceProperties(properties))
        self.templates.insert_unary(project=PROJECT, instance_template_resource=made)
        return f"projects/{PROJECT}/global/instanceTemplates/{name}"

    def group(self, template: str, size: int = 2, zones: tuple[str, ...] = ZONES, **more: Any) -> None:
        made = cv.InstanceGroupManager(
            {
                "name": "g",
                "base_instance_name": "g",
                "target_size": size,
                "versions": [{"instance_template": template}],
                "distribution_policy": {"zones": [{"zone": f"zones/{zone}"} for zone in zones]},
                **more,
            }
        )
        request: dict[str, Any] = {"project": PROJECT, "region": REGION, "instance_group_manager_resource": made}
        self.groups.insert_unary(**request, retry=None, timeout=180)

    def change(self, **changes: Any) -> None:
        body = cv.InstanceGroupManager(changes)
        named: dict[str, Any] = {"project": PROJECT, "region": REGION, "instance_group_manager": "g"}
        self.groups.patch_unary(**named, instance_group_manager_resource=body, retry=None, timeout=180)

    def get(self) -> cv.InstanceGroupManager:
        return self.groups.get(project=PROJECT, region=REGION, instance_group_manager="g")

    def running(self) -> dict[str, dict[str, Any]]:
        found = self.control.resources("instances")
        return {str(one["name"]): one for one in found if one["status"] == "RUNNING"}

    def delete(self, name: str) -> None:
        zone = self.running()[name]["zone"].rpartition("/")[2]
        self.instances.delete_unary(project=PROJECT, zone=zone, instance=name)


@pytest.fixture
def region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Region]:
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path / "keys").items():
            monkeypatch.setenv(name, value)
        yield Region(gcp, tmp_path)


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < until, "too late"
        time.sleep(0.02)


def test_what_is_gone_is_made_anew_under_its_name_in_its_zone(region: Region) -> None:
    region.group(region.template("t"))
    wait(lambda: len(region.running()) == 2)
    name, before = next(iter(region.running().items()))
    items = {one["key"]: one["value"] for one in before["metadata"]["items"]}
    assert items["created-by"].endswith(f"/regions/{REGION}/instanceGroupManagers/g")
    region.delete(name)
    wait(lambda: region.running().get(name, before)["id"] != before["id"])
    assert region.running()[name]["zone"] == before["zone"]
    wait(lambda: region.get().status.is_stable)


def test_what_is_not_repaired_stays_gone(region: Region) -> None:
    region.group(region.template("t"), instance_lifecycle_policy={"default_action_on_failure": "DO_NOTHING"})
    wait(lambda: len(region.running()) == 2)
    region.delete(next(iter(region.running())))
    wait(lambda: len(region.running()) == 1)
    time.sleep(0.5)
    assert len(region.running()) == 1 and region.get().target_size == 2


def test_a_new_template_comes_to_as_many_at_once_as_may_be_unavailable(region: Region) -> None:
    policy = {"type_": "PROACTIVE", "minimal_action": "REPLACE"}
    limits = {"max_surge": {"fixed": 0}, "max_unavailable": {"fixed": 2}}
    region.group(region.template("t"), 6, update_policy={**policy, **limits})
    wait(lambda: len(region.running()) == 6)
    old, least = set(region.running()), 6
    region.control.set_times(operation=0.2)
    region.change(versions=[{"instance_template": region.template("u", labels={"new": "yes"})}])
    until = time.monotonic() + 180
    while not (len(region.running()) == 6 and not old & set(region.running())):
        least = min(least, len(region.running()))
        assert time.monotonic() < until
        time.sleep(0.01)
    assert least >= 4, "two at a time"
    assert all(one["labels"] == {"new": "yes"} for one in region.running().values())
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        region.templates.delete_unary(project=PROJECT, instance_template="u", retry=None)
    region.templates.delete_unary(project=PROJECT, instance_template="t", retry=None)


def test_a_zone_without_room_is_passed_over_and_one_zone_is_kept_to(region: Region) -> None:
    region.control.set_capacity(TYPE, ZONES[0], "on-demand", 0)
    none = {"instance_redistribution_type": "NONE"}
    zones = [{"zone": f"zones/{zone}"} for zone in ZONES]
    shape = {"target_shape": "ANY_SINGLE_ZONE", "zones": zones}
    region.group(region.template("t"), 3, update_policy=none, distribution_policy=shape)
    wait(lambda: len(region.running()) == 3)
    assert {one["zone"].rpartition("/")[2] for one in region.running().values()} == {ZONES[1]}


def test_a_machine_that_leaves_shrinks_the_group(region: Region) -> None:
    region.group(region.template("t"))
    wait(lambda: len(region.running()) == 2)
    leaver = next(iter(region.running().values()))
    request = cv.RegionInstanceGroupManagersDeleteInstancesRequest(instances=[leaver["selfLink"]])
    named: dict[str, Any] = {"project": PROJECT, "region": REGION, "instance_group_manager": "g"}
    region.groups.delete_instances_unary(
        **named, region_instance_group_managers_delete_instances_request_resource=request
    )
    wait(lambda: len(region.running()) == 1)
    assert region.get().target_size == 1
    region.groups.resize_unary(**named, size=0)
    wait(lambda: not region.control.resources("instances"))
    region.groups.delete_unary(**named)
    wait(lambda: not region.control.resources("regionInstanceGroupManagers"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"update_policy": {"max_surge": {"fixed": 1}}}, "either 0 or at least 2"),
        ({"update_policy": {"max_surge": {"fixed": 0}, "max_unavailable": {"fixed": 0}}}, "cannot both be 0"),
        ({"distribution_policy": {"target_shape": "ANY"}}, "redistribution must be off"),
        ({"base_instance_name": "g" * 59}, "58 characters"),
        ({"target_size": 1_001}, "between 0 and 1000"),
        ({"zones": ("europe-west4-a",)}, "not all in us-central1"),
    ],
)
def test_what_is_refused(region: Region, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=says):
        region.group(region.template("t"), **changes)


def test_a_group_of_a_template_that_is_not_there(region: Region) -> None:
    with pytest.raises(exceptions.NotFound):
        region.group(f"projects/{PROJECT}/global/instanceTemplates/none")
