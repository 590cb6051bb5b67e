"""Failover: which offer is tried next, for every class and scope of error; hints, history, limits. Pure functions
only."""

from __future__ import annotations

import dataclasses
import itertools
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from cloudgpu.control.reconcile.decisions import SPREAD_S, End, Later, Start, decide
from cloudgpu.control.reconcile.failover import NO_CAPACITY_S, REACTIONS, choose, opens_at
from cloudgpu.control.store.model import Attempt, JobRow, Refused
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.provisioners.base import ErrorClass
from cloudgpu.tests.standins.control import make_job, make_policy

NOW = 1_700_000_000.0
CLASSES = get_args(ErrorClass)


def offer(
    place: str,
    market: str = "spot",
    machine: str = "g4dn.xlarge",
    *,
    nodes: int = 1,
    gpu: str | None = "T4",
    count: int = 1,
    vcpus: int | None = 4,
) -> Offer:
    """Return the offer of a place: `aws/us-1/az1`, or `aws/us-1` if the provider chooses the zone."""
    cloud, region, zone = [*place.split("/"), ""][:3]
    role = RoleOffer("worker", nodes, machine, gpu, Fraction(count), vcpus, 16.0, Decimal(1))
    return Offer(cloud, region, zone or None, market, (role,), 100.0, Decimal(0), Decimal(1), "2026-01-01")


def attempt(
    number: int, of: Offer, outcome: str = "refused", kind: str = "capacity", scope: str = "zone", **more: object
) -> Attempt:
    at = more.pop("at", NOW - 100 + number)
    values: dict[str, object] = {
        "job_id": "job-1",
        "number": number,
        "state": "ended",
        "round": 0,
        "offer": of,
        "price": None,
        "token": "t",
        "allocation": None,
        "cause": kind if outcome == "refused" else "",
        "scope": scope if outcome == "refused" else "",
        "deadline": None,
        "outcome": outcome,
        "reason": f"{kind} in {of.zone}",
        "exit_code": None,
        "progress": None,
        "created": at,
        "launched": at,
        "ended": at,
        "cost": None,
    }
    return Attempt(**{**values, **more})  # type: ignore[arg-type]


def job(*offers: Offer, capacity_s: int | None = None, created: float = NOW - 1000) -> JobRow:
    policy = make_policy(capacity_s=capacity_s)
    return make_job("job-1", "s3://b/j", offers, now=created, policy=policy)


HERE = offer("aws/us-1/az1")
OTHERS = {
    "same zone, other market": offer("aws/us-1/az1", "on-demand"),
    "same zone, other machine": offer("aws/us-1/az1", machine="g6.xlarge", gpu="L4"),
    "next zone": offer("aws/us-1/az2"),
    "next region": offer("aws/eu-1/az1"),
    "next cloud": offer("gcp/us-1/az1"),
}

# Other offers that a refusal in HERE closes, and the time in seconds.
CLOSES: dict[tuple[str, str], tuple[float, set[str]]] = {
    ("capacity", "zone"): (NO_CAPACITY_S, set()),
    ("capacity", "region"): (NO_CAPACITY_S, {"next zone"}),
    ("capacity", "cloud"): (NO_CAPACITY_S, {"next zone", "next region"}),
    ("quota", "zone"): (math.inf, set()),
    ("quota", "region"): (math.inf, {"next zone"}),
    ("quota", "cloud"): (math.inf, {"next zone", "next region"}),
    ("not_offered", "zone"): (math.inf, set()),
    ("not_offered", "region"): (math.inf, {"next zone"}),
    ("not_offered", "cloud"): (math.inf, {"next zone", "next region"}),
    ("auth", "zone"): (math.inf, set(OTHERS) - {"next cloud"}),
    ("auth", "region"): (math.inf, set(OTHERS) - {"next cloud", "next region"}),
    ("auth", "cloud"): (math.inf, set(OTHERS) - {"next cloud"}),
    ("expired", "zone"): (NO_CAPACITY_S, set(OTHERS) - {"next cloud"}),
    ("expired", "region"): (NO_CAPACITY_S, set(OTHERS) - {"next cloud"}),
    ("expired", "cloud"): (NO_CAPACITY_S, set(OTHERS) - {"next cloud"}),
    ("invalid", "zone"): (math.inf, set(OTHERS) - {"next cloud"}),
    ("invalid", "region"): (math.inf, set(OTHERS) - {"next cloud", "next region"}),
    ("invalid", "cloud"): (math.inf, set(OTHERS) - {"next cloud"}),
    **{
        (kind, scope): (NO_CAPACITY_S, closed)
        for kind in ("throttled", "transient")
        for scope, closed in {
            "zone": {"same zone, other market", "same zone, other machine"},
            "region": {"same zone, other market", "same zone, other machine", "next zone"},
            "cloud": set(OTHERS) - {"next cloud"},
        }.items()
    },
}


