"""Supervisor on a fake cloud and a fake clock: every course that a job can take."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tracemalloc
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

from cloudgpu.control.supervisor.leases import LEASE_S
from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, JobDir, Result, attempt_key, node_key
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.cloud import FAIL, SUCCEED, TAKEN, VANISH, Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy


def outcomes(world: World, job_id: str) -> list[str]:
    return [attempt.outcome for attempt in world.attempts(job_id)]


def test_a_job_succeeds(world: World) -> None:
    job_id = world.submit()
    world.finish(job_id)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, job.exit_code, attempt.state, attempt.outcome) == ("succeeded", 0, "ended", "succeeded")
    assert [event.message for event in world.store.events(job_id)][-1] == "succeeded"


def test_the_price_is_frozen_and_paid_from_launch_to_gone(world: World) -> None:
    job_id = world.submit(make_offer(price="3600"))  # one dollar a second
    world.finish(job_id)
    [attempt] = world.attempts(job_id)
    assert attempt.cost is not None and 10 <= attempt.cost <= 13
    assert world.job(job_id).spent == attempt.cost


def test_an_unknown_price_is_an_unknown_cost(world: World) -> None:
    job_id = world.submit(make_offer(price=None))
    world.finish(job_id)
    assert world.attempts(job_id)[0].cost is None
    assert world.job(job_id).spent is None


def test_states_are_seen_in_order(world: World) -> None:
    job_id = world.submit()
    seen: list[str] = []

    def note() -> bool:
        state = world.job(job_id).state
        if state not in seen:
            seen.append(state)
        return state == "succeeded"

    world.drive(world.supervisor(), until=note)
    assert seen == ["queued", "starting", "running", "succeeded"]


@pytest.mark.parametrize(("retries", "states"), [(0, ["failed"]), (1, ["failed", "failed"])])
def test_failures_are_retried_as_often_as_allowed(world: World, retries: int, states: list[str]) -> None:
    world.cloud.script = lives(FAIL)
    job_id = world.submit(policy=make_policy(failures=retries))
    world.finish(job_id)
    job = world.job(job_id)
    assert outcomes(world, job_id) == states
    assert (job.state, job.cause, job.exit_code, job.reason) == ("failed", "failed", 3, "exit code 3")


def test_a_retry_may_succeed(world: World) -> None:
    world.cloud.script = lives(FAIL, SUCCEED)
    job_id = world.submit()
    world.finish(job_id)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("succeeded", ["failed", "succeeded"])


@pytest.mark.parametrize(("life", "outcome"), [(TAKEN, "preempted"), (VANISH, "lost")])
def test_an_interruption_leads_to_a_new_attempt(world: World, life: Life, outcome: str) -> None:
    world.cloud.script = lives(life, SUCCEED)
    job_id = world.submit()
    world.finish(job_id)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("succeeded", [outcome, "succeeded"])
    first, second = world.attempts(job_id)
    assert second.created - (first.ended or 0) < 1


def test_a_program_that_asks_to_be_run_again_is(world: World) -> None:
    world.cloud.script = lives(Life(end="again", exit_code=75), SUCCEED)
    job_id = world.submit(policy=make_policy(failures=0))
    world.finish(job_id)
    assert outcomes(world, job_id) == ["again", "succeeded"]


def test_an_error_that_running_again_does_not_heal_is_the_end(world: World) -> None:
    world.cloud.script = lives(Life(end="failed", exit_code=70, reason="no such column", final=True))
    job_id = world.submit(policy=make_policy(failures=9))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, job.exit_code, job.reason) == ("failed", "user", 70, "no such column")
    assert outcomes(world, job_id) == ["failed"]


@pytest.mark.parametrize(
    ("allowed", "restarts", "states"),
    [
        (2, (2, 0), ["failed"]),
        (3, (2, 0), ["failed", "succeeded"]),
        (4, (2, 1), ["failed", "succeeded"]),
        (3, (1, 1, 1), ["failed", "failed"]),
    ],
)
def test_what_the_machines_restart_by_themselves_is_of_the_same_budget(
    world: World, allowed: int, restarts: tuple[int, ...], states: list[str]
) -> None:
    first = [dataclasses.replace(FAIL, restarts=count) for count in restarts]
    ends = [*first[: len(states)]]
    if states[-1] == "succeeded":
        ends[-1] = dataclasses.replace(SUCCEED, restarts=restarts[len(states) - 1])
    world.cloud.script = lives(*ends)
    job_id = world.submit(policy=make_policy(failures=allowed))
    world.finish(job_id)
    assert outcomes(world, job_id) == states
    counts = [len(attempt.generations) for attempt in world.attempts(job_id)]
    assert counts == list(restarts[: len(states)])
    messages = [event.message for event in world.store.events(job_id) if event.kind == "restarted"]
    assert messages[0] == "worker-0.1: SIGKILL; the program starts again in place (generation 2)"
    assert len(messages) == sum(counts)
    left = []
    for number in range(1, len(states) + 1):
        data = JobDir(world.job(job_id).job_dir).get(attempt_key(number))
        left.append(AttemptRecord.from_bytes(data).failures_left)
    assert left == [allowed, allowed - restarts[0] - 1][: len(states)]


def test_an_attempt_knows_what_the_earlier_ones_met(world: World) -> None:
    """Interruptions of attempts that never saved count too, although no checkpoint records them."""
    vanish = Life(end="vanish", saves=False)
    world.cloud.script = lives(vanish, dataclasses.replace(FAIL, restarts=2), vanish, SUCCEED)
    job_id = world.submit(policy=make_policy(failures=9))
    world.finish(job_id)
    attempts = world.attempts(job_id)
    market = attempts[0].offer.market
    found = []
    for attempt in attempts:
        data = JobDir(world.job(job_id).job_dir).get(attempt_key(attempt.number))
        found.append(AttemptRecord.from_bytes(data).earlier["markets"].get(market, [0.0, 0]))
    assert [interruptions for _, interruptions in found] == [0, 1, 4, 5]
    seconds = [seconds for seconds, _ in found]
    assert seconds == sorted(seconds)
    paid = sum((one.ended or 0.0) - (one.launched or 0.0) for one in attempts[:-1])
    assert 0 < seconds[-1] <= paid * attempts[0].offer.nodes


def test_preemptions_are_counted(world: World) -> None:
    world.cloud.script = lives(TAKEN)
    job_id = world.submit(policy=make_policy(preemptions=2))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, len(world.attempts(job_id))) == ("failed", "preempted", 3)
    assert "retry.preemption is 2" in job.reason


def test_vanishing_again_and_again_without_a_checkpoint_ends(world: World) -> None:
    world.cloud.script = lives(Life(end="vanish", saves=False))
    job_id = world.submit()
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, len(world.attempts(job_id))) == ("failed", "lost", 6)
    assert "without a new checkpoint" in job.reason


def test_vanishing_with_progress_goes_on(world: World) -> None:
    world.cloud.script = lives(*[VANISH] * 9, SUCCEED)
    job_id = world.submit()
    world.finish(job_id)
    assert (world.job(job_id).state, len(world.attempts(job_id))) == ("succeeded", 10)


def test_a_job_ends_whatever_its_program_says(world: World) -> None:
    world.cloud.script = lives(Life(end="failed", exit_code=70, reason="no such file: \udcff\0", final=True))
    job_id = world.submit()
    world.finish(job_id)
    assert world.job(job_id).reason == r"no such file: \udcff\0"


def test_an_error_of_the_agent_is_final(world: World) -> None:
    world.cloud.script = lives(Life(end="error", exit_code=None, reason="the archive leads out of its folder"))
    job_id = world.submit()
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, job.reason) == ("failed", "error", "the archive leads out of its folder")


# -- several nodes


def test_peers_of_a_failed_node_are_stopped(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6), nodes=[((1, "worker-1.1"), FAIL)])
    job_id = world.submit(make_offer(nodes=3), policy=make_policy(failures=0))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.exit_code, job.reason) == ("failed", 3, "worker-1.1: exit code 3")


def test_a_vanished_node_explains_the_failure_of_its_peers(world: World) -> None:
    broken = Life(end="failed", exit_code=1, reason="connection reset by peer")
    world.cloud.script = lives(broken, SUCCEED, nodes=[((1, "worker-0.1"), Life(end="vanish", run_s=10.5))])
    job_id = world.submit(make_offer(nodes=2), policy=make_policy(failures=0))
    world.finish(job_id)
    assert outcomes(world, job_id)[-1] == "succeeded"


def test_a_chief_may_succeed_while_it_is_stopped_for_a_server_that_failed_to_begin(world: World) -> None:
    """The job was still starting: no program had started on any node."""
    roles = [dataclasses.replace(make_offer().roles[0], role=name) for name in ("chief", "parameter_server")]
    world.cloud.script = lives(Life(boot_s=5, run_s=10, obeys=False))
    job_id = world.submit(make_offer(roles=tuple(roles)))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "starting")
    [server] = [machine for machine in world.cloud.machines if machine.node == "parameter_server-0.1"]
    now = world.clock.now()
    failed = Result(outcome="failed", exit_code=1, reason="its setup failed", started=now, ended=now)
    server.job_dir.put(node_key(1, server.node, "result.json"), failed.to_bytes())
    server.done = server.gone = True
    world.drive(supervisor, for_s=120)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("succeeded", ["succeeded"])


def test_a_stubborn_peer_is_terminated_at_the_deadline(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6, obeys=False), nodes=[((1, "worker-1.1"), FAIL)])
    job_id = world.submit(make_offer(nodes=2), policy=make_policy(failures=0))
    world.finish(job_id)
    assert world.job(job_id).state == "failed"


def test_a_silent_machine_is_lost(world: World) -> None:
    world.cloud.script = lives(Life(end="hang"), SUCCEED)
    job_id = world.submit()
    world.finish(job_id)
    first, second = world.attempts(job_id)
    assert (first.outcome, second.outcome) == ("lost", "succeeded")
    assert "never reported" in first.reason


# -- requested ends


def cancel(world: World, job_id: str) -> None:
    assert world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())


def test_cancel_while_running(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    cancel(world, job_id)
    world.drive(supervisor)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("cancelled", ["stopped"])
    world.check_clean()


def test_cancel_while_peers_are_being_stopped(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6, obeys=False), nodes=[((1, "worker-1.1"), FAIL)])
    job_id = world.submit(make_offer(nodes=2))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: [a.state for a in world.attempts(job_id)] == ["stopping"])
    cancel(world, job_id)
    world.drive(supervisor, until=lambda: world.job(job_id).state == "stopping", for_s=3)
    world.drive(supervisor)
    assert (world.job(job_id).state, outcomes(world, job_id)) == ("cancelled", ["failed"])
    world.check_clean()


def test_cancel_before_anything_happened(world: World) -> None:
    job_id = world.submit()
    cancel(world, job_id)
    world.finish(job_id)
    assert (world.job(job_id).state, world.cloud.launches) == ("cancelled", [])


def test_cancel_while_waiting_for_capacity(world: World) -> None:
    world.cloud.faults["launch"] = [ProvisionError("capacity", "no GPU is free") for _ in range(1000)]
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).waits == 3)
    cancel(world, job_id)
    world.drive(supervisor)
    assert (world.job(job_id).state, len(world.attempts(job_id))) == ("cancelled", 1)
    world.check_clean()


def test_cancel_is_not_a_race_with_success(world: World) -> None:
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: not world.cloud.running() and bool(world.cloud.machines))
    cancel(world, job_id)
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"


def test_the_duration_limit_stops(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit(policy=make_policy(duration_s=60))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("stopped", "duration")
    assert 60 <= (job.ended or 0) - job.created < 65
    assert world.cloud.launches[0].lifetime_s is not None


def test_the_duration_limit_counts_all_attempts(world: World) -> None:
    world.cloud.script = lives(VANISH)
    job_id = world.submit(policy=make_policy(duration_s=60))
    world.finish(job_id)
    assert world.job(job_id).cause == "duration"
    assert len(world.attempts(job_id)) > 3


def test_the_cost_limit_stops_before_it_is_passed(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit(make_offer(price="3.6"), policy=make_policy(cost_usd=Decimal(1)))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("stopped", "cost")
    assert job.spent is not None and Decimal("0.85") < job.spent < Decimal(1)


def test_the_cost_limit_counts_all_attempts(world: World) -> None:
    world.cloud.script = lives(Life(end="vanish", run_s=200))
    job_id = world.submit(make_offer(price="3.6"), policy=make_policy(cost_usd=Decimal(1)))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("stopped", "cost")
    assert job.spent is not None and job.spent < Decimal(1)
    assert len(world.attempts(job_id)) > 3


@pytest.mark.parametrize(
    ("end", "asleep"), [("vanish", False), ("preempted", False), ("failed", False), ("vanish", True)]
)
def test_a_machine_that_ended_between_polls_is_paid_for_until_its_end(world: World, end: str, asleep: bool) -> None:
    """No limit ends the job for costs that did not occur. `asleep`: the same supervisor continues, after its laptop
    slept."""
    world.cloud.script = lives(Life(end=end, run_s=100, exit_code=1), Life())
    job_id = world.submit(make_offer(price="3.6"), policy=make_policy(cost_usd=Decimal(2)))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    for _ in range(3_600):
        world.clock.advance(10)
        world.cloud.live()
    world.drive(supervisor if asleep else world.supervisor())
    world.check_clean()
    job, [first, _] = world.job(job_id), world.attempts(job_id)
    assert job.state == "succeeded"
    assert first.cost is not None and Decimal("0.7") <= first.cost < Decimal("0.73")
    assert job.spent is not None and first.cost < job.spent < first.cost + Decimal("0.05")


def test_a_machine_s_clock_does_not_count_where_the_supervisor_looked(world: World) -> None:
    """The machine's clock is an hour slow."""
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit(make_offer(price="3.6"))
    begun, supervisor = world.clock.now(), world.supervisor()
    world.drive(supervisor, until=lambda: world.clock.now() >= begun + 1_000)
    [machine] = world.cloud.machines
    wrong = world.clock.now() - 3_600
    result = Result(outcome="succeeded", exit_code=0, reason="", started=wrong, ended=wrong)
    machine.job_dir.put(node_key(1, machine.node, "result.json"), result.to_bytes())
    machine.gone = True
    world.drive(supervisor)
    [attempt] = world.attempts(job_id)
    assert attempt.outcome == "succeeded"
    assert attempt.cost is not None and Decimal("0.99") < attempt.cost < Decimal("1.1")


