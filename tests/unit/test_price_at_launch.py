"""The price of an attempt is fixed at launch: the target's price at that time, else the plan's."""

from __future__ import annotations

from decimal import Decimal

from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.control import World, make_offer, make_policy


def test_the_target_s_price_of_the_moment_is_frozen_and_paid(world: World) -> None:
    world.cloud.prices["a"] = Decimal(7200)  # two dollars a second
    job_id = world.submit(make_offer(price="3600", zone="a"))
    world.finish(job_id)
    [attempt] = world.attempts(job_id)
    assert attempt.price == 7200
    assert attempt.cost is not None and 20 <= attempt.cost <= 26
    [event] = [event for event in world.store.events(job_id) if event.kind == "price"]
    assert event.message == "attempt 1 costs 7200 USD/h now; planned: 3600 USD/h"


def test_it_does_not_move_while_the_machines_run(world: World) -> None:
    world.cloud.prices["a"] = Decimal(10)
    job_id = world.submit(make_offer(price=None, zone="a"))
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: world.job(job_id).state == "running")
    world.cloud.prices["a"] = Decimal(99)
    world.drive(supervisor)
    [attempt] = world.attempts(job_id)
    assert attempt.price == 10
    assert world.job(job_id).spent == attempt.cost


def test_every_attempt_has_the_price_of_its_own_moment(world: World) -> None:
    world.cloud.prices = {"a": Decimal(1), "b": Decimal(2)}
    world.cloud.faults["launch"] = [ProvisionError("capacity", "full")]
    job_id = world.submit(make_offer(price="5", zone="a"), make_offer(price="5", zone="b"))
    world.finish(job_id)
    assert [attempt.price for attempt in world.attempts(job_id)] == [1, 2]


def test_without_news_the_plan_s_price_stays_and_nothing_is_said(world: World) -> None:
    job_id = world.submit(make_offer(price="5", zone="a"))
    world.finish(job_id)
    assert world.attempts(job_id)[0].price == 5
    assert [event for event in world.store.events(job_id) if event.kind == "price"] == []


def test_a_place_that_has_become_dearer_than_the_limit_is_not_taken(world: World) -> None:
    world.cloud.prices = {"a": Decimal(9), "b": Decimal(5)}
    offers = (make_offer(zone="a", price="4"), make_offer(zone="b", price="4"))
    job_id = world.submit(*offers, policy=make_policy(price_usd=Decimal(5)))
    world.finish(job_id)
    assert [(attempt.outcome, attempt.price) for attempt in world.attempts(job_id)] == [
        ("refused", Decimal(4)),
        ("succeeded", Decimal(5)),
    ]
    assert "costs 9 USD/h now, more than limits.price, 5 USD/h" in world.attempts(job_id)[0].reason
    assert [request.zone for request in world.cloud.launches] == ["b"]
