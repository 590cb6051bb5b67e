"""Rules read off a fleet's folder: live machines, the order of jobs, ended orders, objects to delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.protocol.fleet.folder import KEPT_S
from cloudgpu.protocol.fleet.records import FLEET_KEY, WATCH_KEY, Beat, Failure, Settings, member_key, order_key
from cloudgpu.tests.standins.fleets import FleetFolder


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    made = FleetFolder(tmp_path / "clusters" / "big")
    made.machine("a")
    return made


def test_orders_are_served_in_their_turn(folder: FleetFolder) -> None:
    """The second order starts when the first has all its machines, not half of them."""
    assert [folder.order("1", "worker-0.1", "worker-1.1"), folder.order("2", "worker-0.1")] == [1, 2]
    assert folder.order("1", "worker-0.1", "worker-1.1") == 1
    assert folder.wanted() == (1, {"worker-0.1", "worker-1.1"})
    folder.claim(1, "worker-0.1", "a")
    assert folder.wanted() == (1, {"worker-1.1"})
    folder.claim(1, "worker-1.1", "a")
    assert folder.wanted() == (2, {"worker-0.1"})
    folder.end(2)
    assert folder.wanted() is None


def test_a_node_is_held_as_long_as_its_machine_lives(folder: FleetFolder) -> None:
    folder.machine("b", silent=90.0)
    number = folder.order("1", "worker-0.1", "worker-1.1")
    folder.claim(number, "worker-0.1", "a")
    folder.claim(number, "worker-1.1", "b")
    assert folder.states(number) == ["held", "held"]
    folder.machine("b", silent=110.0)
    assert folder.states(number) == ["held", "lost"]
    assert folder.wanted() == (1, {"worker-1.2"})
    folder.machine("b")
    folder.fleet.put(member_key("b", "left.json"), Beat(0.0))
    assert folder.states(number) == ["held", "lost"], "it has said that it goes"


def test_silence_is_measured_by_the_stores_clock(folder: FleetFolder) -> None:
    """All objects are a year old: only the difference between their times counts."""
    number = folder.order("1", "worker-0.1")
    folder.claim(number, "worker-0.1", "a")
    for path in folder.path.rglob("*"):
        folder.age(str(path.relative_to(folder.path)), 365 * 86_400.0)
    assert folder.states(number) == ["held"], "nobody has written anything since"
    folder.fleet.mark(WATCH_KEY, Beat(0.0))
    assert folder.states(number) == ["lost"], "who looks has told the time"


def test_several_may_tell_the_time(folder: FleetFolder) -> None:
    """A later write of another watcher says nothing about the time since this watcher's mark."""
    number = folder.order("1", "worker-0.1")
    folder.claim(number, "worker-0.1", "a")
    folder.fleet.mark(WATCH_KEY, Beat(0.0))
    assert folder.states(number) == ["held"]
    folder.age(WATCH_KEY, -200.0)
    assert folder.states(number) == ["held"]


@pytest.mark.parametrize(
    ("outcomes", "is_over"),
    [
        (["succeeded", "succeeded"], True),
        (["succeeded", None], False),
        (["failed", None], False),
        (["failed", "lost"], True),
        (["succeeded", "lost"], False),
        (["lost", "lost"], False),
    ],
)
def test_when_an_order_is_over(folder: FleetFolder, outcomes: list[str | None], is_over: bool) -> None:
    """After a failure no node is started, but running nodes may end by themselves."""
    number = folder.order("1", "worker-0.1", "worker-1.1")
    for rank, outcome in enumerate(outcomes):
        folder.claim(number, f"worker-{rank}.1", "a")
        if outcome is not None:
            folder.free(number, f"worker-{rank}.1", outcome)
    one = folder.fleet.view().find(number)
    assert one is not None
    assert one.is_over == is_over
    lost = {f"worker-{rank}.2" for rank, outcome in enumerate(outcomes) if outcome == "lost"}
    assert folder.wanted() == ((number, lost) if lost and "failed" not in outcomes else None)


def test_a_claim_is_one_machines(folder: FleetFolder) -> None:
    number = folder.order("1", "worker-0.1")
    assert folder.claim(number, "worker-0.1", "a")
    assert folder.claim(number, "worker-0.1", "a"), "asked again, its answer having been lost"
    assert not folder.claim(number, "worker-0.1", "b")


def test_orders_that_wait_for_each_other_do_not_for_ever(folder: FleetFolder) -> None:
    """Each order had all its machines and lost one: the older gets the remaining machine of the younger."""
    for name in "bcd":
        folder.machine(name)
    for token, machines in (("1", "ab"), ("2", "cd")):
        number = folder.order(token, "worker-0.1", "worker-1.1")
        for rank, name in enumerate(machines):
            folder.claim(number, f"worker-{rank}.1", name)
    assert folder.places_to_release() == []
    folder.machine("d", silent=200.0)
    assert folder.places_to_release() == [], "the older lacks nothing"
    folder.machine("b", silent=200.0)
    assert folder.places_to_release() == [(2, "worker-0")]
    folder.machine("e")
    assert folder.places_to_release() == [], "one is free"
    folder.claim(1, "worker-1.2", "e")
    assert folder.places_to_release() == []