def test_a_machine_that_existed_between_polls_is_paid_for(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit(make_offer(price="3.6"), policy=make_policy(cost_usd=Decimal(2)))
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    for _ in range(360):
        world.clock.advance(10)
        world.cloud.live()
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("stopped", "cost")
    assert job.spent is not None and job.spent > Decimal("3.6")


@pytest.mark.parametrize("verb", ["cancel", ""])
def test_a_limit_holds_although_the_target_cannot_be_queried(world: World, verb: str) -> None:
    """The stop order reaches the machines through the job dir."""
    world.cloud.script = lives(Life(run_s=1e6))
    job_id = world.submit(policy=make_policy(duration_s=None if verb else 60))
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    if verb:
        assert world.store.set_goal(job_id, verb, verb, world.clock.now())
    world.cloud.faults["observe"] = [refusal("transient") for _ in range(1_000)]
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "stopping")
    world.drive(
        world.supervisor(), until=lambda: bool(world.cloud.machines[0].job_dir.find(attempt_key(1, "stop.json")))
    )
    world.cloud.faults.clear()
    world.finish(job_id)


IDLE = Life(run_s=1e6, idle_from_s=5)
BUSY = Life(run_s=1e6, idle_from_s=1e6)
UNKNOWN = Life(run_s=1e6, idle_from_s=None)


