"""`cloudgpu gc` on Vertex AI: custom jobs tagged by cloudgpu are found in all regions without local state, and
ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.submit.submission import owner_name
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.vertex import gc
from cloudgpu.provisioners.vertex.clients import Clients, regions
from cloudgpu.provisioners.vertex.provisioner import VertexProvisioner
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HTML, LOSE, error
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.vertex.control import JobState, VertexControl
from cloudgpu.tests.standins.vertex.service import JOBS

CLOUDGPU = str(Path(sys.executable).with_name("cloudgpu"))
REGION = "us-central1"
TOKEN = "0123456789abcdef" * 2


class Vertex:
    """The stand-in and its control API."""

    def __init__(self, gcp: Gcp) -> None:
        self.gcp, self.control = gcp, VertexControl(gcp.control)

    def alive(self) -> list[JobState]:
        return [job for job in self.control.jobs() if job.alive]

    def leak(
        self, token: str = TOKEN, *, owner: str | None = None, expires: float | None = None, region: str = REGION
    ) -> None:
        """Launch a job that no store knows."""
        nodes = tuple(
            NodeRequest(f"worker-{rank}.1", "worker", rank, rank, "n1-standard-8", "T4", Fraction(1)) for rank in (0, 1)
        )
        request = LaunchRequest(
            job_id="ghost-abcdefgh",
            attempt=2,
            token=token,
            owner=Owner(owner or owner_name()),
            job_dir="gs://jobs-of-tests/jobs/ghost-abcdefgh",
            job_sha256="0" * 64,
            region=region,
            zone=None,
            market="spot",
            disk_gb=100.0,
            nodes=nodes,
            lifetime_s=3_600,
            expires=expires,
            agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
        )
        VertexProvisioner(FastClock()).launch(request)


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def vertex(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Vertex:
    server.control.reset()
    settings = {**server.environ(tmp_path / "keys"), "CLOUDGPU_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return Vertex(server)


def run_gc(*arguments: str, regions: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    where = [word for region in regions for word in ("--region", region)]
    command = [CLOUDGPU, "gc", "--cloud", "vertex", *where, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def shown(*arguments: str, **where: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_gc("--dry-run", "--json", *arguments, **where).stdout)["leftovers"]
    return found


def test_a_leaked_job_is_found_in_whatever_region_and_ended(vertex: Vertex) -> None:
    vertex.leak()
    vertex.leak("f" * 32, region="europe-west4")
    found = shown()
    assert {(one["token"], *one["regions"]) for one in found} == {(TOKEN, REGION), ("f" * 32, "europe-west4")}
    for one in found:
        assert (one["job_id"], one["attempt"], one["state"]) == ("ghost-abcdefgh", 2, "orphaned")
        [thing] = one["things"]
        assert (thing["kind"], thing["price_usd_h"]) == ("custom job", None)
        assert thing["detail"].startswith("2 nodes spot, ")
        assert time.time() - thing["created"] < 600
    done = run_gc("--yes")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "removed what was left of ghost-abcdefgh, attempt 2: 1 custom job" in done.stderr
    assert vertex.alive() == []
    assert {job.state for job in vertex.control.jobs()} == {"CANCELLED"}
    assert "nothing to do" in run_gc().stderr


def test_only_the_regions_asked_for_are_looked_at(vertex: Vertex) -> None:
    vertex.leak()
    assert "nothing to do" in run_gc("--yes", regions=("europe-west4",)).stderr
    assert len(vertex.alive()) == 1
    refused = run_gc(regions=("us-centrel1",))
    assert "Vertex AI is not in us-centrel1; did you mean us-central1" in refused.stderr
    assert refused.returncode in {4, 6}


def test_jobs_of_other_owners_are_removed_only_when_expired_and_with_others(vertex: Vertex) -> None:
    vertex.leak("a" * 32, owner="cloudgpu-somebody", expires=time.time() - 60)
    vertex.leak("b" * 32, owner="cloudgpu-somebody", expires=time.time() + 3_600)
    vertex.leak("c" * 32, owner="cloudgpu-somebody")
    assert {one["token"][0]: one["state"] for one in shown()} == {"a": "expired", "b": "another's", "c": "another's"}
    assert "nothing was removed: none of it may be removed yet" in run_gc("--yes").stderr
    assert len(vertex.alive()) == 3
    run_gc("--yes", "--others")
    assert {one["token"][0] for one in shown()} == {"b", "c"}


def test_a_region_that_does_not_answer_is_named_and_the_others_are_looked_at(vertex: Vertex) -> None:
    vertex.leak(region="europe-west4")
    vertex.gcp.control.fail(f"{JOBS}.list", error("PERMISSION_DENIED", 403), where={"region": "us-east1"}, times=None)
    done = run_gc("--yes")
    assert done.returncode == 6
    assert "vertex us-east1 was not looked at" in done.stderr
    assert "us-west1 was not" not in done.stderr
    assert vertex.alive() == []


def test_denied_lists_in_all_regions_are_an_error(vertex: Vertex) -> None:
    vertex.gcp.control.fail(f"{JOBS}.list", error("PERMISSION_DENIED", 403), times=None)
    with pytest.raises(ProvisionError) as caught:
        gc.find([], Clients(FastClock()))
    assert caught.value.error_class == "auth"


def test_the_search_stops_early_if_no_region_answers(vertex: Vertex) -> None:
    vertex.gcp.control.fail(f"{JOBS}.list", HTML, times=None)
    with pytest.raises(ProvisionError) as caught:
        gc.find([], Clients(FastClock()))
    assert caught.value.error_class == "transient"
    asked = {call.region for call in vertex.gcp.control.calls(f"{JOBS}.list")}
    assert 8 <= len(asked) <= 24 < len(regions()), "the first ones, and what was begun meanwhile"


@pytest.mark.parametrize("fault", [LOSE, HTML], ids=lambda fault: fault.kind)
def test_lost_answers_and_5xx_do_no_harm(vertex: Vertex, fault: Any) -> None:
    vertex.leak()
    for verb in ("list", "cancel", "get"):
        vertex.gcp.control.fail(f"{JOBS}.{verb}", fault)
    clients = Clients(FastClock())
    for left in gc.find([REGION], clients).leftovers:
        gc.remove(left, clients)
    vertex.gcp.control.heal()
    assert vertex.alive() == []
