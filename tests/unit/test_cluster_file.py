"""cluster.yaml: all mistakes are reported together, each with its line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.fleets import ClusterFile
from cloudgpu.jobspecs.loading.cluster_file import LoadedCluster, load_cluster, load_cluster_source
from cloudgpu.jobspecs.loading.source import Source

GOOD = "name: big\nresources: {accelerator: 'L4:1', cloud: aws, market: spot, nodes: 2}\non_demand: 1\n"


def load(text: str) -> LoadedCluster:
    return load_cluster_source(Source("cluster.yaml", text))


def mistakes(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(SpecError) as wrong:
        load(text)
    return [(one.line, one.column, one.code) for one in wrong.value.diagnostics]


def test_a_good_one_is_planned_as_a_job_of_its_machines() -> None:
    loaded = load(GOOD)
    assert (loaded.cluster.name, loaded.cluster.on_demand, loaded.cluster.heal) == ("big", 1, True)
    assert loaded.job.resources == loaded.cluster.resources
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("written", "seconds"), [("", 7 * 86_400), ("expires: 12h\n", 43_200), ("expires: never\n", None)]
)
def test_a_forgotten_one_does_not_bill_for_ever(written: str, seconds: int | None) -> None:
    cluster = load(GOOD + written).cluster
    assert cluster.expires == seconds
    assert ClusterFile.model_validate(cluster.model_dump(mode="json")).expires == seconds


def test_an_empty_one_begins_as_a_cluster_does() -> None:
    with pytest.raises(SpecError) as wrong:
        load("")
    assert [one.hint for one in wrong.value.diagnostics] == ["a cluster file begins like this: name: my-cluster"]


def test_every_mistake_is_told_where_it_is() -> None:
    text = """name: Big
resources:
  acelerator: L4:1
  cloud: [aws, gcp]
  region: us-est-1
heel: true
run: python train.py
idle: soon
limits: {price: cheap}
"""
    assert mistakes(text) == [
        (1, 7, "bad-name"),
        (3, 3, "unknown-key"),
        (5, 11, "unknown-region"),
        (6, 1, "unknown-key"),
        (7, 1, "unknown-key"),
        (8, 7, "bad-duration"),
        (9, 17, "bad-amount"),
    ]


def test_hints_name_the_keys_of_a_cluster() -> None:
    with pytest.raises(SpecError) as wrong:
        load(f"{GOOD}heel: true\nrun: x\n")
    assert [one.hint for one in wrong.value.diagnostics] == [
        "did you mean heal?",
        "it belongs into a job file; known here: name, resources, on_demand, heal, idle, expires, limits",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("name: big\n", [(1, 1, "missing-key")]),
        ("resources: {cloud: aws}\n", [(1, 1, "missing-key")]),
        (GOOD.replace("spot", "on-demand"), [(3, 12, "bad-mix")]),
        (GOOD.replace("on_demand: 1", "on_demand: 3"), [(3, 12, "bad-mix")]),
        (f"{GOOD}expires: someday\n", [(4, 10, "bad-duration")]),
        (f"{GOOD}expires:\n", [(4, 9, "bad-duration")]),
        (f"{GOOD}expires: 0s\n", [(4, 10, "bad-value")]),
        (f"{GOOD}expires: 599s\n", [(4, 10, "bad-value")]),
        (GOOD.replace("cloud: aws", "cloud: [aws, local]"), [(2, 47, "no-cluster-there")]),
        (GOOD.replace("cloud: aws", "cloud: vertex"), [(2, 41, "no-cluster-there")]),
        (GOOD.replace("nodes: 2", "nodes: 1..2"), [(2, 67, "elastic-cluster")]),
        (f"{GOOD}limits: {{cost: 5 USD}}\n", [(4, 10, "not-for-clusters")]),
        (f"{GOOD}limits: {{gpu_idle: 1h}}\n", [(4, 10, "not-for-clusters")]),
        (f"{GOOD}limits: {{cost: 5 USD, price: cheap}}\n", [(4, 10, "not-for-clusters"), (4, 30, "bad-amount")]),
    ],
)
def test_what_a_cluster_cannot_be(text: str, found: list[tuple[int, int, str]]) -> None:
    if found:
        assert mistakes(text) == found
    else:
        assert mistakes(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        load_cluster(tmp_path / "none.yaml")
