"""From exits, orders and outcome files to how a node ended; the tables are those of docs/explanation/runtime.md."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from cloudgpu.runtime.agent.heartbeat import read_progress
from cloudgpu.runtime.checkpoint.outcome import OUTCOMES, SEVERITY, TRAINING, UNFINISHED
from cloudgpu.runtime.notices import Order
from cloudgpu.runtime.processes import exit_verdict as module
from cloudgpu.runtime.processes.exit_verdict import CODES, RULES, Ending, ReportedOutcome, Rule, judge, read_outcome
from cloudgpu.runtime.processes.program import Exit

PAGE = Path(module.__file__).parents[2] / "docs" / "explanation" / "runtime.md"
STOP = Order("stopped", "cancel", "cancelled", 0.0)
NOTICE = Order("preempted", "preempt", "notice", 0.0)


def end(
    *exits: Exit,
    order: Order | None = None,
    reported: dict[int | None, ReportedOutcome] | None = None,
    asked: bool = False,
    listening: bool = False,
) -> Ending:
    return judge(exits, order, asked=asked, listening=listening, reported=reported)


def show(value: bool | str | None) -> str:
    return {None: "any", True: "yes", False: "no"}.get(value, str(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.word)
def test_the_page_shows_the_table(code: module.Code) -> None:
    final = "yes" if code.final else ""
    cells = (str(code.number), code.word, code.outcome, final, code.says)
    assert "| " + " | ".join(cells).replace("|  |", "| |").replace("  ", " ").rstrip() + " |" in PAGE.read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.code} {rule.word} {rule.asked} {rule.listening}")
def test_the_page_shows_the_rules(rule: Rule) -> None:
    cells = (*map(show, (rule.code, rule.word, rule.asked, rule.listening)), rule.verdict, rule.meaning)
    assert f"| {' | '.join(cells)} |" in PAGE.read_text()


@pytest.mark.parametrize("number", [0, 70, 73, 74, 75, 76, 77, 1, 143, -9, -15])
@pytest.mark.parametrize("word", [None, "no such word", *SEVERITY])
def test_every_exit_with_every_report(number: int, word: str | None) -> None:
    """Only the combinations listed here succeed; every other one has its own outcome."""
    silent = word in (None, "no such word", UNFINISHED)
    reported: dict[int | None, ReportedOutcome] = {} if word is None else {0: ReportedOutcome(word)}
    for asked, listening, order in product((False, True), (False, True), (None, NOTICE, STOP)):
        result = asked and order is not None
        done = number == 0 and (word == "done" or (silent and not result and not (word is None and listening)))
        meant = by_number(number) or (by_word(word) if word not in (None, "done") else None)
        if done:
            outcome, final = "succeeded", False
        elif meant is not None and meant.final and order is not STOP:
            outcome, final = meant.outcome, True
        elif order is not None:
            outcome, final = order.outcome, False
        else:
            outcome, final = (meant.outcome if meant is not None else "failed"), False
        found = end(Exit(0, number), order=order, reported=reported, asked=asked, listening=listening)
        assert (found.outcome, found.final) == (outcome, final), (asked, listening, order)


def by_number(number: int) -> module.Code | None:
    return next((code for code in CODES if code.number == number and number != 0), None)


def by_word(word: str | None) -> module.Code | None:
    return next((code for code in CODES if code.word == word), None)


def test_every_rule_is_reached() -> None:
    facts = product((0, 75, 1), (None, "done", "interrupted", TRAINING), (False, True), (False, True))
    reached = {
        module.find_rule(
            number,
            by_number(number),
            ReportedOutcome(word) if word else None,
            asked=asked,
            listening=listening,
        )
        for number, word, asked, listening in facts
    }
    assert reached == set(RULES)


def test_agent_and_checkpointer_use_the_same_words() -> None:
    assert {code.number: code.word for code in CODES} == OUTCOMES
    assert set(SEVERITY) == {*OUTCOMES.values(), TRAINING, UNFINISHED}
    assert module.TRAINING == TRAINING


def test_a_rank_that_does_not_save_is_done_with_the_one_that_does() -> None:
    exits = (Exit(None, 0), Exit(0, 0), Exit(1, 0))
    assert end(*exits, order=STOP, asked=True, reported={0: ReportedOutcome("done")}).outcome == "succeeded"
    assert end(*exits, reported={0: ReportedOutcome("interrupted")}).outcome == "again"
    assert end(*exits, listening=True).outcome == "failed"
    assert end(Exit(None, 0), listening=True).outcome == "succeeded", "not a rank: nothing trains there"


def test_the_first_failure_is_told_but_a_final_one_goes_before() -> None:
    first = end(Exit(1, 1), Exit(0, 3))
    assert (first.exit_code, first.reason) == (1, "rank 1: exit code 1")
    assert end(Exit(1, 1), Exit(0, 70)).exit_code == 70
    assert end(Exit(1, -9), Exit(0, 75)).outcome == "failed"
    assert end(Exit(0, 75), Exit(1, 1)).outcome == "again", "its connection broke when the other one left"


def test_each_rank_is_heard_for_itself() -> None:
    reported: dict[int | None, ReportedOutcome] = {1: ReportedOutcome("interrupted", "told to stop")}
    assert end(Exit(0, 1), Exit(1, 1), reported=reported).outcome == "failed"
    assert end(Exit(1, 1), Exit(0, 1), reported=reported).reason == "rank 1: exit code 1: told to stop"


def test_a_signal_after_the_word_counts_as_the_word() -> None:
    """The launcher's other workers, or the interpreter's shutdown, may kill the process after it has reported."""
    assert end(Exit(0, -9), reported={0: ReportedOutcome("interrupted")}).outcome == "again"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"outcome": null}', '"x"', "{}", '{"reason": "x"}', "[" * 60_000])
def test_rubbish_is_no_outcome(tmp_path: Path, content: str) -> None:
    path = tmp_path / "outcome"
    path.write_text(content)
    said = read_outcome(path)
    assert said is None or end(Exit(0, 1), reported={0: said}).outcome == "failed"
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
