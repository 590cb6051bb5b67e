"""Resources that `cloudgpu gc` may remove: a table of owners, attempts and expiries."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest

from cloudgpu.control.gc_policy import judge
from cloudgpu.control.store.model import Attempt
from cloudgpu.provisioners.shared import tags
from cloudgpu.provisioners.tagged_resources import Leftover, Resource, Tagged, group_by_launch
from cloudgpu.tests.standins.control import make_offer

NOW = 1_000.0
MINE, THEIRS = "cloudgpu-mine", "cloudgpu-theirs"
ATTEMPT = Attempt(
    job_id="job",
    number=2,
    state="running",
    round=0,
    offer=make_offer(),
    price=None,
    token="t",
    allocation=None,
    cause="",
    scope="",
    deadline=None,
    outcome="",
    reason="",
    exit_code=None,
    progress=None,
    created=0.0,
    launched=1.0,
    ended=None,
    cost=None,
)


def leftover(owner: str = MINE, expires: float | None = None, token: str = "t", attempt: int = 2) -> Leftover:
    return Leftover("aws", owner, "job", attempt, token, expires, (Resource("volume", "vol-1", "us-east-1"),))


@pytest.mark.parametrize(
    ("left", "state", "verdict"),
    [
        (leftover(), "running", "in use"),
        (leftover(), "launching", "in use"),
        (leftover(), "terminating", "in use"),
        (leftover(expires=NOW - 1), "running", "in use"),
        (leftover(), "ended", "orphaned"),
        (leftover(token="another"), "running", "orphaned"),
        (leftover(attempt=1), "running", "orphaned"),
        (leftover(THEIRS), "running", "in use"),  # a job of this store, from before the computer was renamed
        (leftover(THEIRS), "ended", "orphaned"),
        (leftover(THEIRS), "", "another's"),
        (leftover(THEIRS, NOW + 1), "", "another's"),
        (leftover(THEIRS, NOW), "", "expired"),
    ],
)
def test_whose_it_is_and_who_needs_it(left: Leftover, state: str, verdict: str) -> None:
    """An empty state means that the store does not contain the job."""
    attempts = [dataclasses.replace(ATTEMPT, state=state)] if state else []
    assert judge(left, attempts, MINE, NOW, lambda: False).verdict == verdict
    alive = judge(left, attempts, MINE, NOW, lambda: True)
    assert alive.verdict == ("alive" if verdict == "orphaned" else verdict)
    if verdict == "orphaned":
        assert not alive.is_removable(others=True, expired_only=False, alive=False)
        assert alive.is_removable(others=False, expired_only=False, alive=True)


@pytest.mark.parametrize(
    ("left", "plain", "expired_only", "others", "both"),
    [
        (leftover(attempt=9), True, False, True, False),
        (leftover(attempt=9, expires=NOW - 1), True, True, True, True),
        (leftover(), False, False, False, False),
        (leftover(THEIRS), False, False, False, False),
        (leftover(THEIRS, NOW + 1), False, False, False, False),
        (leftover(THEIRS, NOW - 1), False, False, True, True),
    ],
)
def test_what_goes_by_which_flag(left: Leftover, plain: bool, expired_only: bool, others: bool, both: bool) -> None:
    judged = judge(left, [ATTEMPT] if left.owner == MINE else [], MINE, NOW, lambda: False)
    found = [judged.is_removable(others=o, expired_only=e, alive=False) for o in (False, True) for e in (False, True)]
    assert found == [plain, expired_only, others, both]


@pytest.mark.parametrize(("ended", "verdict"), [(NOW - 1, "orphaned"), (NOW + 1, "in use")])
def test_what_was_needed_when_looking_began_is_not_left_over(ended: float, verdict: str) -> None:
    """The job ended, and removed its machine, after the machine was listed and before the store was read."""
    assert (
        judge(leftover(), [dataclasses.replace(ATTEMPT, state="ended", ended=ended)], MINE, NOW, lambda: False).verdict
        == verdict
    )


def test_a_job_that_the_store_does_not_know_is_nobody_s() -> None:
    assert judge(leftover(), [], MINE, NOW, lambda: False).verdict == "orphaned"


def test_prices_add_up_and_an_unknown_one_makes_the_sum_unknown() -> None:
    things = (
        Resource("instance", "i", "us-east-1", price=Decimal("0.5"), created=20.0),
        Resource("volume", "v", "us-east-2", price=Decimal("0.25"), created=10.0),
        Resource("role", "r", ""),
    )
    left = dataclasses.replace(leftover(), things=things)
    assert (left.price, left.created, left.regions) == (Decimal("0.75"), 10.0, ["us-east-1", "us-east-2"])
    unknown = dataclasses.replace(left, things=(*things, Resource("instance", "j", "us-east-1", price=None)))
    assert unknown.price is None


def test_what_a_stack_has_made_is_no_launch_s() -> None:
    def thing(name: str) -> Resource:
        return Resource("role", name, "")

    found = [
        Tagged(thing("of-a-launch"), {tags.OWNER: MINE, tags.TOKEN: "t"}),
        Tagged(thing("of-nothing"), {tags.OWNER: MINE}),
        Tagged(thing("of-a-stack"), tags.stack_tags(MINE, "infra-aws-us-east-1", NOW - 1)),
    ]
    assert [one.id for left in group_by_launch("aws", found) for one in left.things] == ["of-a-launch", "of-nothing"]


def test_what_bills_of_a_stack_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The machines of a stack are not removed, but reported, because the user may have forgotten them."""
    of_stack = tags.stack_tags(MINE, "cluster-big", fleet="big")
    machine = Resource("instance", "i-1", "us-east-1", price=Decimal("0.5"))
    unknown = Resource("instance", "i-2", "us-east-1", price=None)
    assert (
        group_by_launch("aws", [Tagged(one, of_stack) for one in (machine, unknown, Resource("role", "r", ""))]) == []
    )
    [result] = caplog.messages
    assert "its stack cluster-big: instance i-1, instance i-2" in result and "`cloudgpu cluster down`" in result
    caplog.clear()
    assert group_by_launch("aws", [Tagged(Resource("role", "r", ""), of_stack)]) == [] and caplog.messages == []
