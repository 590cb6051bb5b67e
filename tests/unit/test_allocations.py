"""Serialized allocations: they survive a round trip, and those written by previous versions can be read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cloudgpu.provisioners import Allocation
from cloudgpu.provisioners.shared.tags import attempt_of

MACHINES = {"worker-0.1": "a", "worker-1.1": "b"}
PLACE: dict[str, Any] = {"region": "us-east-1", "zone": "us-east-1a", "owner": "cloudgpu-me"}


def stored(details: dict[str, str]) -> dict[str, Any]:
    """Serialize an allocation as the previous version did, when every target-specific value was in `details`."""
    row = {"target": "aws", "job_id": "digits-abc", "attempt": 2, "token": "0" * 32, "machines": MACHINES}
    written: dict[str, Any] = json.loads(json.dumps({**row, "details": details, "is_fresh": True}))
    return written


def test_what_is_written_is_read() -> None:
    there = Allocation(
        "aws", "digits-abc", 2, "0" * 32, MACHINES, **PLACE, account="1", launched_at={"worker-0.1": 5.5}
    )
    assert Allocation.from_json(json.loads(json.dumps(there.to_json()))) == there


@pytest.mark.parametrize("key", ["account", "subscription", "project"])
def test_the_version_before_kept_all_of_it_in_details(key: str) -> None:
    read = Allocation.from_json(stored({**PLACE, key: "123", "launched:worker-1.1": "1700000000", "market": "spot"}))
    assert (read.region, read.zone, read.owner, read.account) == (*PLACE.values(), "123")
    assert read.launched_at == {"worker-1.1": 1_700_000_000.0}
    assert read.details == {"market": "spot"}
    assert (read.machines, read.attempt, read.is_fresh) == (MACHINES, 2, True)


def test_the_version_before_kept_one_time_for_a_group() -> None:
    read = Allocation.from_json(stored({**PLACE, "launched": "1700000000", "group": "g", "fleet_dir": "s3://b/f"}))
    assert read.launched_at == dict.fromkeys(MACHINES, 1_700_000_000.0)
    assert read.details == {"group": "g", "fleet_dir": "s3://b/f"}


def test_what_was_not_known_is_not_known() -> None:
    read = Allocation.from_json(stored({}))
    assert (read.region, read.zone, read.owner, read.account, read.launched_at) == ("", "", "", "", {})


def test_a_machine_that_a_launch_has_found_is_as_old_as_can_be() -> None:
    there = Allocation("aws", "digits-abc", 2, "0" * 32, MACHINES, launched_at={"worker-0.1": 100.0})
    assert there.age_s("worker-0.1", 130.0) == 30.0
    assert there.age_s("worker-1.1", 130.0) == math.inf


@pytest.mark.parametrize(("text", "attempt"), [("3", 3), ("", 0), ("three", 0), ("-1", 0)])
def test_the_tag_of_an_attempt_may_have_been_changed(text: str, attempt: int) -> None:
    assert attempt_of(text) == attempt
