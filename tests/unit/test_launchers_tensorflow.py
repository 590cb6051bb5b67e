"""TF_CONFIG against what AI Platform Training documented for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Address, JobRecord, NodeRecord
from cloudgpu.runtime.launchers import LauncherError, ProgramContext, needs_addresses, processes


def place(counts: Mapping[str, int], own: int, **job: object) -> ProgramContext:
    nodes = [(role, index) for role, count in counts.items() for index in range(count)]
    records = [NodeRecord(f"{role}-{index}.1", role, index, rank, 0) for rank, (role, index) in enumerate(nodes)]
    record = JobRecord("digits-x", "digits", "python train.py", **job)  # type: ignore[arg-type]
    return ProgramContext(record, "s3://bucket/jobs/digits-x", 3, records[own], records, Path("/home/state"))


def config(where: ProgramContext, host: str = "10.0.0.{}") -> dict[str, object]:
    """TF_CONFIG of a node, every member of the cluster at port 2222."""
    members = needs_addresses("tensorflow", where.nodes) or [where.node]
    addresses = {node.node: Address(host.format(node.rank), 2222) for node in members}
    (process,) = processes("tensorflow", where, {}, addresses)
    found: dict[str, object] = json.loads(process.env["TF_CONFIG"])
    return found


REFERENCE = {"chief": 1, "worker": 9, "parameter_server": 3}
"""The reference's custom tier: a master, workerCount 9, parameterServerCount 3."""


def test_the_references_cluster() -> None:
    found = config(place(REFERENCE, own=10, args=["--epochs", "3"]))
    assert found == {
        "cluster": {
            "chief": ["10.0.0.0:2222"],
            "worker": [f"10.0.0.{rank}:2222" for rank in range(1, 10)],
            "ps": [f"10.0.0.{rank}:2222" for rank in range(10, 13)],
        },
        "task": {"type": "ps", "index": 0, "cloud": "digits-x-3"},
        "job": {
            "scale_tier": "CUSTOM",
            "worker_count": "9",
            "parameter_server_count": "3",
            "args": ["--epochs", "3"],
            "job_dir": "s3://bucket/jobs/digits-x",
        },
        "environment": "cloud",
    }


def test_the_cluster_is_the_same_everywhere_and_every_task_is_one_node() -> None:
    all_configs = [config(place(REFERENCE, own=own)) for own in range(13)]
    assert len({json.dumps(found["cluster"]) for found in all_configs}) == 1
    tasks = [(found["task"]["type"], found["task"]["index"]) for found in all_configs]  # type: ignore[index]
    assert tasks == [("chief", 0), *(("worker", i) for i in range(9)), *(("ps", i) for i in range(3))]


def test_an_evaluator_is_outside_the_cluster() -> None:
    found = config(place({"chief": 1, "worker": 1, "evaluator": 1}, own=2))
    assert found["task"] == {"type": "evaluator", "index": 0, "cloud": "digits-x-3"}
    assert set(found["cluster"]) == {"chief", "worker"}  # type: ignore[call-overload]


def test_tensorflow_1_calls_the_chief_master() -> None:
    found = config(place(REFERENCE, own=0, env={"CLOUDGPU_TF_CHIEF": "master"}))
    assert found["cluster"]["master"] == ["10.0.0.0:2222"]  # type: ignore[index]
    assert found["task"]["type"] == "master"  # type: ignore[index]
    with pytest.raises(LauncherError, match="CLOUDGPU_TF_CHIEF=boss: expected chief or master"):
        config(place(REFERENCE, own=0, env={"CLOUDGPU_TF_CHIEF": "boss"}))


def test_one_node_is_a_cluster_of_itself() -> None:
    assert config(place({"worker": 1}, own=0), host="127.0.0.1")["cluster"] == {"worker": ["127.0.0.1:2222"]}


def test_addresses_of_the_next_generation() -> None:
    found = config(place({"worker": 2}, own=0), host="fd00::{}")
    assert found["cluster"] == {"worker": ["[fd00::0]:2222", "[fd00::1]:2222"]}


def test_the_rank_is_the_nodes() -> None:
    where = place({"chief": 1, "worker": 1}, own=1)
    addresses = {node.node: Address("h", 1) for node in where.nodes}
    (process,) = processes("tensorflow", where, {"TF_CONFIG": "of another job"}, addresses)
    assert (process.rank, process.env["CLOUDGPU_RANK"], process.env["CLOUDGPU_WORLD_SIZE"]) == (1, "1", "2")
    assert "of another job" not in process.env["TF_CONFIG"]
    assert "RANK" not in process.env
