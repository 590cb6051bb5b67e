"""Failover by the supervisor: places, memory across jobs, timeouts, costs, and the report to the user."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest

from cloudgpu.control.reconcile.decisions import IN_PLACE_S
from cloudgpu.control.reconcile.failover import NO_CAPACITY_S
from cloudgpu.control.reconcile.steps.launch_request import EXPIRY_S, LONGEST_S, QUEUE_S
from cloudgpu.control.reconcile.steps.watching import FREE_S
from cloudgpu.control.supervisor.supervisor import RETRY_TIMEOUT_S, TRAINING_RETRY_TIMEOUT_S
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.jobdir import JobDir, JobDirError, attempt_key
from cloudgpu.provisioners.base import Allocation, LaunchRequest, NodeState, ProvisionError
from cloudgpu.provisioners.shared import api_calls
from cloudgpu.tests.standins.cloud import TAKEN, Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy


def aws(zone: str, market: str = "spot", **more: object) -> Offer:
    region = more.pop("region", "us-1")
    return make_offer(region=region, zone=zone, market=market, **more)._replace(cloud="aws")  # type: ignore[arg-type]


def refusal(kind: str, scope: str = "zone", **more: object) -> ProvisionError:
    return ProvisionError(kind, f"{kind}!", scope=scope, **more)  # type: ignore[arg-type]


def asked(world: World, job_id: str) -> list[str | None]:
    return [attempt.offer.zone for attempt in world.attempts(job_id)]


def test_a_dry_place_is_remembered_by_the_other_jobs_of_the_store(world: World) -> None:
    world.cloud.full = {"az1"}
    first = world.submit(aws("az1"), aws("az2"))
    world.finish(first)
    second = world.submit(aws("az1"), aws("az2"))
    world.finish(second)
    assert asked(world, first) == ["az1", "az2"]
    assert asked(world, second) == ["az2"]
    world.clock.advance(NO_CAPACITY_S)
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
    world.drive(supervisor, until=lambda: world.clock.monotonic() > 2 * NO_CAPACITY_S + 60, for_s=4_000)
    made = [len(world.attempts(job.id)) for job in world.store.list_jobs(active_only=True, limit=200)]
    # All jobs ask at first. Whenever the places are retried, the others share the first job's refusal.
    assert len(made) == 30
    assert 60 + 2 * 2 <= sum(made) <= 60 + 2 * 2 * 8


def test_zones_that_the_provider_names_are_asked_first(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("capacity", hints=["az3"])]
    job_id = world.submit(aws("az1"), aws("az2"), aws("az3"))
    world.finish(job_id)
    assert asked(world, job_id) == ["az1", "az3"]
    assert world.attempts(job_id)[0].hints == ("az3",)


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
    assert waiting.reason.startswith("no machines available; next try at ")
    world.drive(supervisor, for_s=7_200)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("failed", "capacity")
    assert 3600 - NO_CAPACITY_S < world.clock.monotonic() - begin <= 3600 + 5
    assert 4 <= asked(world, job_id).count("az1") <= 6
    headline, *details = job.reason.splitlines()
    assert headline.startswith("no machines within retry.capacity of 1h: ")
    assert details[0].startswith("  no capacity, 2 places: ")
    assert details[1].startswith("    aws us-1 spot local: az1 ") and ", az2 " in details[1]
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
    assert [attempt.offer.region for attempt in world.attempts(job_id)] == ["us-1", "eu-1"]
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
    assert machine.launched - attempt.created >= 42


@pytest.mark.parametrize("limits", [{}, {"duration_s": 3600}, {"cost_usd": Decimal(5)}])
def test_a_launch_that_is_repeated_asks_for_the_same(world: World, limits: dict[str, object]) -> None:
    """Otherwise the provider, which remembers the token, refuses the retry as a different request."""
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


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(("nodes", "kind"), [(1, "capacity"), (2, "capacity"), (1, "quota"), (1, "transient")])
def test_only_machines_that_were_started_are_paid_for(world: World, nodes: int, kind: str, partial: bool) -> None:
    world.cloud.partial_launch = partial
    world.cloud.faults["launch"] = [refusal(kind, "region") for _ in range(30 if kind == "transient" else 1)]
    world.cloud.faults["terminate"] = [refusal("transient")]  # lets time pass
    job_id = world.submit(aws("az1", nodes=nodes), aws("az1", nodes=nodes, region="eu-1"))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: len(world.attempts(job_id)) == 2)
    first = world.attempts(job_id)[0]
    assert (first.launched is None) != partial
    assert (first.cost == 0) != partial


def test_time_without_a_machine_reaches_no_limit(world: World) -> None:
    """Time in which it is unknown whether a machine exists does not count either."""
    world.cloud.faults["launch"] = [refusal("transient", "region") for _ in range(60)]
    job_id = world.submit(aws("az1"), policy=make_policy(cost_usd=Decimal("0.5")))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: not world.cloud.faults["launch"])
    assert world.clock.monotonic() > 1_000, "at 3.6 USD/h a quarter of an hour would have been too much"
    world.cloud.script = lives(Life(run_s=100.0))
    world.drive(supervisor)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert job.state == "succeeded"
    assert attempt.cost is not None and Decimal("0.1") <= attempt.cost < Decimal("0.15"), "from the last try on"


def test_a_place_that_gives_no_answer_is_left_after_two_minutes_however_long_a_call_takes(world: World) -> None:
    made: list[float] = []

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(world.cloud, name)

        def launch(self, _request: object) -> object:
            world.clock.advance(40)
            made.append(world.clock.monotonic())
            raise refusal("transient", "region")

    world.wrap = lambda what, it: Slow() if what == "cloud" else it
    job_id = world.submit(aws("az1"), aws("az1", region="eu-1"))
    world.drive(world.supervisor(), until=lambda: world.attempts(job_id)[-1].outcome == "refused", for_s=400)
    assert IN_PLACE_S <= made[-1] - made[0] < IN_PLACE_S + 100
    assert len(made) < 6


def test_a_turn_in_a_line_is_no_time_without_an_answer(world: World) -> None:
    """Calls that the client's rate limit holds back say nothing about the place."""
    held = [refusal("throttled", "region", retry_after=100.0, is_unsent=True) for _ in range(4)]
    world.cloud.faults["launch"] = [*held, refusal("transient", "region")]
    job_id = world.submit(aws("az1"), aws("az1", region="eu-1"))
    world.finish(job_id)
    [attempt] = world.attempts(job_id)
    [machine] = world.cloud.machines
    assert (attempt.offer.region, machine.launched - attempt.created >= 400) == ("us-1", True)