def test_a_job_whose_gpus_all_idle_is_stopped(world: World) -> None:
    world.cloud.script = lives(IDLE, nodes=[((1, "worker-1.1"), Life(run_s=1e6, idle_from_s=50))])
    job_id = world.submit(make_offer(nodes=2, gpus=1), policy=make_policy(gpu_idle_s=1800))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause, outcomes(world, job_id)) == ("stopped", "gpu_idle", ["stopped"])
    assert job.reason == "limits.gpu_idle reached: no GPU did anything for 30m"
    assert 1850 <= (job.ended or 0) - job.created < 1860, "from when the last of them fell idle"


@pytest.mark.parametrize("other", [BUSY, UNKNOWN])
def test_one_idle_node_is_no_idle_job(world: World, other: Life) -> None:
    world.cloud.script = lives(IDLE, nodes=[((1, "worker-1.1"), other)])
    job_id = world.submit(make_offer(nodes=2, gpus=1), policy=make_policy(gpu_idle_s=60, duration_s=600))
    world.finish(job_id)
    assert world.job(job_id).cause == "duration"


def test_nodes_without_gpus_are_not_asked(world: World) -> None:
    roles = (*make_offer(gpus=1).roles, dataclasses.replace(make_offer().roles[0], role="evaluator"))
    world.cloud.script = lives(UNKNOWN, nodes=[((1, "worker-0.1"), IDLE)])
    job_id = world.submit(make_offer(roles=roles), policy=make_policy(gpu_idle_s=60))
    world.finish(job_id)
    assert world.job(job_id).cause == "gpu_idle"


