"""Failover as the supervisor does it: places, memory across jobs, patience, money, and what is told of it."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest

from cloudgpu.control.failover import DRY_S
from cloudgpu.control.job_step import EXPIRY_S, LONGEST_S, QUEUE_S
from cloudgpu.control.steps import FREE_S
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.cloud import TAKEN, Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy


def aws(zone: str, market: str = "spot", **more: object) -> Offer:
    region = more.pop("region", "us-1")
    return make_offer(region=region, zone=zone, market=market, **more)._replace(cloud="aws")  # type: ignore[arg-type]


def refusal(kind: str, scope: str = "zone", **more: object) -> ProvisionError:
    return ProvisionError(kind, f"{kind}!", scope=scope, **more)  # type: ignore[arg-type]


def asked(world: World, job_id: str) -> list[str | None]:
    return [attempt.offer["zone"] for attempt in world.attempts(job_id)]


def test_a_dry_place_is_remembered_by_the_other_jobs_of_the_store(world: World) -> None:
    world.cloud.full = {"az1"}
    first = world.submit(aws("az1"), aws("az2"))
    world.finish(first)
    second = world.submit(aws("az1"), aws("az2"))
    world.finish(second)
    assert asked(world, first) == ["az1", "az2"]
    assert asked(world, second) == ["az2"]
    world.clock.advance(DRY_S)
    third = world.submit(aws("az1"), aws("az2"))
    world.finish(third)
    assert asked(world, third) == ["az1", "az2"]


def test_another_supervisor_remembers_as_well(world: World) -> None:
    world.cloud.full = {"az1"}
    world.finish(world.submit(aws("az1"), aws("az2")))
    job_id = world.submit(aws("az1"), aws("az2"))
    world.drive(world.supervisor("elsewhere/2/b"))
    assert asked(world, job_id) == ["az2"]


def test_many_jobs_do_not_all_ask_full_places_again(world: World) -> None:
    world.cloud.full = {"az1", "az2"}
    for number in range(30):
        world.submit(aws("az1"), aws("az2"), name=f"j{number}", policy=make_policy(capacity_s=3600))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.clock.monotonic() > 2 * DRY_S + 60, for_s=4_000)
    made = [len(world.attempts(job.id)) for job in world.store.list_jobs(active_only=True, limit=200)]
    # At first all ask at once; each time the places open again, the first to ask tells the others.
    assert len(made) == 30
    assert 60 + 2 * 2 <= sum(made) <= 60 + 2 * 2 * 8


def test_zones_that_the_provider_names_are_asked_first(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("capacity", hints=["az3"])]
    job_id = world.submit(aws("az1"), aws("az2"), aws("az3"))
    world.finish(job_id)
    assert asked(world, job_id) == ["az1", "az3"]
    assert world.attempts(job_id)[0].hints == ["az3"]


def test_after_a_preemption_it_goes_elsewhere(world: World) -> None:
    world.cloud.script = lives(TAKEN, Life())
    job_id = world.submit(aws("az1"), aws("az2"))
    world.finish(job_id)
    assert asked(world, job_id) == ["az1", "az2"]


@pytest.mark.parametrize("kind", ["quota", "auth"])
def test_spot_and_on_demand_have_quotas_of_their_own_but_the_same_credentials(world: World, kind: str) -> None:
    world.cloud.faults["launch"] = [refusal(kind, "region" if kind == "quota" else "cloud")]
    job_id = world.submit(aws("az1"), aws("az2"), aws("az1", "on-demand"))
    world.drive(world.supervisor(), for_s=7_200)
    state = world.job(job_id).state
    assert (state, asked(world, job_id)) == (("succeeded", ["az1", "az1"]) if kind == "quota" else ("failed", ["az1"]))


def test_retry_capacity_keeps_looking_and_then_ends_the_job(world: World) -> None:
    world.cloud.full = {"az1", "az2"}
    job_id = world.submit(aws("az1"), aws("az2"), policy=make_policy(capacity_s=3600))
    begin = world.clock.monotonic()
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).not_before > world.clock.now())
    waiting = world.job(job_id)
    assert (waiting.state, waiting.cause) == ("queued", "capacity")
    assert waiting.reason.startswith("no machines anywhere for now, asked again at ")
    world.drive(supervisor, for_s=7_200)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("failed", "capacity")
    assert 3600 - DRY_S < world.clock.monotonic() - begin <= 3600 + 5
    assert 4 <= asked(world, job_id).count("az1") <= 6
    headline, *told = job.reason.splitlines()
    assert headline.startswith("no machines within retry.capacity of 1h: ")
    assert told[0].startswith("  no capacity, 2 places: ")
    assert told[1].startswith("    aws us-1 spot local: az1 ") and ", az2 " in told[1]
    assert job.spent == Decimal(0)
    ended = [event.message for event in world.store.events(job_id) if event.kind == "state"]
    assert ended == [f"failed: {headline}"]
    world.check_clean()


def test_the_look_out_can_be_cancelled_and_is_limited(world: World) -> None:
    world.cloud.full = {"az1"}
    cancelled = world.submit(aws("az1"))
    limited = world.submit(aws("az1"), policy=make_policy(duration_s=900))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: all(world.job(one).cause == "capacity" for one in (cancelled, limited)))
    world.store.set_goal(cancelled, "cancel", "cancel", world.clock.now())
    world.drive(supervisor)
    assert world.job(cancelled).state == "cancelled"
    assert (world.job(limited).state, world.job(limited).cause) == ("stopped", "duration")


def test_a_recovering_job_looks_on_as_recovering(world: World) -> None:
    world.cloud.script = lives(TAKEN)
    job_id = world.submit(aws("az1"))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    world.cloud.full = {"az1"}
    world.drive(supervisor, until=lambda: world.job(job_id).cause == "capacity")
    assert world.job(job_id).state == "recovering"
    world.cloud.full = set()
    world.cloud.script = lives(Life())
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"


def test_a_place_that_does_not_answer_is_left_if_there_is_another(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("transient", "region") for _ in range(10)]
    job_id = world.submit(aws("az1"), aws("az1", region="eu-1"))
    world.finish(job_id)
    assert [attempt.offer["region"] for attempt in world.attempts(job_id)] == ["us-1", "eu-1"]
    alone = world.submit(aws("az9"))
    world.cloud.faults["launch"] = [refusal("transient", "region") for _ in range(30)]
    world.finish(alone)
    assert asked(world, alone) == ["az9"]


def test_the_provider_says_when_to_ask_again(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("throttled", retry_after=42.0)]
    job_id = world.submit(aws("az1"))
    world.finish(job_id)
    [attempt] = world.attempts(job_id)
    [machine] = world.cloud.machines
    assert machine.launched - (attempt.launched or 0) >= 42


@pytest.mark.parametrize("limits", [{}, {"duration_s": 3600}, {"cost_usd": Decimal(5)}])
def test_a_launch_that_is_repeated_asks_for_the_same(world: World, limits: dict[str, object]) -> None:
    """Else the provider, which remembers the token, refuses the second as another request."""
    seen = []
    launch = world.cloud.launch
    world.cloud.faults["launch"] = [refusal("transient"), refusal("throttled")]

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(world.cloud, name)

        def launch(self, request: object) -> object:
            seen.append(request)
            return launch(request)  # type: ignore[arg-type]

    world.wrap = lambda what, it: Noting() if what == "cloud" else it
    world.finish(world.submit(aws("az1"), policy=make_policy(**limits)))
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]


def test_machines_in_a_cloud_end_and_expire_whatever_happens(world: World) -> None:
    world.finish(world.submit(aws("az1")), world.submit(make_offer()))
    by_cloud = {request.zone: request for request in world.cloud.launches}
    request = by_cloud["az1"]
    assert request.lifetime_s is not None and abs(request.lifetime_s - LONGEST_S) <= 5
    [attempt] = [a for job in world.store.list_jobs(active_only=False, limit=9) for a in world.attempts(job.id)][-1:]
    assert request.expires is not None and request.expires >= request.lifetime_s + EXPIRY_S
    assert by_cloud[None].lifetime_s is None and by_cloud[None].expires is None
    assert attempt.launched is not None


@pytest.mark.parametrize(("nodes", "kind", "free"), [(1, "capacity", True), (2, "capacity", False), (1, "quota", True)])
def test_what_was_clearly_refused_costs_nothing(world: World, nodes: int, kind: str, free: bool) -> None:
    world.cloud.faults["launch"] = [refusal(kind, "region")]
    world.cloud.faults["terminate"] = [refusal("transient")]  # so that time passes
    job_id = world.submit(aws("az1", nodes=nodes), aws("az1", nodes=nodes, region="eu-1"))
    world.finish(job_id)
    first = world.attempts(job_id)[0]
    assert (first.launched is None) == free
    assert (first.cost == 0) == free


def test_what_gave_no_answer_is_paid_for(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("transient", "region") for _ in range(10)]
    job_id = world.submit(aws("az1"), aws("az1", region="eu-1"))
    world.finish(job_id)
    first = world.attempts(job_id)[0]
    assert first.cost is not None and first.cost > 0


def test_places_with_all_their_zones_come_back_from_the_store(world: World) -> None:
    zoned = [aws("az1"), aws("az2"), aws("az1", "on-demand"), aws("az1", region="eu-1"), aws("az3")]
    offers = [*zoned, make_offer(), make_offer(region="there")]
    job_id = world.submit(*offers)
    assert [Offer.from_json(offer) for offer in world.job(job_id).offers] == offers


# -- shut out: who is refused by his credentials may not look for what he left either


def shut_out(world: World) -> None:
    """From now on, and for a while."""
    for verb in ("launch", "observe", "terminate", "find"):
        world.cloud.faults[verb] = [refusal("auth", "cloud") for _ in range(50)]


def test_bad_credentials_end_the_job_although_nothing_can_be_looked_for(world: World) -> None:
    shut_out(world)
    job_id = world.submit(aws("az1"), aws("az2"))
    world.drive(world.supervisor(), for_s=60)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, job.cause, attempt.state) == ("failed", "auth", "ended")
    assert attempt.cost == 0
    assert "not permitted, 1 place: auth!" in job.reason
    assert world.cloud.machines == []


def test_bad_credentials_of_a_first_cloud_lead_to_the_second_at_once(world: World) -> None:
    shut_out(world)
    supervisor = world.supervisor()
    job_id = world.submit(aws("az1"), aws("az1")._replace(cloud="gcp"))
    world.drive(supervisor, until=lambda: len(world.attempts(job_id)) == 2, for_s=60)
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"


def test_credentials_that_end_within_a_launch_forget_no_machine(world: World) -> None:
    """They were good when the first was asked for."""
    shut_out(world)
    expired = refusal("auth", "cloud")
    expired.asked = True
    world.cloud.faults["launch"] = [expired]
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    with pytest.raises(AssertionError, match="still not there"):
        world.drive(supervisor, for_s=600)
    assert world.attempts(job_id)[0].state == "terminating"
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "auth")


def test_what_may_have_been_launched_is_not_forgotten_for_bad_credentials(world: World) -> None:
    """The supervisor died in its launch: machines may be there, until somebody has looked."""
    job_id = world.submit(aws("az1"))
    first = world.supervisor("elsewhere/1/a")
    while not world.attempts(job_id) or world.attempts(job_id)[0].launched is None:
        first.tick()
    shut_out(world)
    second = world.supervisor("elsewhere/2/b")
    world.drive(second, until=lambda: world.attempts(job_id)[0].outcome == "refused", for_s=60)
    with pytest.raises(AssertionError, match="still not there"):
        world.drive(second, for_s=600)
    assert world.attempts(job_id)[0].state == "terminating"
    troubles = [event.message for event in world.store.events(job_id) if event.kind == "trouble"]
    assert troubles == ["auth!"]
    world.cloud.faults.clear()
    world.drive(second)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "auth")


def test_the_same_after_a_launch_that_gave_no_answer(world: World) -> None:
    job_id = world.submit(aws("az1"))
    supervisor = world.supervisor()
    world.cloud.faults["launch"] = [refusal("transient"), refusal("auth", "cloud")]
    world.cloud.faults["terminate"] = [refusal("auth", "cloud")]
    world.drive(supervisor, until=lambda: [a.state for a in world.attempts(job_id)] == ["terminating"])
    supervisor.tick()
    assert world.attempts(job_id)[0].state == "terminating"
    world.drive(supervisor)
    assert world.job(job_id).cause == "auth"


LATE = 3_000.0
"""Longer than a machine has to report once it is there."""


def test_a_queue_is_no_silence_and_what_leaves_it_runs(world: World) -> None:
    world.cloud.script = lives(Life(queued_s=LATE))
    job_id = world.submit(aws("az1"))
    world.finish(job_id)
    assert [attempt.outcome for attempt in world.attempts(job_id)] == ["succeeded"]
    assert world.clock.monotonic() > LATE


def test_what_the_queue_says_is_the_jobs_reason_until_it_begins(world: World) -> None:
    world.cloud.script = lives(Life(queued_s=LATE, run_s=LATE))
    job_id = world.submit(aws("az1"))
    seen: list[tuple[str, str]] = []

    def noted() -> bool:
        seen.append((world.job(job_id).state, world.job(job_id).reason))
        return False

    with contextlib.suppress(AssertionError):
        world.drive(world.supervisor(), until=noted)
    assert ("starting", "in the queue") in seen
    assert {reason for state, reason in seen if state == "running"} == {""}


def test_time_in_a_queue_is_not_paid_for(world: World) -> None:
    """Nor does it end a job whose limits are about money; a supervisor that comes in the middle comes to the same."""
    world.cloud.script = lives(Life(queued_s=LATE, run_s=600.0))
    policy = make_policy(cost_usd=Decimal("0.9"))  # a quarter of an hour at 3.6 USD/h
    job_id = world.submit(aws("az1"), policy=policy)
    until = world.clock.monotonic() + LATE / 2
    world.drive(world.supervisor(), until=lambda: world.clock.monotonic() > until)
    world.drive(world.supervisor("elsewhere/2/b"))
    [attempt] = world.attempts(job_id)
    assert (world.job(job_id).state, attempt.outcome) == ("succeeded", "succeeded")
    assert attempt.cost is not None
    assert Decimal("0.6") <= attempt.cost < Decimal("0.6") + Decimal("3.6") * (int(FREE_S) + 60) / 3600


def test_what_waits_in_a_queue_expires_later(world: World) -> None:
    world.finish(world.submit(aws("az1")), world.submit(aws("az2", market="flex-start")))
    spot, flex = sorted(world.cloud.launches, key=lambda request: request.zone or "")
    assert spot.expires is not None and flex.expires is not None
    assert abs(flex.expires - spot.expires - QUEUE_S["flex-start"]) < 60


@pytest.mark.parametrize("kind", ["capacity", "quota", "not_offered"])
def test_a_refusal_that_comes_late_is_one_all_the_same(world: World, kind: str) -> None:
    late = refusal(kind, "region", code="8")
    world.cloud.script = lives(Life(queued_s=LATE, refused=late), Life())
    job_id = world.submit(aws("az1"), aws("az2"), aws("az3", region="us-2"), policy=make_policy(preemptions=0))
    world.finish(job_id)
    first, second = world.attempts(job_id)
    assert (first.outcome, first.cause, first.scope, first.reason) == ("refused", kind, "region", f"{kind}!")
    assert first.cost == Decimal(0)
    assert (second.outcome, second.offer["zone"]) == ("succeeded", "az3")


def test_a_late_refusal_that_nothing_helps_ends_the_job(world: World) -> None:
    world.cloud.script = lives(Life(queued_s=60.0, refused=refusal("invalid", "cloud")))
    job_id = world.submit(aws("az1"), aws("az2"))
    world.finish(job_id)
    assert world.job(job_id).state == "failed"
    assert len(world.attempts(job_id)) == 1
