"""Retries of failing steps: jobs that must end do end, and nothing is retried for ever."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from cloudgpu.control.reconcile.decisions import GRACE_S
from cloudgpu.control.reconcile.step_retries import ENDING_S, UNEXPECTED_S
from cloudgpu.protocol.jobdir import node_key
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy

FAILURES: list[Exception] = [
    TypeError("unsupported operand"),
    RecursionError("maximum recursion depth exceeded"),
    ProvisionError("transient", "the API does not answer"),
    ProvisionError("auth", "the credentials are refused"),
]


def begin(world: World, **policy: object) -> str:
    world.cloud.script = lives(Life(run_s=1e6, obeys=False))
    job_id = world.submit(make_offer(), policy=make_policy(**policy))
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    return job_id


def break_observe(world: World, error: Exception) -> None:
    world.cloud.faults["observe"] = [error for _ in range(60)]  # type: ignore[misc]  # a bug of a provisioner


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_cancelled_job_ends_though_every_step_fails(world: World, error: Exception) -> None:
    job_id = begin(world)
    break_observe(world, error)
    world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    supervisor, begun = world.supervisor(), world.clock.monotonic()
    world.drive(supervisor, until=lambda: world.attempts(job_id)[-1].state == "terminating")
    # A target that cannot be queried does not delay the end beyond the machines' deadline.
    is_target = isinstance(error, ProvisionError)
    least, reason = (GRACE_S["cancel"], "could not be queried") if is_target else (ENDING_S, "after 120 s in which it")
    assert least <= world.clock.monotonic() - begun <= least + 120.0
    world.drive(supervisor, until=lambda: not world.cloud.running())
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert world.job(job_id).state == "cancelled"
    assert reason in world.attempts(job_id)[-1].reason
    world.check_clean()


def test_a_limit_ends_a_job_though_every_step_fails(world: World) -> None:
    job_id = begin(world, duration_s=600)
    break_observe(world, TypeError("unsupported operand"))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: not world.cloud.running())
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("stopped", "duration")
    assert world.clock.monotonic() < 600 + 2 * ENDING_S + 300


def test_what_nothing_expects_is_given_up_after_an_hour(world: World) -> None:
    job_id = begin(world)
    world.cloud.faults["observe"] = [TypeError("unsupported operand") for _ in range(1_000)]  # type: ignore[misc]
    supervisor, begun = world.supervisor(), world.clock.monotonic()
    world.drive(supervisor, until=lambda: not world.cloud.running(), for_s=2 * UNEXPECTED_S)
    assert UNEXPECTED_S <= world.clock.monotonic() - begun <= UNEXPECTED_S + 240
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "error")
    assert "given up after 3600 s: TypeError" in world.job(job_id).reason


def test_what_is_expected_is_not_given_up(world: World) -> None:
    """An API that does not answer says nothing about machines that train."""
    job_id = begin(world)
    world.cloud.faults["observe"] = [ProvisionError("transient", "no answer") for _ in range(1_000)]
    supervisor, until = world.supervisor(), world.clock.monotonic() + UNEXPECTED_S + 600.0
    world.drive(supervisor, until=lambda: world.clock.monotonic() > until, for_s=2 * UNEXPECTED_S)
    assert world.job(job_id).state == "running"


def test_a_program_has_its_time_to_save_before_a_failing_job_is_ended(world: World) -> None:
    """limits.duration gives it two minutes from the stop order."""
    job_id = begin(world, duration_s=600)
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.attempts(job_id)[-1].state == "stopping")
    deadline = world.attempts(job_id)[-1].deadline
    break_observe(world, TypeError("unsupported operand"))
    world.drive(supervisor, until=lambda: not world.cloud.running())
    assert deadline is not None
    assert world.clock.now() >= deadline


def test_a_record_of_another_version_ends_one_node_and_not_the_supervisor(world: World) -> None:
    """A newer agent's record is interpreted as far as possible, and its job can be cancelled."""
    job_id = begin(world)
    folder = Path(unquote(world.job(job_id).job_dir.removeprefix("file://")))
    result = '{"outcome":"nonsense","exit_code":null,"reason":"x","started":1,"ended":2}'
    (folder / node_key(1, "worker-0.1", "result.json")).write_text(result)
    world.drive(world.supervisor())
    job = world.job(job_id)
    assert (job.state, job.cause, job.reason) == ("failed", "error", "unknown outcome 'nonsense': x")
    world.check_clean()