def test_another_supervisor_knows_as_much_of_idle_gpus(world: World) -> None:
    world.cloud.script = lives(IDLE)
    job_id = world.submit(make_offer(gpus=1), policy=make_policy(gpu_idle_s=60))
    begun = world.clock.monotonic()
    world.drive(world.supervisor("a/1/a"), until=lambda: world.clock.monotonic() - begun > 50)
    world.drive(world.supervisor("b/1/b"))
    job = world.job(job_id)
    assert job.cause == "gpu_idle"
    assert (job.ended or 0) - job.created < 65 + LEASE_S + 5


def test_idle_gpus_are_borne_without_a_limit(world: World) -> None:
    world.cloud.script = lives(Life(run_s=7200, idle_from_s=1))
    job_id = world.submit(make_offer(gpus=1))
    world.drive(world.supervisor(), for_s=8000)
    assert world.job(job_id).state == "succeeded"


# -- places


def refusal(kind: str, message: str = "", scope: str = "zone") -> ProvisionError:
    return ProvisionError(kind, message or f"{kind}!", scope=scope)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "scope", "expected"),
    [
        ("capacity", "zone", "a-2"),
        ("capacity", "region", "b-1"),
        ("quota", "region", "b-1"),
        ("not_offered", "zone", "a-2"),
    ],
)
def test_a_refused_place_leads_to_the_next(world: World, kind: str, scope: str, expected: str) -> None:
    world.cloud.faults["launch"] = [refusal(kind, scope=scope)]
    offers = [make_offer(region=zone[0], zone=zone) for zone in ("a-1", "a-2", "b-1")]
    job_id = world.submit(*offers)
    world.finish(job_id)
    assert [request.zone for request in world.cloud.launches] == [expected]
    assert outcomes(world, job_id) == ["refused", "succeeded"]


