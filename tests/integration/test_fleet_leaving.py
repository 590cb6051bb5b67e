"""Tests of how machines of Google Cloud and Azure leave their group for good; test_fleet_boot.py covers AWS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.provisioners.boot import BootRecord
from cloudgpu.provisioners.boot.files import boot_files
from cloudgpu.tests.standins.azure.imds import InstanceMetadata as AzureMetadata
from cloudgpu.tests.standins.azure.tokens import Principal, Tokens
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcp_metadata import InstanceMetadata

LEAVE = """
import importlib, json, common
record = json.load(open("boot.json"))
try:
    importlib.import_module(record["modules"]["group"]).leave(record)
    print("left")
except common.PermanentError as error:
    print("hopeless:", error)
except OSError as error:
    print("again:", error)
"""
SCOPES = ("https://www.googleapis.com/auth/compute",)
REGION = "us-central1"
TIMEOUT_S = 180.0


def leave(folder: Path, environ: Mapping[str, str], cloud: str, api: str) -> str:
    """Run the bootstrap's code that leaves the group, with only the bootstrap's files, and return its output."""
    job_dir, identity = {"gcp": ("gs://b/x", None), "azure": ("az://c@a/x", "client-of-it")}[cloud]
    record = BootRecord(
        job_dir, "", 0, "", "", "agent/a", "a", REGION, cloud=cloud, fleet="big", api_endpoint=api, identity=identity
    )
    for name, data in boot_files(record).items():
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", LEAVE],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Group:
    """A managed instance group of two machines on the stand-in."""

    def __init__(self, gcp: Gcp) -> None:
        self.gcp, self.gce = gcp, GceControl(gcp.url)
        self.tokens = gcp._app._project.tokens  # the stand-in passes them to machines that it launches
        self.base = f"/compute/v1/projects/{PROJECT}"
        disk = {"boot": True, "initializeParams": {"diskType": "pd-balanced", "diskSizeGb": "100"}}
        disk["initializeParams"]["sourceImage"] = "projects/debian-cloud/global/images/family/debian-12"  # type: ignore[index]
        shape = {
            "machineType": "n1-standard-4",
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
        }
        self.call("POST", f"{self.base}/global/instanceTemplates", {"name": "big", "properties": shape})
        group = {
            "name": "big",
            "targetSize": 2,
            "versions": [{"instanceTemplate": f"projects/{PROJECT}/global/instanceTemplates/big"}],
            "distributionPolicy": {"targetShape": "ANY"},
            "updatePolicy": {"instanceRedistributionType": "NONE"},
        }
        self.call("POST", f"{self.base}/regions/{REGION}/instanceGroupManagers", group)
        self.until(2)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        token = self.tokens.issue(SUBMITTER, frozenset(SCOPES))
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(self.gcp.url + path, data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=180) as answer:
            return json.load(answer)

    def running(self) -> list[Any]:
        return [one for one in self.gce.resources("instances") if one["status"] == "RUNNING"]

    def until(self, count: int) -> None:
        end = time.monotonic() + TIMEOUT_S
        while len(self.running()) != count:
            assert time.monotonic() < end, self.gce.resources("instances")
            time.sleep(0.1)

    def size(self) -> int:
        return int(self.call("GET", f"{self.base}/regions/{REGION}/instanceGroupManagers/big")["targetSize"])


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    with Gcp() as gcp:
        for name, value in gcp.environ(tmp_path / "keys").items():
            monkeypatch.setenv(name, value)
        yield Group(gcp)


def test_a_machine_of_google_cloud_makes_its_group_smaller(group: Group, tmp_path: Path) -> None:
    own, other = group.running()
    items = {one["key"]: one["value"] for one in own["metadata"]["items"]}
    described = {
        "instance": {"name": own["name"], "zone": own["zone"], "attributes": items},
        "project": {"project-id": PROJECT},
    }
    token = group.tokens.issue(MACHINE, frozenset(SCOPES))
    with InstanceMetadata(lambda: described, lambda: (token, 3_600), (MACHINE, SCOPES)) as metadata:
        environ = {"GCE_METADATA_HOST": metadata.host}
        assert leave(tmp_path, environ, "gcp", group.gcp.url) == "left\n"
        group.until(1)
        assert [one["name"] for one in group.running()] == [other["name"]]
        assert group.size() == 1
        assert leave(tmp_path, environ, "gcp", group.gcp.url) == "left\n", "asked again, its answer having been lost"
        assert group.size() == 1


VM = "/subscriptions/s/resourceGroups/big/providers/Microsoft.Compute/virtualMachines/big_0123"


class ResourceManager:
    """Fake of Azure Resource Manager with a fixed answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, str]] = []
        """Path, body and bearer token of each call."""
        self.status = 202
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.calls.append((self.path, body, self.headers["Authorization"].removeprefix("Bearer ")))
                answer = b"" if api.status == 202 else b'{"error": {"code": "No", "message": "no"}}'
                self.send_response_only(api.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(202, "left"), (404, "left"), (403, "hopeless: this machine may not leave"), (429, "again"), (500, "again")],
)
def test_a_machine_of_azure_makes_its_scale_set_smaller(tmp_path: Path, status: int, outcome: str) -> None:
    tokens, who = Tokens(), Principal("big", "object-of-it", "client-of-it", machine=True)
    compute = {"name": "big_0123", "resourceId": VM, "vmScaleSetName": "big"}
    manager = ResourceManager()
    manager.status = status
    with AzureMetadata(
        "big_0123", lambda: {"compute": compute}, lambda: [("its-id", who)], tokens.issue, lambda _: None
    ) as imds:
        said = leave(tmp_path, {"CLOUDGPU_AZURE_METADATA": imds.url}, "azure", manager.url)
    assert said.startswith(outcome)
    ((path, body, token),) = manager.calls
    place = "/subscriptions/s/resourceGroups/big/providers/Microsoft.Compute/virtualMachineScaleSets/big"
    assert path == f"{place}/delete?api-version=2024-07-01"
    assert body == {"instanceIds": ["big_0123"]}
    assert token
    manager.server.shutdown()
    manager.server.server_close()
