"""Replacement of a lost node, or continuing without it: failure cases on a fake cloud and a fake clock."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import pytest

from cloudgpu.control.accounting.paid_time import spans_of
from cloudgpu.control.accounting.report import make_report
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.jobdir import Generation, JobDir, generation_key
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy

LONG = Life(run_s=60)
VANISH = Life(run_s=10, end="vanish")
TAKEN = Life(run_s=10, end="taken")
A, B = "a-1", "a-2"


def submit(world: World, nodes: int, by_node: dict[str, Life], default: Life = LONG, **policy: Any) -> str:
    """Submit a job with two places; `by_node` sets how nodes of its first attempt behave."""
    world.cloud.script = lives(default, LONG, nodes=[((1, node), life) for node, life in by_node.items()])
    offers = [make_offer(nodes=nodes, zone=zone) for zone in (A, B)]
    return world.submit(*offers, policy=make_policy(**policy))


def begin(world: World, job_id: str) -> None:
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")


def outcomes(world: World, job_id: str) -> list[str]:
    return [attempt.outcome for attempt in world.attempts(job_id)]


def started(world: World, attempt: int = 1) -> list[str]:
    return [machine.node for machine in world.cloud.machines if machine.request.attempt == attempt]


def test_a_closed_row_is_not_healed(world: World) -> None:
    """A node has announced that the program restarts nowhere, and writes its last data; then another node is lost."""
    job_id = submit(world, 2, {"worker-0.1": Life(end="serve"), "worker-1.1": VANISH})
    begin(world, job_id)
    closed = Generation(2, "closed", "worker-0.1", True, "", 0.0, 0, 0, 0.0, "")
    assert JobDir(world.job(job_id).job_dir).create(generation_key(1, 2), closed.to_bytes())
    world.finish(job_id)
    assert outcomes(world, job_id) == ["lost", "succeeded"]
    assert started(world) == ["worker-0.1", "worker-1.1"]


def test_a_machine_that_replaces_another_one_expires_after_it_has_ended_itself(world: World) -> None:
    """Its lifetime is that of the first machines, but begins later."""
    lost = {"worker-1.1": Life(run_s=5_000, end="vanish")}
    job_id = submit(world, 2, lost, Life(run_s=9_000), duration_s=20_000)
    begin(world, job_id)
    world.clock.advance(5_000)
    world.cloud.live()
    world.drive(world.supervisor(), until=lambda: "worker-1.2" in started(world))
    [later] = [machine for machine in world.cloud.machines if machine.node == "worker-1.2"]
    lifetime, expires = later.request.lifetime_s, later.request.expires
    assert lifetime is not None and expires is not None and expires >= later.launched + lifetime


def test_a_node_without_a_machine_is_not_silent(world: World) -> None:
    """Its replacement is refused for longer than a machine may take to boot; the other node trains."""
    job_id = submit(world, 2, {"worker-1.1": VANISH}, Life(run_s=2_000), least_nodes=1)
    begin(world, job_id)
    world.cloud.full = {A}
    begun = world.clock.now()
    world.drive(world.supervisor(), until=lambda: world.clock.now() > begun + 1_300)
    world.cloud.full = set()
    world.finish(job_id)
    assert outcomes(world, job_id) == ["succeeded"]
    assert started(world) == ["worker-0.1", "worker-1.1", "worker-1.2"]


@pytest.mark.parametrize(("nodes", "least"), [(2, None), (3, 2)])
def test_nodes_do_not_idle_for_an_unavailable_machine(world: World, nodes: int, least: int | None) -> None:
    lost = {f"worker-{index}.1": VANISH for index in range(1, nodes)}
    job_id = submit(world, nodes, lost, least_nodes=least)
    begin(world, job_id)
    world.cloud.full = {A}
    world.finish(job_id)
    first, second = world.attempts(job_id)
    assert (first.outcome, second.outcome, second.offer.zone) == ("lost", "succeeded", B)
    assert (first.ended or 0) - (first.launched or 0) < 20


@pytest.mark.parametrize("answer", [None, "failure", "interruption"])
@pytest.mark.parametrize("healed", [True, False])
def test_a_loss_counts_once(world: World, answer: Any, healed: bool) -> None:
    """The other programs' reaction does not matter, nor whether a replacement is available."""
    default = Life(run_s=60, answer=answer)
    job_id = submit(world, 2, {"worker-1.1": TAKEN}, default, preemptions=1, failures=1)
    begin(world, job_id)
    world.cloud.full = set() if healed else {A}
    world.finish(job_id)
    job, attempts = world.job(job_id), world.attempts(job_id)
    assert (job.state, len(attempts)) == ("succeeded", 1 if healed else 2), job.reason
    used = [(last.failures, last.interruptions) for last in attempts[0].generations[-1:]]
    assert (used or [(0, 0)]) == [(0, 1 if healed else 0)]


def test_more_losses_than_allowed_end_the_job(world: World) -> None:
    job_id = submit(world, 2, {"worker-1.1": TAKEN, "worker-1.2": TAKEN}, preemptions=1)
    world.finish(job_id)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("failed", ["preempted"])
    assert started(world) == ["worker-0.1", "worker-1.1", "worker-1.2"]


def test_an_attempt_of_an_older_version_is_not_healed(world: World) -> None:
    """Its machines' agents do not wait for replacements."""
    job_id = submit(world, 2, {"worker-1.1": VANISH})
    begin(world, job_id)
    with sqlite3.connect(world.folder / "store.db") as store:
        store.execute("UPDATE attempts SET nodes = NULL")
    world.finish(job_id)
    assert outcomes(world, job_id) == ["lost", "succeeded"]


@pytest.mark.parametrize(("least", "expected"), [(None, ["lost", "succeeded"]), (1, ["succeeded"])])
def test_a_new_machine_whose_setup_fails(world: World, least: int | None, expected: list[str]) -> None:
    lost = {"worker-1.1": VANISH, "worker-1.2": Life(boot_s=3, run_s=3, end="failed", exit_code=1)}
    job_id = submit(world, 2, lost, least_nodes=least)
    world.finish(job_id)
    assert outcomes(world, job_id) == expected


def test_another_one_is_lost_while_one_is_replaced(world: World) -> None:
    lost = {"worker-1.1": VANISH, "worker-2.1": Life(run_s=12, end="vanish"), "worker-1.2": Life(boot_s=5, run_s=60)}
    job_id = submit(world, 3, lost)
    world.finish(job_id)
    (attempt,) = world.attempts(job_id)
    members = [[node["node"] for node in record.nodes or []] for record in attempt.generations]
    assert members == [["worker-0.1", "worker-1.2", "worker-2.2"]]


def test_the_time_of_a_first_node_that_was_replaced_is_not_forgotten(world: World) -> None:
    """Only its records cover the time before the loss; its replacement's records cover the time after it."""
    lost = {f"worker-{index}.1": Life(run_s=run_s, end="vanish") for index, run_s in enumerate((40, 60))}
    job_id = submit(world, 2, lost, Life(run_s=40))
    world.finish(job_id)
    (attempt,) = world.attempts(job_id)
    report = make_report([attempt], time.time())
    assert abs(report.times.total - report.paid_seconds) < 0.01
    assert report.starts == 3
    assert report.times.boot < 3
    assert report.times.productive > 0.8 * report.paid_seconds
    assert _generations(attempt) == [1, 2, 3]


def _generations(attempt: Attempt) -> list[int]:
    return [span.generation for span in spans_of(attempt.timeline)]
