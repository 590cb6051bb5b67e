"""Tables, widths, terminal safety, times and money."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from cloudgpu.cli.shared import output, text
from cloudgpu.cli.shared.output import Column, clean, shorten, table, text_width


@pytest.mark.parametrize(
    ("given", "width"), [("abc", 3), ("é", 1), ("e\u0301", 1), ("数字", 4), ("🚀", 2), ("a\u200db", 2), ("", 0)]
)
def test_text_width(given: str, width: int) -> None:
    assert text_width(given) == width


@pytest.mark.parametrize(
    ("given", "width", "cut"),
    [("abcdef", 6, "abcdef"), ("abcdef", 4, "abc…"), ("数字数字", 5, "数字…"), ("数字数字", 4, "数…"), ("ab", 0, "")],
)
def test_shorten(given: str, width: int, cut: str) -> None:
    assert shorten(given, width) == cut
    assert text_width(cut) <= max(width, 0)


def test_clean_keeps_text_and_escapes_what_moves_the_cursor() -> None:
    assert clean("plain ünïcode 数字\tand\nlines") == "plain ünïcode 数字\tand\nlines"
    assert clean("a\x1b[2Jb\x07\u202ec") == "a\\x1b[2Jb\\x07\\u202ec"
    assert clean("\udc80") == "\\udc80"


def test_table_aligns_wide_characters_and_numbers() -> None:
    lines = table([Column("name"), Column("n", right=True)], [["数字", "1"], ["abc", "1,000"]]).splitlines()
    assert lines == ["name      n", "数字      1", "abc   1,000"]
    assert len({text_width(line) for line in lines}) == 1


def test_table_cuts_only_the_columns_that_may_be_cut() -> None:
    heads = [Column("id"), Column("reason", least=8), Column("where", least=6)]
    lines = table(heads, [["x" * 20, "r" * 90, "w" * 30]], width=60).splitlines()
    assert all(text_width(line) <= 60 for line in lines)
    assert lines[1].startswith("x" * 20)
    assert lines[1].count("…") == 2


def test_a_narrow_table_leaves_out_spare_columns() -> None:
    heads = [Column("id"), Column("a", spare=2), Column("b", spare=1), Column("c", least=4)]
    row = ["i" * 20, "a" * 10, "b" * 10, "c" * 20]
    for width, titles in ((100, "id a b c"), (50, "id a b c"), (45, "id b c"), (30, "id c"), (10, "id c")):
        assert table(heads, [row], width=width).splitlines()[0].split() == titles.split()


def test_table_puts_a_row_on_one_line() -> None:
    assert table([Column("a")], [["two\nlines"]]).splitlines()[1] == "two lines"


@pytest.mark.parametrize(("given", "used"), [("72", 72), ("500", 100), ("5", 40), ("x", 100), ("", 100), ("0", 100)])
def test_columns(given: str, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)
    assert output.columns() == used


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.ProgressLine() as progress:
        progress("packing")
    assert capsys.readouterr() == ("", "")


def test_json_is_readable_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo_json({"cost": Decimal("0.10"), "name": "数"})
    assert capsys.readouterr().out == '{\n  "cost": "0.10",\n  "name": "数"\n}\n'


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (None, "-"),
        (0, "0.0s"),
        (-3, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m"),
        (200, "3m 20s"),
        (3_600, "1h"),
        (3_605, "1h"),
        (7_500, "2h 5m"),
        (90_061, "1d 1h"),
        (86_400 * 40, "40d"),
    ],
)
def test_duration(seconds: float | None, written: str) -> None:
    assert text.duration(seconds) == written


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (None, "unknown"),
        ("0", "0.00 USD"),
        ("0.00003", "0.0001 USD"),
        ("0.0049", "0.0049 USD"),
        ("12.345", "12.34 USD"),
    ],
)
def test_money_is_never_shown_as_nothing_when_it_is_something(amount: str | None, written: str) -> None:
    assert text.money(None if amount is None else Decimal(amount)) == written


def test_times() -> None:
    assert text.iso(None) is None
    assert text.iso(0) == "1970-01-01T00:00:00.000Z"
    assert text.ago(None) == "-"
    assert text.ago(100, now=160) == "1m ago"
    assert len(text.clock(time.time())) == len("12:00:00")
    assert len(text.clock(0)) == len("1970-01-01 00:00:00")
