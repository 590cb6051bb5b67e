"""OrphanReaper's workflow, executed step by step against Compute Engine's stand-in, with only its own permissions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from cloudgpu.infra.gcp.reaper import RIGHTS, WORKFLOW
from cloudgpu.provisioners.gcp.labels import to_labels
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcp.project import account
from cloudgpu.tests.standins.gcp.workflow import Ran, run

NOW = 1_700_000_000.0
ZONE, REGION = "us-central1-a", "us-central1"
REAPER = account("reaper")
PERMISSIONS = [permission for right in RIGHTS for permission in right.permissions]
LOG = "logging.logEntries.create"
ALL = "https://www.googleapis.com/auth/cloud-platform"


@pytest.fixture
def gcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcp]:
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path / "keys").items():
            monkeypatch.setenv(name, value)
        yield gcp


class Project:
    """Client of the stand-in for one account."""

    def __init__(self, gcp: Gcp, folder: Path, email: str) -> None:
        self._url = gcp.url
        key = gcp.control.key_file(email, folder / f"{email.partition('@')[0]}.json")
        credentials = service_account.Credentials.from_service_account_file(str(key), scopes=[ALL])  # type: ignore[no-untyped-call]
        self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]

    def send(self, method: str, url: str, arguments: Mapping[str, Any]) -> Any:
        """Send a request as Workflows does, to the stand-in instead of Google's hosts."""
        path = urlsplit(url)
        assert path.scheme == "https" and path.netloc in ("compute.googleapis.com", "www.googleapis.com")
        assert arguments["auth"] == {"type": "OAuth2"}
        return self.call(method, path.path, arguments.get("body"), arguments.get("query"))

    def call(self, method: str, path: str, body: Any = None, query: Any = None) -> Any:
        answer = self._session.request(method, f"{self._url}{path}", json=body, params=query)  # type: ignore[no-untyped-call]
        if not answer.ok:
            raise OSError(f"{answer.status_code} {answer.text}")
        return answer.json()

    def reap(self, without: str = "") -> Ran:
        """Run the workflow. `without` withholds a permission of a service that the stand-in does not have."""
        own = {permission for right in rights(without=without) for permission in right["permissions"]}
        environ = {"GOOGLE_CLOUD_PROJECT_ID": PROJECT}
        return run(WORKFLOW.read_text(), self.send, environ=environ, now=NOW, may_log=LOG in own)


def rights(*, without: str = "") -> list[dict[str, Any]]:
    """Return the reaper's permissions; those with a condition hold for cloudgpu's machines and groups, known by their
    names."""
    return [
        {
            "permissions": [one for one in right.permissions if one != without],
            "where": "projects/*/cloudgpu-*" if right.condition else "*",
        }
        for right in RIGHTS
    ]


def properties(expires: str | None, zone: str = "") -> dict[str, Any]:
    """Return the properties of a machine or, without a zone, of an instance template."""
    where = f"zones/{zone}/" if zone else ""
    return {
        "machineType": f"{where}machineTypes/n1-standard-4" if zone else "n1-standard-4",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "serviceAccounts": [{"email": MACHINE, "scopes": [ALL]}],
        "labels": {} if expires is None else to_labels({"cloudgpu-expires": expires}),
    }


IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < until, "too late"
        time.sleep(0.02)


def test_expired_machines_are_deleted_and_not_recreated_by_their_group(gcp: Gcp, tmp_path: Path) -> None:
    gce, submitter = GceControl(gcp.url), Project(gcp, tmp_path, SUBMITTER)
    base = f"/compute/v1/projects/{PROJECT}"

    def names() -> list[str]:
        return sorted(one["name"] for one in gce.resources("instances") if one["status"] == "RUNNING")

    def insert(name: str, expires: str | None) -> None:
        submitter.call("POST", f"{base}/zones/{ZONE}/instances", {"name": name, **properties(expires, ZONE)})

    past, future = str(int(NOW) - 60), str(int(NOW) + 60)
    insert("cloudgpu-past", past)
    insert("cloudgpu-future", future)
    insert("cloudgpu-no-number", "someday")
    insert("cloudgpu-unlabelled", None)
    insert("somebodys", past)
    template = {"name": "t", "properties": properties(past)}
    submitter.call("POST", f"{base}/global/instanceTemplates", template)
    group = {"name": "cloudgpu-g", "baseInstanceName": "cloudgpu-g", "targetSize": 2}
    versions = [{"instanceTemplate": "global/instanceTemplates/t"}]
    submitter.call("POST", f"{base}/regions/{REGION}/instanceGroupManagers", {**group, "versions": versions})
    wait(lambda: len(names()) == 7)

    gcp.control.enforce({REAPER: rights()})
    ran = Project(gcp, tmp_path, REAPER).reap()
    assert ran.value == 3
    errors = {one["json"]["thing"].rpartition("/")[2]: one["json"]["error"] for one in ran.log}
    assert set(errors) == {"cloudgpu-no-number", "somebodys"}
    assert "someday" in errors["cloudgpu-no-number"]
    assert "403" in errors["somebodys"], "its name is none of ours, whatever its label says"
    stay = ["cloudgpu-future", "cloudgpu-no-number", "cloudgpu-unlabelled", "somebodys"]
    wait(lambda: names() == stay)
    time.sleep(0.3)
    assert names() == stay, "the group has no machines, and makes none"
    [manager] = gce.resources("regionInstanceGroupManagers")
    assert manager["targetSize"] == 0
    wait(lambda: {one["name"] for one in gce.resources("disks")} == set(stay))
    assert Project(gcp, tmp_path, REAPER).reap().value == 0