def test_every_class_has_a_reaction() -> None:
    assert set(REACTIONS) == set(CLASSES)
    assert set(CLOSES) == {(kind, scope) for kind in CLASSES for scope in ("zone", "region", "cloud")}


def test_a_refusal_of_a_market_closes_that_market_in_the_whole_cloud() -> None:
    refusal = Refused(HERE, "auth", "market", "no role for Spot", NOW)
    opens = {name: opens_at(other, [refusal]) for name, other in OTHERS.items()}
    assert {name for name, when in opens.items() if when == 0.0} == {"same zone, other market", "next cloud"}
    assert opens_at(HERE, [refusal]) == math.inf


def test_zones_that_no_attempt_has_tried_keep_their_offer_open() -> None:
    """Each attempt fails in another zone of a region: only the last failure closes the region."""
    region = HERE._replace(zone=None)
    tried = [
        Refused(region, "capacity", "attempt", "no room for two", NOW + at, hints=left)
        for at, left in enumerate([("2", "3"), ("3", "1"), ("1", "2")])
    ]
    for known in (tried[:1], tried[:2]):
        assert opens_at(region, known) == 0.0
        assert opens_at(region, [*known, Refused(region, "quota", "region", "none", NOW)]) == math.inf
    assert opens_at(region, tried) == NOW + 2 + NO_CAPACITY_S
    assert opens_at(HERE, tried) == 0.0, "a zone of its own was not asked"
    later = Refused(region, "capacity", "attempt", "no room", NOW + NO_CAPACITY_S + 2, hints=("2", "3"))
    assert opens_at(region, [*tried[1:], later]) == 0.0, "the others are forgotten by then"


def test_every_class_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "failover.md").read_text()
    assert [kind for kind in CLASSES if f"`{kind}`" not in page] == []


@pytest.mark.parametrize(("kind", "scope"), CLOSES)
def test_what_a_refusal_closes_and_for_how_long(kind: str, scope: str) -> None:
    lasts, closed = CLOSES[kind, scope]
    refused = Refused(HERE, kind, scope, "no", NOW)
    assert opens_at(HERE, [refused]) == NOW + lasts
    assert {name for name, other in OTHERS.items() if opens_at(other, [refused]) > NOW} == closed
    assert {name for name, other in OTHERS.items() if opens_at(other, [refused]) == NOW + lasts} == closed


@pytest.mark.parametrize(("kind", "scope"), CLOSES)
def test_the_next_place_is_the_first_open_one_of_the_same_kind(kind: str, scope: str) -> None:
    _, closed = CLOSES[kind, scope]
    order = ["next zone", "next region", "next cloud", "same zone, other market", "same zone, other machine"]
    decision = decide(job(HERE, *OTHERS.values()), [attempt(1, HERE, kind=kind, scope=scope)], NOW)
    expected = [name for name in order if name not in closed]
    if expected:
        assert isinstance(decision, Start)
        assert decision.offer == OTHERS[expected[0]]
    else:
        assert isinstance(decision, End)
        assert (decision.state, decision.cause) == ("failed", kind)


def test_an_offer_without_a_zone_is_closed_by_its_own_refusal_only() -> None:
    regional = offer("aws/us-1")
    assert opens_at(regional, [Refused(regional, "capacity", "region", "no", NOW)]) == NOW + NO_CAPACITY_S
    assert opens_at(regional, [Refused(regional, "capacity", "zone", "no", NOW)]) == NOW + NO_CAPACITY_S
    assert opens_at(regional, [Refused(HERE, "capacity", "zone", "no", NOW)]) == 0


@pytest.mark.parametrize(
    ("wanted", "closed"),
    [
        (offer("aws/us-1/az1", nodes=2), True),
        (offer("aws/us-1/az1", nodes=3), True),
        (offer("aws/us-1/az1", nodes=1), False),
    ],
)
def test_who_asks_for_fewer_machines_may_get_them(wanted: Offer, closed: bool) -> None:
    refused = Refused(offer("aws/us-1/az1", nodes=2), "capacity", "zone", "no", NOW)
    assert (opens_at(wanted, [refused]) > 0) == closed


