"""From exits, orders and outcome files to how a node ended; the table of codes is the one of docs/runtime.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudgpu.runtime import ending as module
from cloudgpu.runtime.ending import CODES, Ending, Said, judge, read_outcome
from cloudgpu.runtime.heartbeat import read_progress
from cloudgpu.runtime.notices import Order
from cloudgpu.runtime.program import Exit

PAGE = Path(module.__file__).parents[1] / "docs" / "runtime.md"
STOP = Order("stopped", "cancel", "cancelled", 0.0)
NOTICE = Order("preempted", "preempt", "notice", 0.0)


def end(*exits: Exit, order: Order | None = None, said: dict[int | None, Said] | None = None) -> Ending:
    return judge(exits, order, signalled=False, listening=True, said=said)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.word)
def test_the_page_shows_the_table(code: module.Code) -> None:
    final = "yes" if code.final else ""
    cells = (str(code.number), code.word, code.outcome, final, code.says)
    assert "| " + " | ".join(cells).replace("|  |", "| |").replace("  ", " ").rstrip() + " |" in PAGE.read_text()


def test_the_first_failure_is_told_but_a_final_one_goes_before() -> None:
    first = end(Exit(1, 1), Exit(0, 3))
    assert (first.exit_code, first.reason) == (1, "rank 1: exit code 1")
    assert end(Exit(1, 1), Exit(0, 70)).exit_code == 70
    assert end(Exit(1, -9), Exit(0, 75)).outcome == "failed"
    assert end(Exit(0, 75), Exit(1, 1)).outcome == "again", "its connection broke when the other one left"


@pytest.mark.parametrize(
    ("code", "order", "outcome"),
    [
        (75, STOP, "stopped"),
        (75, NOTICE, "preempted"),
        (70, STOP, "stopped"),
        (70, NOTICE, "failed"),
        (73, NOTICE, "error"),
        (1, NOTICE, "preempted"),
        (0, NOTICE, "succeeded"),
    ],
)
def test_orders(code: int, order: Order, outcome: str) -> None:
    assert end(Exit(0, code), order=order).outcome == outcome


def test_each_rank_is_heard_for_itself() -> None:
    said: dict[int | None, Said] = {1: Said("interrupted", "told to stop")}
    assert end(Exit(0, 1), Exit(1, 1), said=said).outcome == "failed"
    assert end(Exit(1, 1), Exit(0, 1), said=said).reason == "rank 1: exit code 1: told to stop"


def test_a_signal_after_the_word_counts_as_the_word() -> None:
    """Its launcher's other workers, or the interpreter's end, may kill it when it has said all."""
    assert end(Exit(0, -9), said={0: Said("interrupted")}).outcome == "again"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"outcome": null}', '"x"', "{}", '{"reason": "x"}', "[" * 60_000])
def test_rubbish_is_no_outcome(tmp_path: Path, content: str) -> None:
    path = tmp_path / "outcome"
    path.write_text(content)
    said = read_outcome(path)
    assert said is None or end(Exit(0, 1), said={0: said}).outcome == "failed"
    assert read_outcome(tmp_path / "none") is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 60_000, '{"step": NaN}', f'{{"step": {10**400}}}', '{"x": 1}']
)
def test_rubbish_is_no_progress(tmp_path: Path, content: str) -> None:
    path = tmp_path / "progress"
    path.write_text(content)
    assert not read_progress(path)
    path.write_text(f'{{"step": 7, "saved_step": -{10**400}}}')
    assert read_progress(path) == {"step": 7}
