"""The expiry of a cluster: its time, and the messages about it."""

from __future__ import annotations

import types

import pytest

from cloudgpu.cli.cluster import expiry as cluster_expiry
from cloudgpu.cli.cluster.expiry import expiry_cell, next_expiry
from cloudgpu.jobspecs.diagnostics import MistakesError
from cloudgpu.jobspecs.fleets import parse_expiry

NOW, WEEK = 1_000_000.0, 7 * 86_400


@pytest.mark.parametrize(
    ("wanted", "before", "then"),
    [
        (WEEK, None, NOW + WEEK),
        (WEEK, NOW - 1, NOW + WEEK),
        (WEEK, NOW + WEEK / 2, NOW + WEEK),
        (WEEK, NOW + WEEK - 60, NOW + WEEK - 60),
        (WEEK, NOW + WEEK + 60, NOW + WEEK),
        (None, NOW + 60, None),
    ],
    ids=["new", "expired", "half of it", "just now", "now shorter", "never"],
)
def test_the_same_command_again_changes_nothing(wanted: int | None, before: float | None, then: float | None) -> None:
    assert next_expiry(wanted, before, NOW) == then


@pytest.mark.parametrize("text", ["1s", "9m59s", "367d"])
def test_machines_that_would_end_before_they_do_anything_are_not_made(text: str) -> None:
    with pytest.raises(ValueError, match="from 10m to 366d"):
        parse_expiry(text)
    assert parse_expiry("10m") == 600


@pytest.mark.parametrize(("text", "hint"), [("7", "write 7h, 7m or 7s"), ("0", ""), ("soon", "")])
def test_a_number_has_a_unit(text: str, hint: str) -> None:
    with pytest.raises(MistakesError, match="12h or 7d, or never") as wrong:
        parse_expiry(text)
    assert wrong.value.problems[0].hint == hint


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (WEEK - 40, "in 7d"),
        (WEEK - 4 * 3_600, "in 6d 20h"),
        (86_400 - 20, "in 1d"),
        (3 * 3_600 - 20, "in 3h"),
        (90, "in 1m 30s"),
        (0, "over"),
        (None, "never"),
    ],
)
def test_how_long_it_is(left: float | None, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_expiry, "time", types.SimpleNamespace(time=lambda: NOW))
    assert expiry_cell(None if left is None else NOW + left) == shown