def test_retry_capacity_bounds_the_only_place_too(world: World) -> None:
    world.cloud.faults["launch"] = [refusal("throttled", "region") for _ in range(200)]
    job_id = world.submit(aws("az1"), policy=make_policy(capacity_s=180))
    begin = world.clock.monotonic()
    world.finish(job_id)
    job = world.job(job_id)
    assert (job.state, job.cause) == ("failed", "capacity")
    assert "throttled!" in job.reason
    assert 180 <= world.clock.monotonic() - begin < 240


def test_places_with_all_their_zones_come_back_from_the_store(world: World) -> None:
    zoned = [aws("az1"), aws("az2"), aws("az1", "on-demand"), aws("az1", region="eu-1"), aws("az3")]
    offers = [*zoned, make_offer(), make_offer(region="there")]
    job_id = world.submit(*offers)
    assert list(world.job(job_id).offers) == offers


# -- access denied: rejected credentials do not allow a search for leftovers either


def reject_credentials(world: World) -> None:
    """Refuse the credentials in the next 50 calls of each kind."""
    for verb in ("launch", "observe", "terminate", "find"):
        world.cloud.faults[verb] = [refusal("auth", "cloud") for _ in range(50)]


def test_bad_credentials_end_the_job_although_nothing_can_be_looked_for(world: World) -> None:
    reject_credentials(world)
    job_id = world.submit(aws("az1"), aws("az2"))
    world.drive(world.supervisor(), for_s=60)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, job.cause, attempt.state) == ("failed", "auth", "ended")
    assert attempt.cost == 0
    assert "not permitted, 1 place: auth!" in job.reason
    assert world.cloud.machines == []


