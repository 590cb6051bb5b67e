"""`cloudgpu gc` on Compute Engine: finds and removes one leak of each kind without local state, and keeps the resources
of other owners."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google.auth
import pytest
from google.cloud import compute_v1

from cloudgpu.control.submit.submission import owner_name
from cloudgpu.provisioners import ProvisionError, tagged_resources
from cloudgpu.provisioners.gcp.clients import Clients
from cloudgpu.provisioners.gcp.labels import launch_name, to_description, to_labels
from cloudgpu.provisioners.gcp.lifecycle import gc
from cloudgpu.provisioners.shared import tags
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML, LOSE, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import Gcp

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGION, ZONE = "us-central1", "us-central1-a"
TOKEN = "0123456789abcdef" * 2
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"


class Project:
    """The stand-in's project: control API and Google's clients."""

    def __init__(self, url: str) -> None:
        self.control = GceControl(url)
        self._credentials, self._id = google.auth.default()
        self._count = 0

    def client(self, kind: str) -> Any:
        return getattr(compute_v1, kind)(
            credentials=self._credentials, client_options={"api_endpoint": self.control.url}
        )

    def labels(self, owner: str | None = None, expires: float | None = None, token: str = TOKEN) -> dict[str, str]:
        values = {
            tags.OWNER: owner or owner_name(),
            tags.JOB: "ghost-abcdefgh",
            tags.ATTEMPT: "2",
            tags.TOKEN: token,
            **({} if expires is None else {tags.EXPIRES: str(int(expires))}),
        }
        return {key: value for key, value in values.items() if value}

    def make_instance(self, zone: str = ZONE, *, with_disk: bool = True, **changes: Any) -> str:
        """Make an instance with a T4 and a labelled disk; `with_disk`: the disk is deleted with the instance."""
        self._count += 1
        name, labels = f"cloudgpu-leak-{self._count}", to_labels(self.labels(**changes))
        instance = {
            "name": name,
            "machine_type": f"zones/{zone}/machineTypes/n1-standard-4",
            "labels": labels,
            "disks": [
                {
                    "boot": True,
                    "auto_delete": with_disk,
                    "initialize_params": {"source_image": IMAGE, "disk_size_gb": 100, "labels": labels},
                }
            ],
            "network_interfaces": [{"network": "global/networks/default"}],
            "guest_accelerators": [
                {"accelerator_type": f"zones/{zone}/acceleratorTypes/nvidia-tesla-t4", "accelerator_count": 1}
            ],
            "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": False},
        }
        self._do("InstancesClient", "insert_unary", zone=zone, instance_resource=compute_v1.Instance(instance))
        return name

    def make_disk(self, zone: str = ZONE, **changes: Any) -> None:
        """Make an instance and delete it, so that its disk stays behind."""
        name = self.make_instance(zone, with_disk=False, **changes)
        self._do("InstancesClient", "delete_unary", zone=zone, instance=name)

    def make_rule(self, **changes: Any) -> None:
        labels = self.labels(**changes)
        rule = {
            "name": launch_name(labels[tags.TOKEN]),
            "description": to_description(labels),
            "network": "global/networks/default",
            "source_tags": ["cloudgpu"],
            "allowed": [{"I_p_protocol": "all"}],
        }
        self._do("FirewallsClient", "insert_unary", firewall_resource=compute_v1.Firewall(rule))

    def left(self) -> set[tuple[str, str]]:
        kinds = ("instances", "disks", "firewalls")
        found = {(kind, str(one["name"])) for kind in kinds for one in self.control.resources(kind)}
        return {(kind, name) for kind, name in found if name.startswith("cloudgpu-")}

    def _do(self, client: str, method: str, **arguments: Any) -> None:
        """Call the method and wait until its operation is done."""
        operation = getattr(self.client(client), method)(project=self._id, timeout=180, **arguments)
        until = time.monotonic() + 180
        while operation.status != compute_v1.Operation.Status.DONE:
            assert time.monotonic() < until
            if zone := arguments.get("zone"):
                waiter, where = self.client("ZoneOperationsClient"), {"zone": zone}
            else:
                waiter, where = self.client("GlobalOperationsClient"), {}
            operation = waiter.wait(project=self._id, operation=operation.name, timeout=180, **where)
        assert not operation.error.errors, operation.error


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def project(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    server.control.reset()
    settings = {**server.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return Project(server.url)


LEAKS: dict[str, Callable[[Project], object]] = {
    "instance": Project.make_instance,
    "disk": Project.make_disk,
    "firewall rule": Project.make_rule,
}


def run_gc(*arguments: str, regions: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    where = [word for region in regions for word in ("--region", region)]
    command = [CLOUDGPU, "gc", "--cloud", "gcp", *where, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert "Traceback" not in done.stderr
    return done


def found(*regions: str) -> list[tagged_resources.Leftover]:
    return gc.find(regions, Clients(FastClock())).leftovers


def remove(left: tagged_resources.Leftover) -> None:
    gc.remove(left, Clients(FastClock()))


def kinds(left: tagged_resources.Leftover) -> set[str]:
    return {thing.kind for thing in left.things}


def test_every_kind_that_can_be_removed_is_leaked_here() -> None:
    assert set(LEAKS) == set(gc._REMOVE)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_of_each_kind_is_found_and_removed(project: Project, kind: str) -> None:
    LEAKS[kind](project)
    [left] = found()
    assert kind in kinds(left)
    assert (left.owner, left.job_id, left.attempt, left.token) == (owner_name(), "ghost-abcdefgh", 2, TOKEN)
    remove(left)
    assert found() == []
    assert project.left() == set()
    remove(left)  # removing it again is a no-op


@pytest.mark.parametrize("kind", ["instance", "disk"])
def test_a_resource_without_a_token_is_removed_by_its_name(project: Project, kind: str) -> None:
    LEAKS[kind](project)
    [left] = found()
    one = next(thing for thing in left.things if thing.kind == kind)
    remove(tagged_resources.Leftover("gcp", left.owner, "", 0, "", None, (one,)))
    assert project.left() == set()


def test_all_that_a_launch_left_is_one_and_goes_in_one_command(project: Project) -> None:
    project.make_instance()
    project.make_disk("us-central1-b")
    project.make_rule()
    [one] = json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]
    assert {thing["kind"] for thing in one["things"]} == {"instance", "disk", "firewall rule"}
    assert (one["state"], one["removable"], one["regions"]) == ("orphaned", True, [REGION])
    refused = run_gc()
    assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    done = run_gc("--yes")
    assert done.returncode == 0, done.stderr
    assert "removed what was left of ghost-abcdefgh, attempt 2" in done.stderr
    assert project.left() == set()
    assert "nothing to do" in run_gc().stderr


def test_prices_ages_and_expiries_are_shown(project: Project) -> None:
    project.make_instance()
    project.make_disk(token="f" * 32, expires=time.time() + 7_170)
    machine, disk = sorted(found(), key=lambda left: left.token)
    assert machine.price is not None and 0.5 < machine.price < 0.6  # n1-standard-4, a T4, 100 GB
    assert disk.price is not None and 0 < disk.price < 0.05
    assert disk.created is not None and time.time() - disk.created < 600
    assert [thing.detail for thing in machine.things if thing.kind == "instance"] == [
        "n1-standard-4 on-demand, RUNNING"
    ]
    shown = run_gc("--dry-run").stdout
    assert "1h 59m" in shown or "1h 58m" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_resources_of_other_owners_are_removed_only_when_expired_and_with_others(project: Project) -> None:
    project.make_disk(owner="cloudgpu-somebody", expires=time.time() - 60, token="a" * 32)
    project.make_rule(owner="cloudgpu-somebody", expires=time.time() + 3_600, token="b" * 32)
    project.make_disk(owner="cloudgpu-somebody", token="c" * 32)
    states = {one["token"][0]: one["state"] for one in json.loads(run_gc("--dry-run", "--json").stdout)["leftovers"]}
    assert states == {"a": "expired", "b": "another's", "c": "another's"}
    run_gc("--yes")
    assert len(found()) == 3
    run_gc("--yes", "--others")
    assert {left.token[0] for left in found()} == {"b", "c"}


def test_only_the_regions_asked_for_are_looked_at(project: Project) -> None:
    project.make_instance("europe-west4-b")
    project.make_rule()
    project.make_rule(token="b" * 32)
    assert {left.token[0] for left in found(REGION)} == {"b"}  # the other launch's machine is in another region
    [left] = [left for left in found("europe-west4") if left.token == TOKEN]
    assert (kinds(left), left.regions) == ({"instance", "disk", "firewall rule"}, ["europe-west4"])
    refused = run_gc(regions=("us-central11",))
    assert "Google Cloud has no region us-central11" in refused.stderr
    assert refused.returncode in {4, 6}


def test_things_of_others_and_the_rule_of_all_are_not_ours(project: Project) -> None:
    client = project.client("FirewallsClient")
    for name in ("cloudgpu-closed-default", "ssh", f"cloudgpu-{'d' * 32}"):
        rule = {"name": name, "network": "global/networks/default", "denied": [{"I_p_protocol": "all"}]}
        client.insert_unary(project="project-of-tests", firewall_resource=compute_v1.Firewall(rule), timeout=180)
    assert found() == []


@pytest.mark.parametrize("fault", [LOSE, HTML], ids=lambda fault: fault.kind)
def test_lost_answers_and_5xx_do_no_harm(project: Project, fault: Any) -> None:
    project.make_instance()
    project.make_disk("us-central1-b")
    project.make_rule()
    for action in ("*.delete", "*.aggregatedList", "firewalls.*", "disks.get"):
        project.control.fail(action, fault)
    for left in found():
        remove(left)
    project.control.heal()
    assert project.left() == set()


def test_a_denied_list_is_an_error(project: Project) -> None:
    project.make_disk()
    project.control.fail("disks.aggregatedList", error("forbidden", 403, "Required 'compute.disks.list'"), times=None)
    with pytest.raises(ProvisionError, match=r"compute\.disks\.list") as refused:
        found()
    assert refused.value.error_class == "auth"
    done = run_gc("--yes")
    assert (done.returncode, "compute.disks.list" in done.stderr) == (6, True)
