"""Shorthand values: what is read, what is refused, and the round trip of what is written."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.jobspecs.diagnostics import MistakesError
from cloudgpu.jobspecs.unit_text import MAX_DURATION_S, format_duration, format_size
from cloudgpu.jobspecs.units import (
    CountRange,
    SizeRange,
    parse_count,
    parse_duration,
    parse_money,
    parse_rate,
    parse_size_gb,
    parse_whole,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1_800),
        ("12h", 43_200),
        ("1d", 86_400),
        ("1h30m", 5_400),
        ("1d1h1m1s", 90_061),
        (" 5m ", 300),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "12", "1.5h", "-1h", "1h 30m", "30m1h", "1w", "h", "0s", "367d", "٣h", "1e3s", None, []]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@given(st.integers(1, MAX_DURATION_S))
def test_durations_are_read_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "gigabytes"), [("500MB", 0.5), ("100GB", 100), ("2TB", 2_000), ("1.5 tb", 1_500), ("0.001MB", 0.000001)]
)
def test_sizes(text: str, gigabytes: float) -> None:
    assert parse_size_gb(text) == gigabytes
    assert parse_size_gb(format_size(gigabytes)) == gigabytes


@given(st.integers(1, 10**9))
def test_sizes_are_read_back(megabytes: int) -> None:
    size = parse_size_gb(f"{megabytes // 1000}.{megabytes % 1000:03}MB")
    assert parse_size_gb(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("100", "write 100GB"),
        ("10GBB", "write 10GB"),
        ("16GiB", "write 16GB"),
        ("16Gi", "write 16GB"),
        ("2t", "write 2TB"),
        ("5KB", ""),
        ("GB", ""),
        ("", ""),
        ("-1GB", ""),
        ("1e3GB", ""),
        ("one", ""),
    ],
)
def test_what_is_no_size(text: str, hint: str) -> None:
    with pytest.raises(MistakesError, match="expected a size") as caught:
        parse_size_gb(text)
    assert caught.value.problems[0].hint == hint


def test_money_is_exact() -> None:
    assert parse_money("0.1 USD") + parse_money("0.2USD") == Decimal("0.3")
    assert parse_rate("5 USD/h") == 5


@pytest.mark.parametrize(
    "text", ["5", "$5", "5 EUR", "5 usd", "0 USD", "-1 USD", "1e9 USD", "1,000 USD", "5 USD/h", "NaN USD"]
)
def test_what_is_no_money(text: str) -> None:
    with pytest.raises(ValueError, match="expected an amount"):
        parse_money(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8", Fraction(8)),
        ("1/8", Fraction(1, 8)),
        ("0.125", Fraction(1, 8)),
        ("1/6", Fraction(1, 6)),
        ("2/2", Fraction(1)),
    ],
)
def test_counts(text: str, count: Fraction) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "1/0", "0/1", "1.5", "3/2", "1025", "9" * 30, "", "x", "1e2", "٣", None])
def test_what_is_no_count(text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_count(text)


@pytest.mark.parametrize("text", ["8", "2..8", "4..", "1/8", "1/8..1"])
def test_count_ranges(text: str) -> None:
    assert str(CountRange.parse(text)) == text


def test_what_a_count_range_contains() -> None:
    assert [count for count in (1, 2, 5, 8, 9) if Fraction(count) in CountRange.parse("2..8")] == [2, 5, 8]
    assert Fraction(100) in CountRange.parse("4..")


@pytest.mark.parametrize("text", ["..", "..8", "8..2", "2...8", "1..2..3"])
def test_what_is_no_count_range(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        CountRange.parse(text)


@pytest.mark.parametrize("text", ["24GB..", "..80GB", "24GB..80GB", "40GB", "0.5GB.."])
def test_size_ranges(text: str) -> None:
    assert str(SizeRange.parse(text)) == text


@pytest.mark.parametrize("text", ["", "..", "80GB..24GB", "24..80", "24GB...80GB"])
def test_what_is_no_size_range(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        SizeRange.parse(text)


@pytest.mark.parametrize("text", ["0", "11", "1.0", "1_0", "+1", "", " ", "²", "٣", "9" * 5000, None, True, [1]])
def test_what_is_no_whole_number(text: object) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to 10"):
        parse_whole(text, 1, 10)


def test_whole_numbers() -> None:
    assert [parse_whole(text, 1, 10) for text in ("1", " 10 ", 7, "007")] == [1, 10, 7, 7]