def test_bad_credentials_of_a_first_cloud_lead_to_the_second_at_once(world: World) -> None:
    reject_credentials(world)
    supervisor = world.supervisor()
    job_id = world.submit(aws("az1"), aws("az1")._replace(cloud="gcp"))
    world.drive(supervisor, until=lambda: len(world.attempts(job_id)) == 2, for_s=60)
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"


def test_credentials_that_end_within_a_launch_forget_no_machine(world: World) -> None:
    """The credentials were valid when the first machine was requested."""
    reject_credentials(world)
    denied = refusal("auth", "cloud")
    denied.may_have_created = True
    world.cloud.faults["launch"] = [denied]
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    with pytest.raises(AssertionError, match="still not there"):
        world.drive(supervisor, for_s=600)
    assert world.attempts(job_id)[0].state == "terminating"
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).cause) == ("failed", "auth")


def test_what_may_have_been_launched_is_not_forgotten_for_bad_credentials(world: World) -> None:
    """The supervisor died during the launch: machines may exist until a query shows that none do."""
    job_id = world.submit(aws("az1"))
    first = world.supervisor("elsewhere/1/a")
    while not world.attempts(job_id) or world.attempts(job_id)[0].launched is None:
        first.tick()
    reject_credentials(world)
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


# -- expired credentials: the job waits for new ones

LOGIN = "the login has expired: renew it"


def expired(*, may_have_created: bool = False, kind: str = "expired") -> ProvisionError:
    error = ProvisionError(kind, f"expired!; {LOGIN}", scope="cloud", advice=LOGIN, status=401)  # type: ignore[arg-type]
    error.may_have_created = may_have_created
    return error


def log_out(world: World, *, may_have_created: bool = False) -> None:
    for verb in ("launch", "observe", "terminate", "remove", "find"):
        world.cloud.faults[verb] = [expired(may_have_created=may_have_created) for _ in range(10_000)]


def log_in(world: World) -> None:
    world.cloud.faults.clear()


@pytest.mark.parametrize("may_have_created", [False, True])
def test_a_launch_waits_for_a_login_and_goes_on_within_half_a_minute(world: World, may_have_created: bool) -> None:
    log_out(world, may_have_created=may_have_created)
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    later = world.clock.monotonic() + 900
    world.drive(supervisor, until=lambda: world.clock.monotonic() > later)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, attempt.state, job.cause) == ("queued", "launching", "expired")
    assert job.reason.startswith(LOGIN)
    messages = [event.message for event in world.store.events(job_id) if event.kind == "waiting"]
    assert messages == [f"waiting: {job.reason}"]
    log_in(world)
    renewed = world.clock.now()
    world.drive(supervisor, until=lambda: world.attempts(job_id)[0].state == "running")
    assert world.clock.now() - renewed <= 30
    world.drive(supervisor)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert job.state == "succeeded"
    if not may_have_created:
        assert attempt.cost is not None and attempt.cost < Decimal("0.1"), "the time before cost nothing"


def test_an_answer_that_was_lost_is_not_given_up_for_a_login(world: World) -> None:
    """Credentials of any kind were valid at the request."""
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    world.cloud.partial_launch = True
    world.cloud.faults["launch"] = [refusal("transient"), *(expired(kind="auth") for _ in range(5))]
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"
    assert len(world.attempts(job_id)) == 1
    assert len(world.cloud.machines) == 1


