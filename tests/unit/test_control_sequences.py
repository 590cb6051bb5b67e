"""Control sequences in a program's output: colours are kept for a terminal, everything else is removed, wherever the
output is split."""

from __future__ import annotations

import re

import pytest

from cloudgpu.cli.shared.control_sequences import ControlSequenceFilter

ESC, ST = "\x1b", "\x1b\\"

REMOVED = {
    "clear the screen": f"{ESC}[2J",
    "cursor home": f"{ESC}[H",
    "cursor up": f"{ESC}[12A",
    "erase line": f"{ESC}[K",
    "hide cursor": f"{ESC}[?25l",
    "alternate screen": f"{ESC}[?1049h",
    "key reporting, ends with m": f"{ESC}[>4;2m",
    "intermediate byte": f"{ESC}[1 q",
    "8-bit CSI": "\x9b2J",
    "title, BEL": f"{ESC}]0;a title\x07",
    "title, ST": f"{ESC}]0;a title{ST}",
    "title, 8-bit": "\x9d0;a title\x9c",
    "link": f"{ESC}]8;;https://example.org{ST}",
    "clipboard": f"{ESC}]52;c;aGk=\x07",
    "DCS": f"{ESC}P1$q\x07m{ST}",
    "DCS, 8-bit": "\x90q#0\x9c",
    "SOS": f"{ESC}Xhidden{ST}",
    "PM": f"{ESC}^hidden{ST}",
    "APC": f"{ESC}_Ghidden{ST}",
    "reset": f"{ESC}c",
    "save cursor": f"{ESC}7",
    "index": f"{ESC}D",
    "character set": f"{ESC}(0",
    "shift out": "\x0e",
    "C1 index": "\x84",
}
COLOURS = (f"{ESC}[31m", f"{ESC}[0m", f"{ESC}[m", f"{ESC}[1;38;2;255;0;0m", f"{ESC}[4:3m")
KEPT = ("\ttabs", "50 %\r", "a\b", "名前 ☃", "[2J", "")


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("colours", [False, True])
def test_sequences_are_removed_wherever_they_are_cut(name: str, colours: bool) -> None:
    text = f"left {REMOVED[name]}right"
    for cut in range(len(text) + 1):
        clean = ControlSequenceFilter(colours=colours)
        assert clean(text[:cut], partial=True) + clean(text[cut:]) == "left right", cut
    clean = ControlSequenceFilter(colours=colours)
    assert "".join(clean(character, partial=True) for character in text) == "left right"


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_stay_where_they_are_wanted(colour: str) -> None:
    text = f"a{colour}b"
    for cut in range(len(text) + 1):
        for colours, expected in ((True, text), (False, "ab")):
            clean = ControlSequenceFilter(colours=colours)
            assert clean(text[:cut], partial=True) + clean(text[cut:]) == expected, cut
    assert ControlSequenceFilter(colours=True)(text.replace(f"{ESC}[", "\x9b")) == text, "the 8-bit form"


@pytest.mark.parametrize("text", KEPT)
def test_other_text_stays(text: str) -> None:
    assert ControlSequenceFilter(colours=False)(text) == text


@pytest.mark.parametrize("start", [f"{ESC}]0;", f"{ESC}P", f"{ESC}_", f"{ESC}[", ESC, "\x9d", "\x9b1;"])
def test_a_sequence_without_end_ends_with_its_line(start: str) -> None:
    clean = ControlSequenceFilter(colours=True)
    assert clean(f"before {start}") == "before "
    assert clean("next line") == "next line"
    assert clean(start, partial=True) == ""
    for _ in range(1000):
        clean("0;" * 500, partial=True)
    assert len(clean._rest) <= 64
    clean("the end")
    assert clean("next line") == "next line"


def test_a_sequence_within_a_string_ends_it() -> None:
    assert ControlSequenceFilter(colours=True)(f"a{ESC}]0;title{ESC}[31mb") == f"a{ESC}[31mb"
    clean = ControlSequenceFilter(colours=True)
    assert clean(f"a{ESC}[2\rJ") == "a2\rJ", "a terminal would go on with the sequence after the \\r"


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    """Each sequence follows every other one, truncated after each character."""
    beginnings = [text[:end] for text in (*REMOVED.values(), *COLOURS) for end in range(1, len(text) + 1)]
    for first in beginnings:
        for second in REMOVED.values():
            found = ControlSequenceFilter(colours=True)(first + second + "x")
            left = re.sub(r"\x1b\[[0-9;:]*m", "", found)
            assert not re.search(r"[\x0e\x0f\x1b\x80-\x9f]", left), (first, second)


def test_long_lines_take_linear_time() -> None:
    text = f"{ESC}[" * 200_000 + f"{ESC}]" * 200_000 + "0;" * 200_000
    assert ControlSequenceFilter(colours=True)(text) == ""
