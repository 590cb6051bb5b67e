"""The pause between creating an instance profile and the first RunInstances with it."""

from __future__ import annotations

import pytest

from cloudgpu.provisioners.aws.resources.profile_propagation import PROPAGATED_S, Profiles
from cloudgpu.tests.standins.clocks import StillClock


class Hand(StillClock):
    def pass_(self, seconds: float) -> None:
        self._skipped += seconds


def calls_until_known(profiles: Profiles, clock: Hand, arn: str, lag_s: float) -> int:
    profiles.add(arn)
    made, calls = clock.monotonic(), 0
    while True:
        clock.pass_(profiles.wait_s(arn))
        calls += 1
        if clock.monotonic() - made >= lag_s:
            profiles.accept(arn)
            return calls
        profiles.refuse(arn)


@pytest.mark.parametrize(("lag_s", "first"), [(0.0, 1), (10.0, 3), (12.0, 4), (70.0, 6)])
def test_few_calls_are_refused_and_next_to_none_of_later_jobs(lag_s: float, first: int) -> None:
    clock = Hand()
    profiles = Profiles(clock)
    assert calls_until_known(profiles, clock, "first", lag_s) == first
    assert sum(calls_until_known(profiles, clock, str(number), lag_s) for number in range(40)) <= 50


def test_a_pause_that_is_not_needed_fades() -> None:
    clock = Hand()
    profiles = Profiles(clock)
    calls_until_known(profiles, clock, "slow", 70.0)
    for number in range(200):
        assert calls_until_known(profiles, clock, str(number), 0.0) == 1
    profiles.add("new")
    assert profiles.wait_s("new") == 0.0


def test_a_launch_that_is_repeated_has_its_profile() -> None:
    clock = Hand()
    profiles = Profiles(clock)
    assert profiles.of_launch("token") is None
    profiles.add("arn:one", "token")
    clock.pass_(60.0)
    assert (profiles.of_launch("token"), profiles.of_launch("another")) == ("arn:one", None)
    profiles.forget_launch("token")
    assert profiles.of_launch("token") is None
    profiles.add("arn:one", "token")
    clock.pass_(PROPAGATED_S + 1.0)
    assert profiles.of_launch("token") is None