def test_an_expired_group_is_set_to_no_machines_once(gcp: Gcp, tmp_path: Path) -> None:
    gce, submitter = GceControl(gcp.url), Project(gcp, tmp_path, SUBMITTER)
    base = f"/compute/v1/projects/{PROJECT}"
    submitter.call("POST", f"{base}/global/instanceTemplates", {"name": "t", "properties": properties(None)})
    ports = {
        "cloudgpu-past": f"cloudgpu-expires-{NOW - 60:.0f}",
        "cloudgpu-now": f"cloudgpu-expires-{NOW:.0f}",
        "cloudgpu-future": f"cloudgpu-expires-{NOW + 60:.0f}",
        "cloudgpu-never": "cloudgpu-expires-never",
        "cloudgpu-other": "http",
        "cloudgpu-none": "",
        "somebodys": f"cloudgpu-expires-{NOW - 60:.0f}",
    }
    for name, port in ports.items():
        group = {"name": name, "baseInstanceName": name, "targetSize": 1}
        group |= {"versions": [{"instanceTemplate": "global/instanceTemplates/t"}]}
        group |= {"namedPorts": [{"name": port, "port": 1}]} if port else {}
        submitter.call("POST", f"{base}/regions/{REGION}/instanceGroupManagers", group)

    def sizes() -> dict[str, int]:
        return {one["name"]: one["targetSize"] for one in gce.resources("regionInstanceGroupManagers")}

    wait(lambda: len([one for one in gce.resources("instances") if one["status"] == "RUNNING"]) == len(ports))
    gcp.control.enforce({REAPER: rights()})
    ran = Project(gcp, tmp_path, REAPER).reap()
    assert (ran.value, ran.log) == (2, [])
    assert [name for name, size in sorted(sizes().items()) if size == 0] == ["cloudgpu-now", "cloudgpu-past"]
    wait(lambda: len(gce.resources("instances")) == len(ports) - 2)
    assert Project(gcp, tmp_path, REAPER).reap().value == 0


@pytest.mark.parametrize("missing", [one for one in PERMISSIONS if one != LOG])
def test_without_any_one_of_its_rights_it_ends_nothing_and_says_so(gcp: Gcp, tmp_path: Path, missing: str) -> None:
    gce, submitter = GceControl(gcp.url), Project(gcp, tmp_path, SUBMITTER)
    base, past = f"/compute/v1/projects/{PROJECT}", str(int(NOW) - 60)
    if missing.startswith("compute.instanceGroupManagers."):
        submitter.call("POST", f"{base}/global/instanceTemplates", {"name": "t", "properties": properties(None)})
        versions = [{"instanceTemplate": "global/instanceTemplates/t"}]
        group = {"name": "cloudgpu-g", "baseInstanceName": "cloudgpu-g", "targetSize": 1, "versions": versions}
        group["namedPorts"] = [{"name": f"cloudgpu-expires-{past}", "port": 1}]
        submitter.call("POST", f"{base}/regions/{REGION}/instanceGroupManagers", group)
    else:
        submitter.call("POST", f"{base}/zones/{ZONE}/instances", {"name": "cloudgpu-past", **properties(past, ZONE)})
    wait(lambda: [one["status"] for one in gce.resources("instances")] == ["RUNNING"])
    gcp.control.enforce({REAPER: rights(without=missing)})
    if missing.endswith(".list"):
        with pytest.raises(Exception, match="403"):
            Project(gcp, tmp_path, REAPER).reap()
    else:
        ran = Project(gcp, tmp_path, REAPER).reap()
        assert ran.value == 0 and "403" in ran.log[0]["json"]["error"]
    assert len(gce.resources("instances")) == 1


def test_without_permission_to_write_logs_the_workflow_fails(gcp: Gcp, tmp_path: Path) -> None:
    submitter, past = Project(gcp, tmp_path, SUBMITTER), str(int(NOW) - 60)
    machine = {"name": "somebodys", **properties(past, ZONE)}
    submitter.call("POST", f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances", machine)
    gcp.control.enforce({REAPER: rights()})
    assert len(Project(gcp, tmp_path, REAPER).reap().log) == 1
    with pytest.raises(PermissionError, match=LOG):
        Project(gcp, tmp_path, REAPER).reap(without=LOG)
