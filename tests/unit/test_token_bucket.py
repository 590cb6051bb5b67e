"""Token buckets with a queue: first come, first served, and the provider refuses next to no call."""

from __future__ import annotations

import heapq
import random

from cloudgpu.provisioners.shared.token_bucket import FORGOTTEN_S, LATE_S, SLOW_S, Bucket, Rate


class Hand:
    """Clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_a_burst_is_free_and_then_each_waits_its_turn() -> None:
    clock = Hand()
    bucket = Bucket(Rate(2, 5), clock)
    assert [bucket.take(str(key)) for key in range(8)] == [0, 0, 0, 0, 0, 0.5, 1.0, 1.5]
    clock.sleep(0.5)
    assert bucket.take("6") == 0.5, "the fifth is before it"
    assert bucket.take("5") == 0
    clock.sleep(10)
    assert [bucket.take(key) for key in ("6", "7", "8")] == [0, 0, 0]
    assert bucket.waiting == 0


def test_a_late_caller_keeps_its_place_and_delays_no_other() -> None:
    clock = Hand()
    bucket = Bucket(Rate(1, 1), clock)
    assert [bucket.take(key) for key in "abcd"] == [0, 1, 2, 3]
    clock.sleep(2 + LATE_S)
    assert bucket.take("d") > 0, "c is not late yet"
    clock.sleep(1.5)
    assert bucket.take("d") == 0, "b and c are"
    clock.sleep(1)
    assert bucket.take("b") == 0
    clock.sleep(FORGOTTEN_S + 10)
    bucket.take("e")
    assert bucket.waiting == 0, "c does not come any more"


def test_a_refusal_empties_the_bucket_and_halves_the_rate_for_a_while() -> None:
    clock = Hand()
    bucket = Bucket(Rate(2, 5), clock)
    bucket.refuse()
    assert bucket.take("a") == 1.0
    clock.sleep(1.0)
    assert bucket.take("a") == 0
    clock.sleep(SLOW_S)
    assert sum(bucket.take(str(key)) == 0 for key in range(9)) == 5


def test_a_thousand_launches_are_refused_next_to_nothing() -> None:
    """Each launch retries when it is due, some seconds late as with a busy supervisor; a call takes a moment."""
    clock, chance = Hand(), random.Random(7)
    ours, theirs = Bucket(Rate(2, 5), clock), Bucket(Rate(2, 5), clock)
    due = [(clock.time + chance.uniform(0, 60), number) for number in range(1_000)]
    heapq.heapify(due)
    begun, calls, refused, asked, order = clock.time, 0, 0, 0, []
    while due:
        clock.time, number = heapq.heappop(due)
        asked += 1
        wait = ours.take(str(number))
        if wait == 0:
            calls += 1
            if theirs.take(f"call {calls}") > 0:
                theirs._line.clear()  # AWS has no queue
                refused += 1
                ours.refuse()
                wait = 1.0
            else:
                order.append(number)
                continue
        heapq.heappush(due, (clock.time + wait + chance.uniform(0, 2), number))
    assert refused <= 0.05 * calls
    assert clock.time - begun < 1.3 * 1_000 / 2
    assert asked < 6 * 1_000, "and they need not ask often"