def test_when_every_place_is_full_it_waits_and_tries_again(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("capacity") for _ in range(5)]
    job_id = world.submit(make_offer(zone="a-1"), make_offer(zone="a-2"))
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded"
    assert [attempt.round for attempt in world.attempts(job_id)] == [0, 0, 1, 1, 2, 2]
    assert world.cloud.launches[0].zone == "a-2"


def test_a_busy_single_place_is_waited_for_within_one_attempt(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("capacity", "2 GPUs wanted, 1 is free") for _ in range(50)]
    job_id = world.submit()
    world.finish(job_id)
    assert outcomes(world, job_id) == ["succeeded"]
    waiting = [event for event in world.store.events(job_id) if event.kind == "waiting"]
    assert [event.message for event in waiting] == ["waiting: 2 GPUs wanted, 1 is free"]
    attempt = world.attempts(job_id)[0]
    assert (attempt.launched or 0) - attempt.created > 10  # 50 retries, and waiting costs nothing


@pytest.mark.parametrize("kind", ["throttled", "transient"])
def test_a_passing_error_is_tried_again_with_the_same_token(world: World, kind: str) -> None:
    world.cloud.faults["launch"] = [refusal(kind), refusal(kind)]
    world.cloud.partial_launch = True
    job_id = world.submit(make_offer(nodes=3))
    world.finish(job_id)
    assert outcomes(world, job_id) == ["succeeded"]
    assert len(world.cloud.machines) == 3