@pytest.mark.parametrize(
    ("wanted", "closed"),
    [
        (offer("aws/us-1/az2", machine="g4dn.12xlarge", count=4, vcpus=48), True),
        (offer("aws/us-1/az2", machine="g4dn.xlarge", vcpus=4), False),
        (offer("aws/us-1/az2", machine="g4dn.16xlarge", count=4, vcpus=64), True),
        (offer("aws/us-1/az2", machine="g6.12xlarge", gpu="L4", count=4, vcpus=48), False),
        (offer("aws/us-1/az2", "on-demand", machine="g4dn.12xlarge", count=4, vcpus=48), False),
        (offer("aws/us-1/az2", machine="unknown", count=4, vcpus=None), False),
    ],
)
def test_a_quota_is_of_a_market_and_of_a_kind_of_machine(wanted: Offer, closed: bool) -> None:
    refused = Refused(offer("aws/us-1/az1", machine="g4dn.12xlarge", count=4, vcpus=48), "quota", "region", "no", NOW)
    assert (opens_at(wanted, [refused]) > 0) == closed


def test_a_quota_is_asked_about_again_once_machines_were_got() -> None:
    refused = attempt(1, HERE, kind="quota", scope="region")
    ran = attempt(2, OTHERS["next region"], "preempted")
    assert choose([HERE], [refused], [], NOW) is None
    assert choose([HERE], [refused, ran], [], NOW) == HERE
    never = attempt(1, HERE, kind="not_offered")
    assert choose([HERE], [never, ran], [], NOW) is None


def test_zones_that_the_provider_named_go_first() -> None:
    zones = [offer(f"aws/us-1/az{n}") for n in range(1, 5)]
    elsewhere = offer("aws/eu-1/az3")
    refused = attempt(1, zones[0], hints=("az3", "az9"))
    assert choose([*zones, elsewhere], [refused], [], NOW) == zones[2]
    both = [refused, attempt(2, zones[2], hints=("az4",))]
    assert choose([*zones, elsewhere], both, [], NOW) == zones[3]


def test_a_hint_does_not_make_a_worse_gpu_better() -> None:
    first, second = offer("aws/us-1/az1"), offer("aws/us-1/az2")
    worse = offer("aws/us-1/az3", machine="g6.xlarge", gpu="L4")
    assert choose([first, second, worse], [attempt(1, first, hints=["az3"])], [], NOW) == second


def test_places_that_just_lost_a_machine_go_last_among_their_like() -> None:
    zones = [offer("aws/us-1/az1"), offer("aws/us-1/az2"), offer("aws/us-1/az1", "on-demand")]
    assert choose(zones, [attempt(1, zones[0], "preempted")], [], NOW) == zones[1]
    assert choose(zones, [attempt(1, zones[0], "preempted"), attempt(2, zones[1], "lost")], [], NOW) == zones[0]
    long_ago = attempt(1, zones[0], "preempted", at=NOW - NO_CAPACITY_S)
    assert choose(zones, [long_ago], [], NOW) == zones[0]
    assert choose(zones, [attempt(1, zones[0], "failed")], [], NOW) == zones[0]


def test_the_next_attempt_names_the_refusal_whose_words_were_just_told() -> None:
    zones = [offer("aws/us-1/az1"), offer("aws/us-1/az2")]
    decision = decide(job(*zones), [attempt(1, zones[0])], NOW)
    assert isinstance(decision, Start) and decision.offer == zones[1]
    assert decision.reason == "no capacity: aws az1 spot g4dn.xlarge"


def test_what_other_jobs_found_dry_is_not_asked() -> None:
    zones = [offer("aws/us-1/az1"), offer("aws/us-1/az2")]
    theirs = Refused(zones[0], "capacity", "zone", "no", NOW - 60, job_id="other-1")
    decision = decide(job(*zones), [], NOW, [theirs])
    assert isinstance(decision, Start) and decision.offer == zones[1]
    again = decide(job(*zones), [], NOW - 60 + NO_CAPACITY_S, [theirs])
    assert isinstance(again, Start) and again.offer == zones[0]


def test_when_all_is_dry_the_next_try_is_when_the_first_opens() -> None:
    zones = [offer("aws/us-1/az1"), offer("aws/us-1/az2")]
    tried = [attempt(1, zones[0], at=NOW - 90), attempt(2, zones[1], at=NOW - 30)]
    decision = decide(job(*zones), tried, NOW)
    assert isinstance(decision, Later)
    assert 0 <= decision.until - (NOW - 90 + NO_CAPACITY_S) < SPREAD_S
    assert "2 tries at 2 places" in decision.reason
    again = decide(job(*zones), tried, decision.until)
    assert isinstance(again, Start) and (again.offer, again.round) == (zones[0], 1)


