"""State table: consistent, checked at each write, and the same as in docs/explanation/control.md."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from cloudgpu.control.reconcile.decisions import _AFTER
from cloudgpu.control.store import states
from cloudgpu.control.store.states import (
    ATTEMPT_STATES,
    ATTEMPT_TRANSITIONS,
    JOB_RESUMPTIONS,
    JOB_STATES,
    JOB_TRANSITIONS,
    OUTCOMES,
)

PAGE = Path(states.__file__).parents[2] / "docs" / "explanation" / "control.md"
MOVES = (JOB_TRANSITIONS, JOB_RESUMPTIONS, ATTEMPT_TRANSITIONS)
MACHINES = {
    "job": (JOB_STATES, JOB_TRANSITIONS, states.JOB_END, states.check_job, "queued"),
    "attempt": (ATTEMPT_STATES, ATTEMPT_TRANSITIONS, states.ATTEMPT_END, states.check_attempt, "launching"),
}


@pytest.mark.parametrize("what", MACHINES)
def test_the_table_is_sound(what: str) -> None:
    names, moves, final, _, first = MACHINES[what]
    assert {move.old for move in moves} | {move.new for move in moves} == set(names)
    assert len({(move.old, move.new) for move in moves}) == len(moves)
    assert not final & {move.old for move in moves}
    reached = {first}
    for _ in names:
        reached |= {move.new for move in moves if move.old in reached}
    assert reached == set(names)
    for state in set(names) - final:  # a final state is reachable from every state
        seen = {state}
        for _ in names:
            seen |= {move.new for move in moves if move.old in seen}
        assert seen & final


@pytest.mark.parametrize("what", MACHINES)
def test_only_moves_of_the_table_are_allowed(what: str) -> None:
    names, moves, final, check, _ = MACHINES[what]
    allowed = {(move.old, move.new) for move in moves} | {(state, state) for state in set(names) - final}
    for old, new in product(names, names):
        if (old, new) in allowed:
            check(old, new)
        else:
            with pytest.raises(states.IllegalTransitionError):
                check(old, new)


def test_something_follows_upon_every_outcome() -> None:
    assert set(_AFTER) | {"succeeded"} == set(OUTCOMES)


@pytest.mark.parametrize(
    "row",
    [
        *((name, text) for names in (JOB_STATES, ATTEMPT_STATES, OUTCOMES) for name, text in names.items()),
        *((move.old, move.new, move.when) for moves in MOVES for move in moves),
    ],
    ids=" ".join,
)
def test_the_page_shows_the_table(row: tuple[str, ...]) -> None:
    assert "| " + " | ".join(row) + " |\n" in PAGE.read_text(encoding="utf-8")


def test_the_page_shows_nothing_else() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").split("## Leases")[0].splitlines() if line[:1] == "|"]
    tables = len([line for line in rows if set(line) <= {"|", "-", " "}])
    written = len(JOB_STATES) + len(ATTEMPT_STATES) + len(OUTCOMES) + sum(map(len, MOVES))
    assert len(rows) - 2 * tables == written


def test_only_a_resumption_leaves_a_final_state() -> None:
    for state in JOB_STATES:
        if state in states.JOB_END:
            states.check_resumption(state, "queued")
            continue
        with pytest.raises(states.IllegalTransitionError):
            states.check_resumption(state, "running" if state == "queued" else "queued")
