"""Helpers shared by the calls to all clouds: retries, all-or-nothing launches, the poll cache, wrong clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cloudgpu.provisioners import ProvisionError
from cloudgpu.provisioners.shared import api_calls
from cloudgpu.provisioners.shared.clock import SystemClock
from cloudgpu.provisioners.shared.poll_cache import STALE_S, TTL_FACTOR, TTL_S, PollCache
from cloudgpu.provisioners.shared.shared_provisioner import CachedByEnvironment


class Clock:
    """A clock that advances only in sleep()."""

    def __init__(self, time: float = 1_000.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_only_what_may_pass_is_tried_again_and_not_for_ever() -> None:
    clock, made = Clock(), []

    def fails(error_class: str) -> None:
        made.append(clock.time)
        raise ProvisionError(error_class, "no")  # type: ignore[arg-type]

    with pytest.raises(ProvisionError):
        api_calls.retry(lambda: fails("capacity"), timeout_s=60, clock=clock)
    assert len(made) == 1
    with pytest.raises(ProvisionError):
        api_calls.retry(lambda: fails("throttled"), timeout_s=60, clock=clock)
    assert 5 < len(made) < 30
    assert clock.time <= 1_060.0


def test_the_provider_says_when_to_come_back() -> None:
    clock, made = Clock(), []

    def busy() -> str:
        made.append(clock.time)
        if len(made) == 1:
            raise ProvisionError("throttled", "later", retry_after=30.0)
        return "done"

    assert api_calls.retry(busy, timeout_s=60, clock=clock) == "done"
    assert clock.time == 1_030.0


def test_refused_credentials_are_forgotten_and_nothing_else_is() -> None:
    forgotten: list[str] = []
    for error_class in ("capacity", "auth", "transient"):
        with pytest.raises(ProvisionError), api_calls.logged_in(partial(forgotten.append, error_class)):
            raise ProvisionError(error_class, "no")
    assert forgotten == ["auth"]


# -- launching several machines


class Zone:
    """A zone that starts machines until its capacity is used up."""

    def __init__(self, room: int, error: str = "capacity") -> None:
        self.room, self.error = room, error
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.most = self.now = 0
        self.lock = threading.Lock()

    def start(self, name: str) -> str:
        with self.lock:
            self.asked.append(name)
            self.now += 1
            self.most = max(self.most, self.now)
            has_room = len(self.asked) <= self.room
        threading.Event().wait(0.02)
        with self.lock:
            self.now -= 1
        if not has_room:
            raise ProvisionError(self.error, f"no room for {name}")  # type: ignore[arg-type]
        return f"machine-of-{name}"

    def end(self, machines: Mapping[str, str]) -> None:
        self.ended += machines.values()


def all_of(zone: Zone, count: int) -> dict[str, str]:
    return api_calls.all_or_none([f"worker-{index}" for index in range(count)], zone.start, zone.end, at_once=4)


def test_all_machines_are_started_a_few_at_a_time() -> None:
    zone = Zone(room=10)
    assert all_of(zone, 10) == {f"worker-{index}": f"machine-of-worker-{index}" for index in range(10)}
    assert 1 < zone.most <= 4
    assert not zone.ended


def test_a_full_zone_is_asked_for_one_machine_only() -> None:
    zone = Zone(room=0)
    with pytest.raises(ProvisionError, match="no room for worker-0"):
        all_of(zone, 8)
    assert zone.asked == ["worker-0"]
    assert not zone.ended


def test_a_refusal_ends_those_that_were_started() -> None:
    zone = Zone(room=3)
    with pytest.raises(ProvisionError, match="no room"):
        all_of(zone, 9)
    assert len(zone.ended) == 3
    assert len(zone.asked) == 5, "the first alone, then four; none after the refusal"


def test_what_may_be_there_without_an_answer_is_left_for_the_next_try() -> None:
    zone = Zone(room=3, error="transient")
    with pytest.raises(ProvisionError) as caught:
        all_of(zone, 9)
    assert caught.value.error_class == "transient"
    assert not zone.ended


def test_who_was_refused_after_machines_were_asked_for_may_have_some() -> None:
    zone = Zone(room=1, error="auth")
    with pytest.raises(ProvisionError) as caught:
        all_of(zone, 2)
    assert caught.value.may_have_created


def test_no_machine_is_no_call() -> None:
    assert all_of(Zone(room=0), 0) == {}


# -- trying several zones


class Zones:
    """Several zones, each with a limited capacity."""

    def __init__(self, rooms: Sequence[int], error: str = "capacity") -> None:
        self.zones = [Zone(room, error) for room in rooms]

    def launch(self, count: int, turn: int = 0) -> list[int]:
        """Return the numbers of the zones tried, in order; the last one runs all the machines. Raises the launch's
        error."""
        tried: list[int] = []

        def start(number: int) -> None:
            tried.append(number)
            all_of(self.zones[number], count)

        self.refusals: list[ProvisionError] = []
        api_calls.first_with_room(
            range(len(self.zones)),
            start,
            turn=turn,
            has_begun=lambda: any(zone.ended for zone in self.zones),
            on_refusal=self.refusals.append,
        )
        return tried


def test_places_are_tried_until_one_has_room() -> None:
    assert Zones([0, 0, 2, 2]).launch(2) == [0, 1, 2]
    full = Zones([0, 0])
    with pytest.raises(ProvisionError) as caught:
        full.launch(2)
    assert caught.value.scope == "region" and len(full.refusals) == 2


def test_where_some_have_begun_is_the_last_place_of_an_attempt_and_not_the_first_of_the_next() -> None:
    zones = Zones([0, 1, 2])
    with pytest.raises(ProvisionError):
        zones.launch(2)
    assert [len(zone.asked) for zone in zones.zones] == [1, 2, 0]
    assert Zones([0, 1, 2]).launch(2, turn=2) == [2]
    assert Zones([2, 2, 2]).launch(2, turn=4) == [1]


def test_what_is_the_same_everywhere_is_not_tried_elsewhere() -> None:
    zones = Zones([0, 2], error="quota")
    with pytest.raises(ProvisionError, match="no room for worker-0"):
        zones.launch(2)
    assert not zones.zones[1].asked and not zones.refusals


# -- HTTP responses

_NOON = 1_795_348_800.0  # Sun, 22 Nov 2026 12:00:00 GMT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30.0),
        ("Sun, 22 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert api_calls.retry_after_s(text, Clock(_NOON)) == seconds


@pytest.mark.parametrize(
    ("date", "says"),
    [
        (None, ""),
        ("no date", ""),
        ("Sun, 22 Nov 2026 12:03:00 GMT", ""),
        ("Sun, 22 Nov 2026 12:07:00 GMT", "; this computer's clock is 7 minutes behind Google's"),
        ("Sun, 22 Nov 2026 11:53:00 GMT", "; this computer's clock is 7 minutes ahead of Google's"),
    ],
)
def test_a_clock_that_is_off(date: str | None, says: str) -> None:
    assert api_calls.clock_is_off(date, Clock(_NOON), "Google") == says


@pytest.mark.parametrize("url", ["https://example.com", "http://127.0.0.1:8080", "http://localhost:1"])
def test_endpoints_that_may_be_sent_credentials(url: str) -> None:
    api_calls.check_encrypted("SETTING", url)


def test_credentials_are_not_sent_in_the_open() -> None:
    with pytest.raises(ProvisionError, match=r"SETTING: http://example\.com is not encrypted") as caught:
        api_calls.check_encrypted("SETTING", "http://example.com")
    assert caught.value.error_class == "invalid"


def test_a_retry_times_out_while_the_computer_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux CLOCK_MONOTONIC stops during suspend; CLOCK_BOOTTIME does not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has one monotonic clock")
    read, calls_made, suspended_s = time.clock_gettime, [], [0.0]
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: read(which) + suspended_s[0] * (which == time.CLOCK_BOOTTIME)
    )

    def call() -> None:
        calls_made.append(suspended_s[0])
        suspended_s[0] = 3_600.0
        raise ProvisionError("transient", "no answer")

    with pytest.raises(ProvisionError):
        api_calls.retry(call, timeout_s=1_800.0, clock=SystemClock())
    assert calls_made == [0.0]


# -- poll cache


def test_a_look_is_shared_by_all_who_ask_within_its_time() -> None:
    clock, asked = Clock(), []

    def ask(key: str) -> int:
        asked.append(key)
        clock.sleep(0.5)
        return len(asked)

    cache = PollCache(ask, clock)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: cache.get("a"), range(32))) == {1}
    assert cache.get("b") == 2
    assert cache.get("a", since=clock.time - 60.0) == 1
    assert cache.get("a", since=clock.time) == 3, "begun before what is asked for"
    clock.sleep(TTL_S)
    assert cache.get("a") == 4


def test_while_a_look_is_under_way_the_last_one_is_used() -> None:
    """Listing a thousand machines takes seconds: watching a job uses the last poll meanwhile, a launch waits for the
    new one."""
    clock, goes_on, under_way, asked = Clock(), threading.Event(), threading.Event(), []

    def ask(key: str) -> int:
        asked.append(key)
        if len(asked) == 2:
            under_way.set()
            goes_on.wait(60.0)
        return len(asked)

    cache = PollCache(ask, clock)
    assert cache.get("a") == 1
    clock.sleep(TTL_S)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(cache.get, "a")
        assert under_way.wait(60.0)
        assert cache.get("a") == 1
        fresh = pool.submit(cache.get, "a", since=clock.monotonic())
        clock.sleep(STALE_S)
        late = ThreadPoolExecutor(1).submit(cache.get, "a")
        assert not fresh.done() and not late.done(), "that is too old by now"
        goes_on.set()
        assert second.result() == 2
        assert fresh.result() >= 2 and late.result() >= 2


def test_a_look_that_takes_long_is_used_for_longer() -> None:
    clock, takes, asked = Clock(), 2.0, []

    def ask(key: str) -> int:
        asked.append(key)
        clock.sleep(takes)
        return len(asked)

    cache = PollCache(ask, clock)
    assert cache.get("a") == 1
    clock.sleep(TTL_FACTOR * takes - takes - 0.1)
    assert cache.get("a") == 1
    clock.sleep(0.2)
    assert cache.get("a") == 2
    takes = 60.0
    clock.sleep(10.0)
    assert cache.get("a") == 3
    assert cache.get("a") == 4, "it is too old when it comes"


def test_a_look_that_failed_is_no_answer() -> None:
    clock = Clock()
    answers: Iterator[ProvisionError | int] = iter([ProvisionError("transient", "no"), 7])

    def ask(_key: str) -> int:
        answer = next(answers)
        if isinstance(answer, ProvisionError):
            raise answer
        return answer

    cache = PollCache(ask, clock)
    with pytest.raises(ProvisionError):
        cache.get("a")
    assert cache.get("a") == 7


def test_a_server_that_hangs_is_not_waited_for_by_one_after_the_other() -> None:
    asked: list[str] = []

    def ask(key: str) -> int:
        asked.append(key)
        threading.Event().wait(0.5)
        raise ProvisionError("transient", "no answer")

    cache = PollCache(ask, SystemClock())

    def look(_: int) -> str:
        with pytest.raises(ProvisionError, match="no answer"):
            cache.get("a")
        return "told"

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(look, range(16))) == {"told"}
    assert len(asked) <= 3, "once, or a little more often on a busy computer"
    look(0)
    assert len(asked) >= 2, "who comes later asks anew"


def test_a_look_of_a_launch_that_was_given_up_says_nothing_to_the_jobs_that_wait_for_it() -> None:
    begun, waits, asked = threading.Event(), threading.Event(), []

    def ask(key: str) -> int:
        asked.append(key)
        if len(asked) > 1:
            return 7
        begun.set()
        waits.wait(5.0)
        threading.Event().wait(0.2)  # until the other thread waits for this poll
        raise api_calls.LaunchInterruptedError

    cache = PollCache(ask, SystemClock())
    with ThreadPoolExecutor(2) as pool:
        given_up = pool.submit(cache.get, "a")
        begun.wait(5.0)
        other = pool.submit(cache.get, "a")
        waits.set()
        assert other.result() == 7
        assert isinstance(given_up.exception(), api_calls.LaunchInterruptedError)


def test_one_object_until_the_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = CachedByEnvironment(object, "SOME_", "OTHER_NAME")
    first = shared()
    assert shared() is first
    monkeypatch.setenv("UNRELATED", "1")
    assert shared() is first
    monkeypatch.setenv("OTHER_NAME", "1")
    assert shared() is not first
    monkeypatch.delenv("OTHER_NAME")
    assert shared() is first