def test_after_an_hour_in_vain_it_asks_less_often() -> None:
    tried: list[Attempt] = []
    asked: list[float] = []
    now = NOW
    while now < NOW + 3 * 3600:
        decision = decide(job(HERE, created=NOW), tried, now)
        if isinstance(decision, Later):
            now = decision.until
        else:
            assert isinstance(decision, Start) and decision.round == len(tried)
            asked.append(now - NOW)
            tried.append(attempt(len(tried) + 1, HERE, at=now))
    pauses = [round(later - earlier, -2) for earlier, later in itertools.pairwise(asked)]
    assert pauses == [600] * 6 + [1800] * len(pauses[6:])
    assert len(pauses) >= 9


def test_waiting_jobs_come_back_apart() -> None:
    tried = [attempt(1, HERE, at=NOW)]
    times = set()
    for number in range(100):
        decision = decide(dataclasses.replace(job(HERE), id=f"job-{number}"), tried, NOW + 1)
        assert isinstance(decision, Later)
        times.add(decision.until)
    assert len(times) == 100
    assert max(times) - min(times) > SPREAD_S / 2


@pytest.mark.parametrize(
    ("capacity_s", "now", "expected"),
    [
        (None, NOW + 1e7, Start),
        (7200, NOW + 10, Later),
        (7200, NOW + NO_CAPACITY_S, Start),
        (7200, NOW + 7200, End),
        (300, NOW + 10, End),  # no offer opens before the time limit
    ],
)
def test_retry_capacity_ends_the_search(capacity_s: int | None, now: float, expected: type) -> None:
    tried = [attempt(1, HERE, at=NOW)]
    decision = decide(job(HERE, capacity_s=capacity_s, created=NOW), tried, now)
    assert isinstance(decision, expected)
    if isinstance(decision, End):
        assert (decision.state, decision.cause) == ("failed", "capacity")
        assert decision.reason.startswith(
            f"no machines within retry.capacity of {'2h' if capacity_s == 7200 else '5m'}"
        )
        assert "aws us-1 spot g4dn.xlarge: az1 22:13" in decision.reason


def test_the_search_begins_anew_whenever_machines_were_had() -> None:
    ran = attempt(1, HERE, "preempted", at=NOW)
    tried = [ran, attempt(2, HERE, at=NOW + 5)]
    decision = decide(job(HERE, capacity_s=3600, created=NOW - 1e6), tried, NOW + 10)
    assert isinstance(decision, Later)


def test_a_job_that_was_refused_nowhere_is_not_given_up_for_others() -> None:
    theirs = Refused(HERE, "capacity", "zone", "no", NOW - 1, job_id="other-1")
    decision = decide(job(HERE, capacity_s=60, created=NOW), [], NOW, [theirs])
    assert isinstance(decision, Later) and decision.until == NOW + 60


def test_bad_credentials_of_one_cloud_do_not_stop_another() -> None:
    aws, gcp = offer("aws/us-1/az1"), offer("gcp/us-1/a")
    decision = decide(job(aws, gcp), [attempt(1, aws, kind="auth", scope="cloud")], NOW)
    assert isinstance(decision, Start) and decision.offer == gcp
    both = [attempt(1, aws, kind="auth", scope="cloud"), attempt(2, gcp, kind="quota", scope="cloud")]
    end = decide(job(aws, gcp), both, NOW)
    assert isinstance(end, End) and end.cause == "no-machines"
    assert "auth in az1" in end.reason and "quota in a" in end.reason


def test_an_interruption_is_fruitless_whatever_was_refused_in_between() -> None:
    """Otherwise a job that alternates between lost machines and refusals would never end."""
    tried: list[Attempt] = []
    for _ in range(6):
        tried.append(attempt(len(tried) + 1, HERE, "lost"))
        tried.append(attempt(len(tried) + 1, OTHERS["next zone"]))
    end = decide(job(HERE, OTHERS["next zone"]), [*tried[:-1]], NOW)
    assert isinstance(end, End) and end.cause == "lost"


def test_local_gpus_are_asked_for_again_soon() -> None:
    mine = offer("local/here", "on-demand", "local")
    assert opens_at(mine, [Refused(mine, "capacity", "zone", "busy", NOW)]) == NOW + 30.0
