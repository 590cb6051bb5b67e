"""The example in AI Platform Training's documentation, converted and planned: a master and 9 workers with 4 T4 each,
and 3 parameter servers. The tests start from its config.yaml or its gcloud flags and check the plan for both targets
and the TF_CONFIG of every machine."""

from __future__ import annotations

import datetime
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import cloudgpu
from cloudgpu.control.reconcile.node_replacement import node_records, node_requests
from cloudgpu.control.submit.submission import job_record, program_of
from cloudgpu.control.submit.submittable_offers import usable_offers
from cloudgpu.jobspecs.dialects.gcloud_flags import apply
from cloudgpu.jobspecs.loading.loader import load_file
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.jobspecs.planner.planner import plan
from cloudgpu.protocol.jobdir import Address
from cloudgpu.runtime.launchers import ProgramContext, choose_launcher, needs_addresses, processes

TODAY = datetime.date(2026, 11, 22)

# "Using GPUs for training models in the cloud": the same cluster as a config file and as flags.
CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig:
    acceleratorConfig: {count: 4, type: NVIDIA_TESLA_T4}
  workerCount: 9
  workerType: n1-highcpu-16
  workerConfig:
    acceleratorConfig: {count: 4, type: NVIDIA_TESLA_T4}
  parameterServerCount: 3
  parameterServerType: n1-highmem-8
  region: us-central1
  pythonModule: trainer.task
  args: [--epochs, "10"]
  jobDir: gs://bucket/census
"""
FLAGS = {
    "--scale-tier": "custom",
    "--master-machine-type": "n1-highcpu-16",
    "--master-accelerator": "count=4,type=nvidia-tesla-t4",
    "--worker-count": "9",
    "--worker-machine-type": "n1-highcpu-16",
    "--worker-accelerator": "count=4,type=nvidia-tesla-t4",
    "--parameter-server-count": "3",
    "--parameter-server-machine-type": "n1-highmem-8",
    "--region": "us-central1",
    "--module-name": "trainer.task",
    "--job-dir": "gs://bucket/census",
}


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    (tmp_path / "census.yaml").write_text(CONFIG)
    return load_file(tmp_path / "census.yaml").spec


def offers(spec: JobSpec) -> list[Offer]:
    return list(plan(spec, machine=None, today=TODAY).offers)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))


def test_the_flags_describe_the_same_job_as_the_file(spec: JobSpec) -> None:
    conversion = apply(None, FLAGS, ["--epochs", "10"], job="census")
    assert conversion.problems == []
    by_flags = JobSpec.model_validate(conversion.job)
    assert by_flags.effective_roles() == spec.effective_roles()
    assert (by_flags.run, by_flags.args, by_flags.job_dir) == (spec.run, spec.args, spec.job_dir)
    assert (by_flags.resources.cloud, by_flags.resources.region) == (spec.resources.cloud, spec.resources.region)


def test_both_targets_have_offers_of_the_same_cluster(spec: JobSpec) -> None:
    found = offers(spec)
    assert {offer.cloud for offer in found} == {"gcp", "vertex"}
    for offer in found:
        assert offer.region == "us-central1"
        assert [(role.role, role.nodes, role.machine_type, role.accelerator, role.count) for role in offer.roles] == [
            ("chief", 1, "n1-highcpu-16", "T4", Fraction(4)),
            ("worker", 9, "n1-highcpu-16", "T4", Fraction(4)),
            ("parameter_server", 3, "n1-highmem-8", None, Fraction(0)),
        ]
    assert usable_offers(spec, plan(spec, machine=None, today=TODAY)) == found, "all of them can be launched on"


def tf_configs(spec: JobSpec, offer: Offer) -> list[dict[str, Any]]:
    """Return the TF_CONFIG of every machine, in rank order."""
    record = job_record("census-x7k2", spec, program_of(spec), None)
    nodes = node_records(node_requests(offer))
    assert choose_launcher(record, nodes, Path("/")).launcher == "tensorflow"
    places = [
        ProgramContext(record, "gs://bucket/census/census-x7k2", 1, node, nodes, Path("/state"), offer=offer.to_json())
        for node in nodes
    ]
    result = needs_addresses("tensorflow", nodes)
    addresses = {node.node: Address(f"10.0.0.{node.rank}", 2222) for node in result}
    found = []
    for place in places:
        (process,) = processes("tensorflow", place, {}, addresses)
        assert process.command[-4:] == ["--epochs", "10", "--job-dir", "gs://bucket/census"]
        found.append(json.loads(process.env["TF_CONFIG"]))
    return found


@pytest.mark.parametrize("cloud", ["gcp", "vertex"])
def test_every_machine_finds_tf_config_as_the_service_set_it(spec: JobSpec, cloud: str) -> None:
    configs = tf_configs(spec, next(offer for offer in offers(spec) if offer.cloud == cloud))
    assert len(configs) == 13
    for config in configs:
        assert set(config) == {"cluster", "task", "job", "environment"}
        assert config["environment"] == "cloud"
        assert config["cluster"] == configs[0]["cluster"]
    assert {name: len(members) for name, members in configs[0]["cluster"].items()} == {"chief": 1, "worker": 9, "ps": 3}
    members = [address for group in configs[0]["cluster"].values() for address in group]
    assert len(set(members)) == 13
    tasks = [(config["task"]["type"], config["task"]["index"]) for config in configs]
    assert tasks == [("chief", 0), *(("worker", index) for index in range(9)), *(("ps", index) for index in range(3))]
    assert configs[4]["job"] == {
        "scale_tier": "CUSTOM",
        "region": "us-central1",
        "master_type": "n1-highcpu-16",
        "master_config": {"accelerator_config": {"count": "4", "type": "NVIDIA_TESLA_T4"}},
        "worker_type": "n1-highcpu-16",
        "worker_config": {"accelerator_config": {"count": "4", "type": "NVIDIA_TESLA_T4"}},
        "worker_count": "9",
        "parameter_server_type": "n1-highmem-8",
        "parameter_server_count": "3",
        "python_module": "trainer.task",
        "args": ["--epochs", "10"],
        "job_dir": "gs://bucket/census",
    }


def test_an_image_leaves_vertex_only(tmp_path: Path) -> None:
    """Machines of Compute Engine cannot run containers in this version: the offer is refused, the image is not
    ignored."""
    image = CONFIG.replace("  masterConfig:\n", "  masterConfig:\n    imageUri: gcr.io/project/census:1\n").replace(
        "  pythonModule: trainer.task\n", ""
    )
    (tmp_path / "census.yaml").write_text(image)
    found = plan(load_file(tmp_path / "census.yaml").spec, machine=None, today=TODAY)
    assert {offer.cloud for offer in found.offers} == {"vertex"}
    [refusal] = [one for one in found.refusals if one.rule == "container-image"]
    assert (refusal.cloud, refusal.message) == ("gcp", "gcp cannot run the image gcr.io/project/census:1")


def test_the_example_is_taken_as_it_is() -> None:
    folder = Path(cloudgpu.__file__).parent / "examples" / "ai-platform"
    example = load_file(folder / "config.yaml").spec
    assert {offer.cloud for offer in offers(example)} == {"gcp", "vertex"}
    local = load_file(folder / "local.yaml").spec
    assert {name: role.nodes for name, role in local.effective_roles().items()} == {
        name: role.nodes for name, role in example.effective_roles().items()
    }
    assert local.run == example.run