def test_retry_capacity_bounds_the_wait_for_a_login(world: World) -> None:
    log_out(world)
    job_id = world.submit(aws("az1"), policy=make_policy(capacity_s=600))
    begin = world.clock.monotonic()
    world.drive(world.supervisor())
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, attempt.state, attempt.cost) == ("failed", "ended", Decimal(0))
    assert "login expired" in job.reason and LOGIN in job.reason
    assert 600 <= world.clock.monotonic() - begin < 660


def test_what_may_be_there_is_terminating_until_a_login_shows_it(world: World) -> None:
    log_out(world, may_have_created=True)
    job_id, supervisor = world.submit(aws("az1"), policy=make_policy(capacity_s=600)), world.supervisor()
    world.drive(supervisor, until=lambda: world.attempts(job_id)[0].state == "terminating")
    for _ in range(14):
        world.clock.advance(86_400)
        supervisor.tick()
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.ended, attempt.state) == (None, "terminating")
    assert LOGIN in job.reason
    log_in(world)
    world.drive(supervisor)
    assert world.job(job_id).state == "failed"
    assert LOGIN in world.job(job_id).reason and "waiting for credentials" not in world.job(job_id).reason


def test_a_job_of_two_clouds_goes_to_the_one_whose_login_holds(world: World) -> None:
    log_out(world)
    supervisor = world.supervisor()
    job_id = world.submit(aws("az1"), aws("az1")._replace(cloud="gcp"))
    world.drive(supervisor, until=lambda: len(world.attempts(job_id)) == 2, for_s=60)
    log_in(world)
    world.drive(supervisor)
    assert world.job(job_id).state == "succeeded"


def test_a_running_job_says_which_login_has_expired_until_it_is_renewed(world: World) -> None:
    world.cloud.script = lives(Life(run_s=3_000))
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    log_out(world)
    world.drive(supervisor, until=lambda: LOGIN in world.job(job_id).reason, for_s=60)
    log_in(world)
    world.drive(supervisor, until=lambda: world.job(job_id).reason == "", for_s=31)
    assert world.job(job_id).state == "running"
    world.drive(supervisor)
    assert (world.job(job_id).state, len(world.attempts(job_id))) == ("succeeded", 1)


def test_an_end_waits_for_a_login_and_says_so(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    log_out(world)
    world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    later = world.clock.monotonic() + 900
    world.drive(supervisor, until=lambda: world.clock.monotonic() > later)
    job, [attempt] = world.job(job_id), world.attempts(job_id)
    assert (job.state, attempt.state) == ("stopping", "terminating")
    assert job.reason.splitlines()[0] == "cancelled by its user" and LOGIN in job.reason
    log_in(world)
    world.drive(supervisor)
    assert (world.job(job_id).state, world.job(job_id).reason) == ("cancelled", "cancelled by its user")


@pytest.mark.parametrize("training", [False, True])
def test_a_login_that_the_job_dir_does_not_take_counts_towards_no_patience(world: World, training: bool) -> None:
    """A job that waits overnight accesses the bucket first."""
    world.cloud.script = lives(Life(run_s=3_900.0 if training else 1.0))
    logged_in = [True]

    class Bucket:
        def __init__(self, job_dir: object) -> None:
            self._job_dir = job_dir

        def __getattr__(self, name: str) -> object:
            if not logged_in[0] and name != "renew":
                words = "Server returned non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"
                raise JobDirError("s3://b/j: reading failed: log in again") from ValueError(words)
            return getattr(self._job_dir, name)

    world.wrap = lambda what, it: Bucket(it) if what == "dir" else it
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    if training:
        world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    logged_in[0] = False
    late = world.clock.monotonic() + (TRAINING_RETRY_TIMEOUT_S if training else RETRY_TIMEOUT_S) + 100
    world.drive(supervisor, until=lambda: world.clock.monotonic() > late, for_s=4_000)
    assert "log in again" in world.job(job_id).reason
    logged_in[0] = True
    world.drive(supervisor)
    assert (world.job(job_id).state, len(world.attempts(job_id))) == ("succeeded", 1)


# -- progress while a call waits


def test_a_cancel_is_heard_while_a_launch_waits_for_its_machine(world: World) -> None:
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    clock, launch = world.clock, world.cloud.launch

    class Sleeping:
        def now(self) -> float:
            return clock.now()

        def monotonic(self) -> float:
            return clock.monotonic()

        def sleep(self, seconds: float) -> None:
            clock.advance(seconds)
            if clock.monotonic() > 10:
                world.store.set_goal(job_id, "cancel", "cancel", clock.now())

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(world.cloud, name)

        def launch(self, request: LaunchRequest) -> object:
            made = launch(request)
            for _ in range(100):
                api_calls.pause(Sleeping(), 3.0)
            return made

    world.wrap = lambda what, it: Slow() if what == "cloud" else it
    world.finish(job_id)
    assert world.job(job_id).state == "cancelled"
    assert clock.monotonic() < 30
    del supervisor


def test_machines_learn_of_a_cancel_although_the_cloud_cannot_be_looked_at(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6, obeys=False))
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    world.cloud.faults["observe"] = [refusal("transient") for _ in range(1_000)]
    world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    begin = world.clock.monotonic()
    key = attempt_key(1, "stop.json")
    world.drive(supervisor, until=lambda: JobDir(world.job(job_id).job_dir).find(key) is not None, for_s=10)
    world.drive(supervisor, until=lambda: world.attempts(job_id)[0].state == "terminating")
    assert 30 <= world.clock.monotonic() - begin < 120
    world.drive(supervisor, until=lambda: not world.cloud.running())
    world.cloud.faults.clear()
    world.drive(supervisor)
    assert world.job(job_id).state == "cancelled"


