"""From a launch request to the body of customJobs.create: roles as worker pools, and the image."""

from __future__ import annotations

import base64
import csv
import dataclasses
import json
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.provisioners import AgentFile, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.vertex import images, worker_pools
from cloudgpu.provisioners.vertex.request import (
    MAX_FLEX_S,
    NETWORK,
    RESERVATION,
    Settings,
    check_request,
    custom_job,
    read_settings,
)
from cloudgpu.tests.standins.gcp.discovery import discovery

ACCOUNT = "cloudgpu-machine@p.iam.gserviceaccount.com"
HERE = "projects/p/zones/us-central1-a/reservations/mine"
THERE = "projects/p/zones/europe-west4-b/reservations/mine"


def node(
    name: str = "worker-0.1", machine_type: str = "n1-standard-8", gpu: str | None = "T4", count: int = 1, rank: int = 0
) -> NodeRequest:
    role, _, rest = name.rpartition("-")
    number = int(rest.partition(".")[0])
    return NodeRequest(name, role, number, rank, machine_type, gpu, Fraction(count if gpu else 0))


def nodes_of(role: str, number: int, **how: Any) -> list[NodeRequest]:
    return [node(f"{role}-{index}.1", **how) for index in range(number)]


def request(*nodes: NodeRequest, **changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-abc",
        attempt=3,
        token="0123456789abcdef0123456789abcdef",
        owner=Owner("cloudgpu-tester"),
        job_dir="gs://bucket/jobs/digits-abc",
        job_sha256="0" * 64,
        region="us-central1",
        zone=None,
        market="on-demand",
        disk_gb=150.5,
        nodes=nodes or (node(),),
        lifetime_s=3_600,
        agent=AgentFile("agent/a.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


def body(asked: LaunchRequest, **settings: Any) -> dict[str, Any]:
    """Return the request body, checked against Google's schema and client."""
    from google.cloud import aiplatform_v1

    found = custom_job(asked, Settings(ACCOUNT, **settings))
    assert discovery("aiplatform", "v1").faults("GoogleCloudAiplatformV1CustomJob", found) == []
    aiplatform_v1.CustomJob.from_json(json.dumps(found))
    assert len(found["displayName"]) <= 128
    assert all(len(value) <= 63 for value in found["labels"].values())
    return found


def machines(found: dict[str, Any]) -> list[tuple[str, str, int, int] | None]:
    """Return (type, accelerator, GPU count, replicas) of each pool; None for a skipped pool."""
    pools = []
    for pool in found["jobSpec"]["workerPoolSpecs"]:
        spec = pool.get("machineSpec", {})
        named = (spec.get("machineType"), spec.get("acceleratorType", ""), spec.get("acceleratorCount", 0))
        pools.append((*named, int(pool["replicaCount"])) if pool else None)
    return pools


def test_one_node() -> None:
    found = body(request(expires=1_999_999_999.5))
    spec = found["jobSpec"]
    assert machines(found) == [("n1-standard-8", "NVIDIA_TESLA_T4", 1, 1)]
    assert spec["serviceAccount"] == ACCOUNT and "network" not in spec
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": "gs://bucket/jobs/digits-abc"}
    assert spec["workerPoolSpecs"][0]["diskSpec"] == {"bootDiskSizeGb": 151}
    assert spec["scheduling"] == {
        "strategy": "STANDARD",
        "disableRetries": True,
        "restartJobOnWorkerRestart": False,
        "timeout": "4200s",
    }
    assert found["displayName"] == "digits-abc 3"
    assert found["labels"] == {
        "cloudgpu-owner": "cloudgpu-tester",
        "cloudgpu-job": "digits-abc",
        "cloudgpu-attempt": "3",
        "cloudgpu-token": "0123456789abcdef0123456789abcdef",
        "cloudgpu-expires": "1999999999",
        "cloudgpu-market": "on-demand",
        "cloudgpu-pool0": "worker-0-1",
    }


def test_the_reference_example_of_ai_platform_is_three_pools() -> None:
    """A master and nine workers with four T4 each, and three parameter servers without GPU."""
    gpus: dict[str, Any] = {"machine_type": "n1-highcpu-16", "count": 4}
    nodes = [*nodes_of("chief", 1, **gpus), *nodes_of("worker", 9, **gpus)]
    nodes += nodes_of("parameter_server", 3, machine_type="n1-highmem-8", gpu=None)
    found = body(request(*nodes))
    assert machines(found) == [
        ("n1-highcpu-16", "NVIDIA_TESLA_T4", 4, 1),
        ("n1-highcpu-16", "NVIDIA_TESLA_T4", 4, 9),
        ("n1-highmem-8", "", 0, 3),
    ]


def test_empty_pools_are_skipped() -> None:
    nodes = [*nodes_of("chief", 1), *nodes_of("evaluator", 1, gpu=None)]
    assert machines(body(request(*nodes))) == [
        ("n1-standard-8", "NVIDIA_TESLA_T4", 1, 1),
        None,
        None,
        ("n1-standard-8", "", 0, 1),
    ]


def test_all_containers_are_the_same() -> None:
    found = body(request(*nodes_of("chief", 1), *nodes_of("worker", 2)))
    containers = [pool["containerSpec"] for pool in found["jobSpec"]["workerPoolSpecs"]]
    assert containers[0] == containers[1]
    assert containers[0]["command"][0] == "/bin/sh"


@pytest.mark.parametrize(
    ("market", "strategy"), [("on-demand", "STANDARD"), ("reservation", "STANDARD"), ("spot", "SPOT")]
)
def test_markets(market: str, strategy: str) -> None:
    found = body(request(market=market), reservations=(THERE, HERE))
    assert found["jobSpec"]["scheduling"]["strategy"] == strategy
    assert found["labels"]["cloudgpu-market"] == market
    affinity = found["jobSpec"]["workerPoolSpecs"][0]["machineSpec"].get("reservationAffinity")
    expected = {
        "reservationAffinityType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [HERE],
    }
    assert affinity == (expected if market == "reservation" else None)


def test_flex_start_waits_a_day_and_runs_a_week_at_most() -> None:
    l4 = node(machine_type="g2-standard-8", gpu="L4")
    found = body(request(l4, market="flex-start", lifetime_s=30 * 86_400))["jobSpec"]["scheduling"]
    assert (found["strategy"], found["timeout"], found["maxWaitDuration"]) == (
        *("FLEX_START", f"{MAX_FLEX_S}s", "86400s"),
    )
    assert body(request(l4, market="flex-start", lifetime_s=60))["jobSpec"]["scheduling"]["timeout"] == "660s"


def test_no_longer_a_timeout_is_asked_for_than_is_said() -> None:
    found = body(request(lifetime_s=30 * 86_400 + 5))["jobSpec"][
        "scheduling"
    ]  # control/reconcile/steps/launch_request.py adds some seconds
    assert found["timeout"] == "2592000s"


@pytest.mark.parametrize(
    ("market", "asked", "life_s"),
    [("on-demand", 3_600, 3_600), ("on-demand", None, None), ("flex-start", 30 * 86_400, 7 * 86_400 - 600)],
)
def test_containers_end_by_themselves_before_they_are_ended(market: str, asked: int | None, life_s: int | None) -> None:
    l4 = node(machine_type="g2-standard-8", gpu="L4")
    found = body(request(l4, market=market, lifetime_s=asked))["jobSpec"]
    assert found["scheduling"].get("timeout") == (None if life_s is None else f"{life_s + 600}s")
    files = json.loads(zlib.decompress(base64.b64decode(found["workerPoolSpecs"][0]["containerSpec"]["args"][1])))
    assert json.loads(files["boot.json"])["lifetime_s"] == life_s


def test_parameter_servers_beside_reserved_gpus_are_not_reserved() -> None:
    nodes = [*nodes_of("chief", 1), *nodes_of("parameter_server", 1, gpu=None)]
    found = body(request(*nodes, market="reservation"), reservations=(HERE,))["jobSpec"]["workerPoolSpecs"]
    assert ["reservationAffinity" in pool.get("machineSpec", {}) for pool in found] == [True, False, False]
    alone = body(request(node(gpu=None), market="reservation"), reservations=(HERE,))["jobSpec"]["workerPoolSpecs"]
    assert "reservationAffinity" in alone[0]["machineSpec"]


def test_a_network_is_as_the_setting_says() -> None:
    assert body(request(), network="projects/1/global/networks/n")["jobSpec"]["network"] == (
        "projects/1/global/networks/n"
    )


def test_a_fake_storage_is_passed_to_containers_and_must_be_local() -> None:
    body(request(), storage_endpoint="http://127.0.0.1:9")
    with pytest.raises(ProvisionError, match="only a test's may"):
        body(request(), storage_endpoint="http://storage.example:9")


REFUSED = [
    (request(market="auction"), "invalid", "no market auction"),
    (request(agent=None), "invalid", "no agent file"),
    (request(agent=AgentFile("k", "s", "arm64")), "invalid", "n1-standard-8 is x86_64"),
    (request(node(machine_type="n1-standard-8", gpu="L4")), "not_offered", "no n1-standard-8 with L4"),
    (request(node(machine_type="z9-mega", gpu=None)), "not_offered", "no z9-mega"),
    (request(job_dir="s3://bucket/jobs/x"), "invalid", "expected gs://BUCKET/"),
    (request(market="reservation"), "not_offered", RESERVATION),
    (request(node("worker-0.2")), "invalid", "worker-0.2 cannot be added"),
    (request(node("worker-0.1"), node("worker-2.1"), node("worker-3.1"), node("worker-5.1")), "invalid", "worker-5.1"),
    (request(*nodes_of("chief", 2)), "not_offered", "2 chiefs"),
    (request(*nodes_of("chief", 1), *nodes_of("reader", 1)), "invalid", "role reader"),
    (
        request(node("worker-0.1"), node("worker-1.1"), node("worker-2.1", "n1-standard-16")),
        "not_offered",
        "different machines",
    ),
    (
        request(
            node("chief-0.1", "a2-highgpu-1g", "A100-40GB"),
            node("worker-0.1", "a2-highgpu-2g", "A100-40GB", 2),
            market="flex-start",
        ),
        "not_offered",
        "the same machine",
    ),
    (
        request(node(machine_type="a4x-highgpu-4g", gpu="GB200", count=4), agent=AgentFile("k", "s", "arm64")),
        "not_offered",
        "name one with `image:`",
    ),
]


@pytest.mark.parametrize(("asked", "kind", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
def test_what_no_custom_job_can_be_is_said_before_anything_is_done(asked: LaunchRequest, kind: str, says: str) -> None:
    with pytest.raises(ProvisionError) as caught:
        custom_job(asked, Settings(ACCOUNT, reservations=(THERE,)))
    assert (caught.value.error_class, says in str(caught.value)) == (kind, True), caught.value


# -- settings


@pytest.mark.parametrize(
    ("name", "value"),
    [(NETWORK, "default"), (NETWORK, "projects/p/global/networks/n/x"), (RESERVATION, f"{HERE} mine")],
)
def test_settings_that_cannot_be_meant(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ProvisionError, match=name) as caught:
        read_settings(ACCOUNT, None)
    assert caught.value.error_class == "invalid"


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NETWORK, "projects/1/global/networks/n")
    monkeypatch.setenv(RESERVATION, f"{HERE} {THERE}")
    assert read_settings(ACCOUNT, None) == Settings(ACCOUNT, None, None, "projects/1/global/networks/n", (HERE, THERE))


# -- pools and labels


def test_labels_are_decoded_to_nodes() -> None:
    nodes = [*nodes_of("worker", 4), *nodes_of("parameter_server", 3), *nodes_of("evaluator", 1)]
    placed = worker_pools.pools_of(nodes)
    decoded = worker_pools.from_labels(worker_pools.to_labels(placed))
    assert decoded == {
        name: f"{pool}-{at}" for pool, names in worker_pools.replicas(placed).items() for at, name in enumerate(names)
    }
    assert set(decoded) == {one.node for one in nodes}


@pytest.mark.parametrize("value", ["", "worker", "worker-0", "worker-x-1", "-0-1", "worker-0-"])
def test_changed_labels_are_ignored(value: str) -> None:
    assert worker_pools.from_labels({"cloudgpu-pool1": value}) == {}


# -- images


def test_a_role_may_have_an_image_of_its_own() -> None:
    nodes = [*nodes_of("chief", 1), *nodes_of("worker", 1)]
    found = body(request(*nodes, images={"worker": "gcr.io/p/x"}))["jobSpec"]["workerPoolSpecs"]
    assert [pool["containerSpec"]["imageUri"] for pool in found] == [
        images.default_image("n1-standard-8", "x86_64", "T4"),
        "gcr.io/p/x",
    ]
    arm = node(machine_type="a4x-highgpu-4g", gpu="GB200", count=4)
    named = request(arm, agent=AgentFile("k", "s", "arm64"), images={"worker": "gcr.io/p/arm"})
    body(dataclasses.replace(named, market="reservation"), reservations=(HERE,))


def test_every_machine_of_the_tables_has_an_image_or_is_refused() -> None:
    for name, group in catalog.machine_types("vertex").items():
        for machine in group:
            if machine.arch == "x86_64":
                assert ":" in images.default_image(name, machine.arch, machine.accelerator)
                continue
            with pytest.raises(ProvisionError, match=name):
                images.default_image(name, machine.arch, machine.accelerator)


def test_accelerators_of_the_image_table_are_ours() -> None:
    with Path(images.__file__).with_name("images.csv").open() as file:
        rows = list(csv.DictReader(file))
    named = {name for row in rows for name in row["accelerators"].split()} - {"-", "*"}
    assert named <= {machine.accelerator for group in catalog.machine_types("vertex").values() for machine in group}
    assert all(row["source"] for row in rows)


def test_everything_that_can_be_planned_can_be_asked_for() -> None:
    """Every active machine of the tables, in every market it is sold in."""
    for name, group in catalog.machine_types("vertex").items():
        for machine in group:
            for market in machine.markets if machine.status != "retired" else ():
                for count in machine.counts or (Fraction(0),):
                    asked = node(machine_type=name, gpu=machine.accelerator, count=int(count))
                    agent = AgentFile("k", "a" * 64, machine.arch)
                    check_request(request(asked, market=market, agent=agent))
