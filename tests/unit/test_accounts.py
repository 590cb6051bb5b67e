"""Account isolation: a supervisor whose credentials are of another account neither judges nor changes an account's
machines."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest

from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.cloud import Life
from cloudgpu.tests.standins.control import World, make_policy

ANN, BEN = "111111111111", "222222222222"
LONG = Life(run_s=500.0)


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    made = World(tmp_path, template)
    made.cloud.script = lambda _attempt, _node: LONG
    made.cloud.credentials_of = ANN
    return made


def run(world: World, supervisor: Supervisor, seconds: float) -> None:
    end = world.clock.monotonic() + seconds
    while world.clock.monotonic() < end:
        supervisor.tick()
        world.clock.advance(4.0)
        world.cloud.live()


def test_the_account_is_written_before_machines_are_asked_for_and_into_the_allocation(world: World) -> None:
    world.cloud.faults["launch"] = [ProvisionError("transient", "no answer")]
    job = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job).waits == 1)
    [attempt] = world.attempts(job)
    assert (attempt.account, attempt.allocation) == (ANN, None)
    world.drive(world.supervisor("elsewhere/2/b"), until=lambda: world.job(job).state == "running")
    [attempt] = world.attempts(job)
    assert attempt.allocation is not None
    assert attempt.allocation.account == ANN


def test_without_answer_to_the_question_whose_account_it_is_nothing_is_asked_for(world: World) -> None:
    world.cloud.faults["account"] = [ProvisionError("throttled", "too often")]
    job = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job).waits == 1)
    assert world.cloud.launches == [] and world.attempts(job)[0].launched is None
    world.drive(world.supervisor(), until=lambda: world.job(job).state == "running")
    assert world.attempts(job)[0].account == ANN


@pytest.mark.parametrize("before", ["running", "asked", "stopping", "terminating"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_credentials_of_another_account_change_nothing_and_say_so(world: World, before: str, cancelled: bool) -> None:
    if before == "asked":  # the machines were created, but the response was lost
        world.cloud.faults["launch"] = [ProvisionError("transient", "no answer")]
        world.cloud.partial_launch = True
    if before == "terminating":
        world.cloud.script = lambda _attempt, _node: Life(run_s=3.0)
        world.cloud.faults["terminate"] = [ProvisionError("transient", "later")] * 1_000
    job = world.submit(policy=make_policy(duration_s=100) if before == "stopping" else None)
    anns = world.supervisor()
    if before == "asked":
        world.drive(anns, until=lambda: world.job(job).waits == 1)
    else:
        world.drive(anns, until=lambda: world.attempts(job)[-1:] != [] and world.attempts(job)[-1].state == before)
    anns.release()
    made = len(world.cloud.machines)
    attempt = world.attempts(job)[-1]

    world.cloud.credentials_of = BEN
    if cancelled:
        world.store.set_goal(job, "cancel", "cancel", world.clock.now())
    run(world, world.supervisor("elsewhere/2/b"), 400.0)
    assert world.attempts(job) == [attempt], "neither concluded nor stopped"
    row = world.job(job)
    assert row.state not in ("failed", "cancelled") and row.ended is None
    assert f"its machines are in account {ANN}, these credentials are of {BEN}: log in there" in row.reason
    assert "cancel and limits do not act on its machines" in row.reason
    messages = [event.message for event in world.store.events(job) if BEN in event.message]
    assert len(messages) == 1, "once, and not with every try"
    assert row.lease_owner is None, "left to whoever has the other account's credentials"
    assert len(world.cloud.machines) == made

    world.cloud.credentials_of = ANN
    world.cloud.faults.clear()
    if not cancelled:
        world.store.set_goal(job, "cancel", "cancel", world.clock.now())
    world.finish(job)
    assert "not supervised" not in world.job(job).reason
    assert world.job(job).spent is not None and (world.job(job).spent or 0) > 0


def test_an_allocation_that_the_version_before_has_stored_is_in_its_account(world: World) -> None:
    """The previous version kept the account in `details`."""
    job = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job).state == "running")
    supervisor.release()
    [attempt] = world.attempts(job)
    assert attempt.allocation is not None
    stored = attempt.allocation.to_json()
    older = {key: stored[key] for key in ("target", "job_id", "attempt", "token", "machines", "is_fresh")}
    with sqlite3.connect(world.folder / "store.db") as store:
        allocation = json.dumps({**older, "details": {"region": "here", "account": ANN}})
        store.execute("UPDATE attempts SET allocation = ?", [allocation])
    world.cloud.credentials_of = BEN
    run(world, world.supervisor("elsewhere/2/b"), 100.0)
    assert f"its machines are in account {ANN}" in world.job(job).reason
    world.cloud.credentials_of = ANN
    world.finish(job)
    assert world.job(job).state == "succeeded"


def test_two_people_with_an_account_each_share_a_store(world: World) -> None:
    """Both supervisors run: each launches and watches its own owner's jobs."""
    world.cloud.script = lambda _attempt, _node: Life(run_s=60.0)
    jobs = {
        who: world.submit(policy=dataclasses.replace(make_policy(), accounts={"local": who}), name=name)
        for who, name in ((ANN, "ann"), (BEN, "ben"))
    }
    supervisors = {ANN: world.supervisor("elsewhere/1/a"), BEN: world.supervisor("elsewhere/2/b")}
    for _ in range(200):
        for who, supervisor in supervisors.items():
            world.cloud.credentials_of = who
            supervisor.tick()
        world.clock.advance(1.0)
        world.cloud.live()
    for who, job in jobs.items():
        assert world.job(job).state == "succeeded", (who, [one.message for one in world.store.events(job)])
        assert [attempt.account for attempt in world.attempts(job)] == [who]
        assert [one.kind for one in world.store.events(job) if one.kind == "trouble"] == []
    assert {machine.request.job_id: machine.account for machine in world.cloud.machines} == {
        job: who for who, job in jobs.items()
    }


def test_a_job_for_another_account_is_not_launched_here_and_says_so_after_a_while(world: World) -> None:
    job = world.submit(policy=dataclasses.replace(make_policy(), accounts={"local": BEN}))
    run(world, world.supervisor(), 120.0)
    assert world.cloud.machines == [] and world.attempts(job) == []
    assert "nothing is launched for it" in world.job(job).reason
    world.store.set_goal(job, "cancel", "cancel", world.clock.now())
    run(world, world.supervisor("elsewhere/2/b"), 60.0)
    assert world.job(job).state == "cancelled", "nothing was made: whoever looks may end it"


def test_an_attempt_of_an_older_version_is_looked_after_by_any_credentials(world: World) -> None:
    world.cloud.credentials_of = ""
    job = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job).state == "running")
    [attempt] = world.attempts(job)
    assert attempt.account == "" and attempt.allocation is not None
    assert not attempt.allocation.account
    world.finish(job)
    assert world.job(job).state == "succeeded"


def test_expired_credentials_say_what_is_not_done_and_how_to_mend_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    world.drive(world.supervisor(), until=lambda: world.job(job).state == "running")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    world.cloud.faults["observe"] = [ProvisionError("auth", "the security token has expired")] * 3
    run(world, supervisor := world.supervisor(), 5.0)
    reason = world.job(job).reason
    assert reason.startswith("waiting for credentials: the security token has expired. Until then cancel and limits")
    assert reason.endswith("New credentials are used within 30 s")
    run(world, supervisor, 60.0)
    assert world.job(job).reason == "" and world.job(job).state == "running"