def test_nobody_gives_way_in_vain(folder: FleetFolder) -> None:
    """The younger job holds too few machines, or more than are missing."""
    for name in "bcd":
        folder.machine(name)
    folder.order("1", "worker-0.1", "worker-1.1", "worker-2.1")
    folder.claim(1, "worker-0.1", "a")
    folder.order("2", "worker-0.1", "worker-1.1", "worker-2.1", "worker-3.1")
    folder.claim(2, "worker-0.1", "b")
    folder.machine("c", silent=200.0)
    folder.machine("d", silent=200.0)
    assert folder.places_to_release() == [], "it would lack another one"
    for rank, name in enumerate("cd", 1):
        folder.machine(name)
        folder.claim(2, f"worker-{rank}.1", name)
    assert folder.places_to_release() == [(2, "worker-1"), (2, "worker-2")]


def test_the_life_of_an_order_begins_with_its_first_machine(folder: FleetFolder) -> None:
    number = folder.order("1", "worker-0.1", "worker-1.1")
    folder.fleet.mark(WATCH_KEY, Beat(0.0))
    seen = folder.fleet.view().find(number)
    assert seen is not None
    assert seen.ran_s == 0.0
    folder.claim(number, "worker-0.1", "a")
    folder.age(order_key(number, "claims/worker-0.1"), 300.0)
    folder.claim(number, "worker-0.2", "a")
    folder.claim(number, "worker-1.1", "a")
    seen = folder.fleet.view().find(number)
    assert seen is not None
    assert 299.0 < seen.ran_s < 500.0


def test_what_is_no_order_is_passed_over(folder: FleetFolder) -> None:
    folder.fleet.put("orders/mine/order.json", Beat(0.0))
    assert folder.order("1", "worker-0.1") == 1


def test_what_is_old_may_go_and_the_numbers_go_on(folder: FleetFolder) -> None:
    for token in "12":
        folder.end(folder.order(token, "worker-0.1"))
    folder.machine("gone", silent=2 * KEPT_S)
    for number in (1, 2):
        folder.age(order_key(number, "end.json"), 2 * KEPT_S)
    old = folder.fleet.view().old
    assert sorted(old) == sorted([order_key(1), order_key(1, "end.json"), member_key("gone")])
    assert old.index(order_key(1)) < old.index(order_key(1, "end.json")), "without its end it would be open again"
    for key in old:
        folder.fleet.delete(key)
        assert folder.fleet.view().wanted("x") is None
    assert folder.order("3", "worker-0.1") == 3


def test_settings_are_read_again(folder: FleetFolder) -> None:
    assert folder.fleet.view().settings.idle_s is None
    folder.fleet.put(FLEET_KEY, Settings(idle_s=60.0))
    folder.age(FLEET_KEY, -5.0)
    assert folder.fleet.view().settings.idle_s == 60.0


def test_a_machine_on_which_two_jobs_failed_soon_is_suspect(folder: FleetFolder) -> None:
    folder.machine("b")
    folder.ran("first", 60.0, a="failed", b="failed")  # b's node failed because a's did
    folder.ran("first", 60.0, a="error")
    assert folder.fleet.view().suspects == set(), "the same job again may fail for itself"
    folder.ran("second", 60.0, b="succeeded")
    folder.ran("third", 60.0, b="stopped", a="error")
    assert folder.fleet.view().suspects == {"a"}
    folder.ran("fourth", 1_200.0, a="failed")
    assert folder.fleet.view().suspects == set(), "it has run something for long"


def test_a_suspect_machine_leaves_what_is_wanted_to_as_many_others(folder: FleetFolder) -> None:
    folder.ran("first", 60.0, a="error")
    folder.ran("second", 60.0, a="error")

    def spared() -> bool:
        return folder.fleet.view().yields_to_others("a")

    assert not spared(), "nothing is wanted"
    number = folder.order("t", "worker-0.1", "worker-1.1")
    assert not spared(), "nobody else is there"
    folder.machine("b")
    assert not spared(), "one is not enough"
    folder.machine("c")
    assert spared() and not folder.fleet.view().yields_to_others("b")
    folder.claim(number, "worker-0.1", "b")
    assert spared()
    folder.machine("c", silent=200.0)
    assert not spared(), "who is silent is not free"


def test_whose_bootstrap_gave_up_is_told_until_it_is_heard_of(folder: FleetFolder) -> None:
    def fail(name: str, ago: float) -> None:
        folder.fleet.put(member_key(name, "failed.json"), Failure("no python", 0.0))
        folder.age(member_key(name, "failed.json"), ago)

    fail("vm-1", 50.0)
    fail("vm-2", 50.0)
    fail("vm-3", 50.0)
    fail("vm-4", KEPT_S + 60.0)
    folder.machine("vm-2-00c0ffee", silent=10.0)
    folder.machine("vm-3-00c0ffee", silent=70.0)
    folder.fleet.mark(WATCH_KEY, Beat(0.0))
    view = folder.fleet.view()
    assert set(view.failed) == {"vm-1", "vm-3", "vm-4"}
    assert 40.0 < view.failed["vm-1"] < 200.0
    assert view.old == [member_key("vm-4", "failed.json")]
    failure = folder.fleet.failure("vm-1")
    assert failure is not None and failure.reason == "no python"
    assert folder.fleet.failure("vm-9") is None
