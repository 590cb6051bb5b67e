"""Real TensorFlow clusters on target `local`, from job file to outcome. Each process needs seconds to import
TensorFlow."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from cloudgpu.cli.shared.jobfile.job_file_options import plan_spec
from cloudgpu.control.jobs import Job, submit
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.tests.standins.local_jobs import home
from cloudgpu.tests.standins.long_mode import in_long_mode

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is missing: pip install tensorflow-cpu"
)
WAIT_S = 180.0

__all__ = ["home"]

ALL_REDUCE = """
import json, os
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = json.loads(os.environ["TF_CONFIG"])["task"]

def replica():
    own = tf.constant(float(os.environ["CLOUDGPU_RANK"]) + 1)
    return tf.distribute.get_replica_context().all_reduce("sum", own)

@tf.function
def total():
    return strategy.run(replica)

print(json.dumps([task["type"], task["index"], strategy.num_replicas_in_sync, float(total())]))
"""

PARAMETER_SERVER = """
import json, os, sys

config = json.loads(os.environ["TF_CONFIG"])
if config["task"]["type"] == "evaluator":
    print(json.dumps(["evaluator", sorted(config["cluster"])]))
    sys.exit()

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc")
    server.join()  # for ever
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(1.0)

@tf.function
def step():
    weight.assign_add(2.0)
    return weight.read_value()

for _ in range(5):
    coordinator.schedule(step)
coordinator.join()
print(json.dumps(["chief", float(weight), weight.device]))
"""


def run(folder: Path, program: str, job_file: str) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text(program)
    loaded = load_text("name: tf\nrun: python train.py\nenv: {TF_CPP_MIN_LOG_LEVEL: '3'}\n" + job_file, base=folder)
    job = submit(loaded, plan_spec(loaded))
    assert job.wait(timeout_s=WAIT_S), [event.message for event in job.events()]
    return job


def said(job: Job) -> list[list[object]]:
    lines = [line.text for line in job.logs().read()[0] if line.stream == "stdout"]
    return sorted(json.loads(text) for text in lines if text.startswith("["))


def agents_lines(job: Job) -> list[str]:
    return [line.text for line in job.logs().read()[0] if line.stream == "agent"]


@in_long_mode
def test_workers_that_import_tensorflow_are_one_cluster(home: Path, tmp_path: Path) -> None:
    job = run(tmp_path / "code", ALL_REDUCE, "resources: {cloud: local, accelerator: none, nodes: 2}\n")
    assert job.state == "succeeded", (job.reason, agents_lines(job))
    assert said(job) == [["worker", 0, 2, 3.0], ["worker", 1, 2, 3.0]]
    assert "launcher: tensorflow; train.py imports tensorflow; there are 2 processes" in agents_lines(job)


def test_servers_end_when_chief_and_evaluator_have(home: Path, tmp_path: Path) -> None:
    roles = ", ".join(f"{role}: {{accelerator: none}}" for role in ("chief", "worker", "parameter_server", "evaluator"))
    job = run(tmp_path / "code", PARAMETER_SERVER, f"resources: {{cloud: local}}\nroles: {{{roles}}}\n")
    assert job.state == "succeeded", (job.reason, agents_lines(job))
    assert said(job) == [
        ["chief", 11.0, "/job:ps/replica:0/task:0/device:CPU:0"],
        ["evaluator", ["chief", "ps", "worker"]],
    ]