@pytest.mark.parametrize("kind", ["auth", "invalid"])
def test_a_final_refusal_names_every_place_and_why(world: World, kind: str) -> None:
    world.cloud.faults["launch"] = [refusal("capacity", "sold out"), refusal(kind, "says no", "cloud")]
    offers = (make_offer(region="a", zone="a-1"), make_offer(region="b", zone="b-1"))
    job_id = world.submit(*(offer._replace(cloud="gcp") for offer in offers))
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("failed", kind)
    assert "a-1" in job.reason and "sold out" in job.reason and "b-1" in job.reason and "says no" in job.reason


def test_without_quota_anywhere_the_job_fails(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("quota", scope="region") for _ in range(2)]
    job_id = world.submit(make_offer(region="a"), make_offer(region="b"))
    world.finish(job_id)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "quota")


def test_machines_of_a_half_refused_launch_are_terminated(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("capacity")]
    world.cloud.partial_launch = True
    job_id = world.submit(make_offer(nodes=2, zone="a-1"), make_offer(nodes=2, zone="a-2"))
    world.finish(job_id)
    assert world.job(job_id).state == "succeeded"


# -- faults


def test_passing_errors_of_observe_and_terminate_delay_only(world: World) -> None:
    world.cloud.faults["observe"] = [refusal("transient") for _ in range(4)]
    world.cloud.faults["terminate"] = [refusal("throttled") for _ in range(4)]
    job_id = world.submit()
    world.finish(job_id)
    assert outcomes(world, job_id) == ["succeeded"]


def folder_of(world: World, job_id: str) -> Path:
    return Path(unquote(world.job(job_id).job_dir.removeprefix("file://")))


def test_a_deleted_job_dir_ends_the_job_and_leaves_nothing(world: World) -> None:
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    shutil.rmtree(folder_of(world, job_id))
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "error")
    assert "job.json is missing" in world.job(job_id).reason
    world.check_clean()


@pytest.mark.parametrize("kind", ["a folder", "one of 100 MB"])
def test_what_is_no_job_json_is_refused_without_being_read(world: World, kind: str) -> None:
    job_id = world.submit()
    path = folder_of(world, job_id) / JOB_KEY
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(100 << 20)
    tracemalloc.start()
    world.drive(world.supervisor())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "error")
    assert "job.json is not the one that was submitted" in world.job(job_id).reason
    assert peak < 50 << 20
    world.check_clean()


def test_another_job_json_is_refused(world: World) -> None:
    job_id = world.submit()
    (folder_of(world, job_id) / "job.json").write_text("{}")
    world.finish(job_id)
    assert "not the one that was submitted" in world.job(job_id).reason
    assert world.cloud.launches == []


def test_an_unusable_job_dir_is_given_up_after_a_while(world: World) -> None:
    job_id = world.submit()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    result = folder_of(world, job_id) / "attempts/0001/nodes/worker-0.1/result.json"
    result.symlink_to(result.name)
    world.drive(supervisor, for_s=4_000)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "error")
    world.check_clean()


class Torn:
    """Running job whose job dir cannot be read while a symlink in it points to itself."""

    def __init__(self, world: World) -> None:
        world.cloud.script = lives(Life(run_s=1e6))
        self.world, self.job_id, self.supervisor = world, world.submit(), world.supervisor()
        world.drive(self.supervisor, until=lambda: self.state == "running")
        self.record = folder_of(world, self.job_id) / "attempts/0001/nodes/worker-0.1/result.json"

    @property
    def state(self) -> str:
        return self.world.job(self.job_id).state

    def drive_for(self, seconds: float) -> None:
        end = self.world.clock.monotonic() + seconds
        self.world.drive(self.supervisor, until=lambda: self.world.clock.monotonic() >= end, for_s=2 * seconds)

    def tear(self) -> None:
        self.record.symlink_to(self.record.name)

    def heals(self) -> bool:
        """Return whether the job continues once its job dir is readable again."""
        self.record.unlink()
        self.drive_for(600)
        return self.state == "running" and len(self.world.attempts(self.job_id)) == 1


def test_other_trouble_is_not_counted_as_that_of_the_job_dir(world: World) -> None:
    torn = Torn(world)
    world.cloud.faults["observe"] = [refusal("auth") for _ in range(1_000)]
    torn.drive_for(4_000)
    world.cloud.faults.clear()
    torn.tear()
    torn.drive_for(200)
    assert torn.heals()