def test_a_list_that_is_stale_does_not_take_the_time_for_saving(world: World) -> None:
    """The list says that the machine is queued; its heartbeat says that the program runs."""
    world.cloud.script = lives(Life(run_s=1e6))
    job_id, supervisor = world.submit(aws("az1")), world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")

    class Stale:
        def __getattr__(self, name: str) -> object:
            return getattr(world.cloud, name)

        def observe(self, allocation: Allocation) -> list[NodeState]:
            found = world.cloud.observe(allocation)
            return [NodeState(one.node, "pending", queued=True) if one.phase == "running" else one for one in found]

    world.wrap = lambda what, it: Stale() if what == "cloud" else it
    world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
    world.finish(job_id)
    [attempt] = world.attempts(job_id)
    assert (attempt.outcome, attempt.reason) == ("stopped", "asked to stop: cancel")


def test_events_bear_the_time_at_which_they_are_written(world: World) -> None:
    launch = world.cloud.launch

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(world.cloud, name)

        def launch(self, request: LaunchRequest) -> object:
            world.clock.advance(100)
            return launch(request)

    world.wrap = lambda what, it: Slow() if what == "cloud" else it
    job_id = world.submit(aws("az1"))
    begin = world.clock.now()
    world.finish(job_id)
    [launched] = [event.time for event in world.store.events(job_id) if event.kind == "launched"]
    assert launched >= begin + 100


LATE = 3_000.0
"""Seconds in a queue: longer than a started machine has for its first report."""


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
    """It does not count for cost limits either, also if another supervisor takes over halfway."""
    world.cloud.script = lives(Life(queued_s=LATE, run_s=600.0))
    policy = make_policy(cost_usd=Decimal("0.9"))  # 15 minutes at 3.6 USD/h
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
    assert (second.outcome, second.offer.zone) == ("succeeded", "az3")


def test_a_late_refusal_that_nothing_helps_ends_the_job(world: World) -> None:
    world.cloud.script = lives(Life(queued_s=60.0, refused=refusal("invalid", "cloud")))
    job_id = world.submit(aws("az1"), aws("az2"))
    world.finish(job_id)
    assert world.job(job_id).state == "failed"
    assert len(world.attempts(job_id)) == 1
