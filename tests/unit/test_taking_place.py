"""A machine of a fleet becomes a member in the place of a lost one: what it costs, and when it is not to be."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.protocol.jobdir import Generation, Heartbeat, JobDir, JobRecord, NodeRecord, generation_key, node_key
from cloudgpu.runtime.agent.generations import FRUITLESS, Ledger
from cloudgpu.runtime.agent.membership import LeftOutError, take_place
from cloudgpu.runtime.agent.restart import Budget
from cloudgpu.runtime.launchers import ProgramContext

NODES = [NodeRecord(f"worker-{rank}.1", "worker", rank, rank, 0) for rank in range(2)]


class Attempt:
    """The job dir of an attempt of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.dir = JobDir(f"file://{folder}")

    def beats(self, node: str, generation: int, saved: int) -> None:
        timeline = {"claimed": 0.0, "spans": [{"generation": generation, "started": 0.0}]}
        beat = Heartbeat(1, 0.0, "running", {"saved_step": saved}, None, timeline)
        self.dir.put(node_key(1, node, "heartbeat.json"), beat.to_bytes())

    def generation(self, number: int, kind: Any, *, nodes: list[NodeRecord] | None = None, **more: Any) -> None:
        told = None if nodes is None else [dataclasses.asdict(node) for node in nodes]
        values = {"failures": 0, "interruptions": 0, **more}
        record = Generation(number, kind, "x", True, "", 0.0, time=0.0, nonce=str(number), nodes=told, **values)
        assert self.dir.create(generation_key(1, number), record.to_bytes())

    def take(self, node: str, interruptions: int | None = None) -> Generation:
        """As the node's agent does it, knowing what there is."""
        ledger = Ledger(self.dir, 1, node, Budget(1, interruptions), "group", heals=True)
        ledger.catch_up()
        rank = int(node.partition("-")[2][0])
        own = dataclasses.replace(NODES[rank], node=node)
        place = ProgramContext(JobRecord("job-1", "job", "x"), self.dir.url, 1, own, NODES, Path())
        return take_place(ledger, self.dir, 1, place)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def names(record: Generation) -> list[str]:
    return [node["node"] for node in record.nodes or []]


def test_the_loss_counts_once_and_the_others_answer_to_it_not_at_all(attempt: Attempt) -> None:
    attempt.beats("worker-0.1", 2, saved=40)
    attempt.beats("worker-1.1", 1, saved=32)
    attempt.generation(2, "failure", failures=1)
    record = attempt.take("worker-1.2")
    assert (record.generation, record.kind, names(record)) == (3, "members", ["worker-0.1", "worker-1.2"])
    assert (record.failures, record.interruptions, record.saved_step) == (0, 1, 40)


def test_what_was_used_before_the_loss_stays_used(attempt: Attempt) -> None:
    attempt.beats("worker-1.1", 2, saved=0)
    attempt.generation(2, "failure", failures=1)
    assert attempt.take("worker-1.2").failures == 1


def test_two_that_were_lost_are_replaced_one_after_the_other(attempt: Attempt) -> None:
    """Neither knows of the other before it finds its word under the number that it wanted."""
    assert names(attempt.take("worker-1.2")) == ["worker-0.1", "worker-1.2"]
    assert names(attempt.take("worker-0.2")) == ["worker-0.2", "worker-1.2"]
    assert names(attempt.take("worker-1.2")) == ["worker-0.2", "worker-1.2"], "asked again, its answer having been lost"


def test_who_comes_too_late_is_left_out(attempt: Attempt) -> None:
    attempt.take("worker-1.3")
    with pytest.raises(LeftOutError, match=r"worker-1\.3 is in its place"):
        attempt.take("worker-1.2")


def test_the_budget_ends_it(attempt: Attempt) -> None:
    attempt.take("worker-1.2", interruptions=1)
    with pytest.raises(LeftOutError):
        attempt.take("worker-1.3", interruptions=1)
    closed = Generation.from_bytes(attempt.dir.get(generation_key(1, 3)))
    assert closed.kind == "closed"


def test_machines_that_are_lost_again_and_again_for_nothing_end_it(attempt: Attempt) -> None:
    attempt.beats("worker-0.1", 1, saved=10)
    for incarnation in range(2, 2 + FRUITLESS):
        attempt.take(f"worker-1.{incarnation}")
    attempt.beats("worker-0.1", 1, saved=11)
    attempt.take(f"worker-1.{2 + FRUITLESS}")
    for incarnation in range(3 + FRUITLESS, 2 + 2 * FRUITLESS):
        attempt.take(f"worker-1.{incarnation}")
    with pytest.raises(LeftOutError):
        attempt.take(f"worker-1.{2 + 2 * FRUITLESS}")