def test_time_without_retries_does_not_give_up_the_job_dir(world: World) -> None:
    """A laptop sleeps for the night."""
    torn = Torn(world)
    torn.tear()
    torn.drive_for(1_800)
    world.clock.advance(28_800)
    torn.drive_for(200)
    assert torn.heals()


def test_a_job_dir_that_could_not_be_used_is_opened_anew(world: World) -> None:
    """It is opened with the credentials of that time."""
    opened: list[str] = []

    def note(what: str, it: object) -> object:
        opened.append(what)
        return it

    world.wrap = note
    torn = Torn(world)
    before = opened.count("dir")
    torn.tear()
    torn.drive_for(200)
    assert opened.count("dir") > before
    assert torn.heals()


def test_an_unusable_job_dir_is_given_up_though_there_is_other_trouble_too(world: World) -> None:
    torn = Torn(world)
    torn.tear()
    for _ in range(15):
        world.cloud.faults["observe"] = [refusal("transient")]
        torn.drive_for(250)
    assert torn.state != "running"


def test_one_jobs_trouble_is_not_anothers(world: World) -> None:
    bad, good = world.submit(name="bad"), world.submit(name="good")
    (folder_of(world, bad) / "attempts").write_text("a file where a folder must be")
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(good).state == "succeeded", for_s=60)
    assert world.job(bad).state == "queued"
    world.drive(supervisor)
    assert world.job(bad).state == "failed"
    assert [event.kind for event in world.store.events(bad)].count("trouble") == 1


# -- leases


def test_only_the_holder_of_the_lease_advances_a_job(world: World) -> None:
    job_id = world.submit()
    first, second = world.supervisor("elsewhere/1/a"), world.supervisor("elsewhere/2/b")
    first.tick()
    before = world.job(job_id)
    second.tick()
    assert world.job(job_id) == before


def test_a_dead_holders_lease_expires(world: World) -> None:
    job_id = world.submit()
    world.supervisor("elsewhere/1/a").tick()
    second = world.supervisor("elsewhere/2/b")
    begin = world.clock.monotonic()
    world.drive(second, until=lambda: world.job(job_id).lease_owner == "elsewhere/2/b")
    assert LEASE_S <= world.clock.monotonic() - begin < LEASE_S + 5
    world.drive(second)
    assert world.job(job_id).state == "succeeded"


def test_a_released_lease_is_taken_at_once(world: World) -> None:
    job_id = world.submit()
    first = world.supervisor("elsewhere/1/a")
    first.tick()
    first.release()
    world.supervisor("elsewhere/2/b").tick()
    assert world.job(job_id).lease_owner == "elsewhere/2/b"


def test_a_quiet_job_is_looked_at_ever_less_often(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    world.submit()
    supervisor = world.supervisor()
    looks: list[float] = []
    observe = world.cloud.observe
    world.cloud.observe = lambda allocation: looks.append(world.clock.monotonic()) or observe(allocation)  # type: ignore[method-assign,func-returns-value]
    for _ in range(90):
        world.clock.advance(supervisor.tick().wait_s or 0.01)
        world.cloud.live()
    pauses = [after - before for before, after in pairwise(looks)]
    assert pauses[-1] == pytest.approx(2.0, abs=0.05)
    assert max(pauses) == pytest.approx(2.0, abs=0.05)


def test_a_tick_after_the_wait_has_something_to_do(world: World) -> None:
    """Also if rounding makes `asked + 1.0 - now` 0 while `now - asked` is less than 1.0: once in two thousand times."""
    supervisor, numbers = world.supervisor(), random.Random(0)
    times = sorted((numbers.uniform(0, 5_000), numbers.random()) for _ in range(100_000))
    for asked, later in times:
        now = asked + later
        now += asked + 1.0 - now
        if now < asked + 1.0 or now - asked >= 1.0:
            continue
        world.clock.steady = max(asked, world.clock.steady + 2.0)
        supervisor.tick()
        world.clock.advance(later)
        world.clock.advance(supervisor.tick().wait_s)
        assert supervisor.tick().wait_s > 0
