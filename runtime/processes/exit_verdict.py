"""Decide how a node ended: from exit codes, reported outcomes and orders. Pure, but for read_outcome()."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...protocol.jobdir import Outcome
from ..notices import Order
from .failure_causes import Cause
from .program import Exit


@dataclass(frozen=True, slots=True)
class Code:
    """The meaning of an exit code of a program, and of the word for it in the outcome file."""

    number: int
    word: str
    outcome: Outcome
    """Of the node, if there was no order to end."""
    says: str
    """For people; "" where the number says it all."""
    final: bool = False
    """Running it again does not help, whatever `retry` allows."""


CODES = (
    Code(0, "done", "succeeded", ""),
    Code(70, "user", "failed", "an error of its own that running it again does not heal", final=True),
    Code(73, "fenced", "error", "a newer attempt has taken over its checkpoints", final=True),
    Code(74, "store", "failed", "its last checkpoint could not be written"),
    Code(75, "interrupted", "again", "it saved and asks to be run again"),
    Code(76, "stale", "again", "it could not save, but an older checkpoint stands; it asks to be run again"),
    Code(77, "nothing-saved", "again", "it could not save, and there is no checkpoint; it asks to be run again"),
)
"""docs/explanation/runtime.md shows the same table; tests/unit/test_exit_verdict.py compares them."""

Verdict = Literal["code", "word", "failed", "not done", "done"]
"""What counts for a process: its exit code as in CODES, its reported word as in CODES; any other failure; it ended
with 0 before its training was done; it is done."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the decision about a process. None: any."""

    code: Literal["0", "in the table", "other"] | None
    word: Literal["done", "other", "training", "none"] | None
    """The reported word. other: one of CODES but `done`; none: no word, an unknown one, or `unfinished`."""
    asked: bool | None
    """There is an order to end, and the program was asked by the notice file or a signal."""
    listening: bool | None
    """The file CLOUDGPU_LISTENING is still there and no process of the node has reported anything."""
    verdict: Verdict
    meaning: str


RULES = (
    Rule("in the table", None, None, None, "code", "its own code says most"),
    Rule("other", "other", None, None, "word", "a launcher or a shell hides the code"),
    Rule("other", None, None, None, "failed", "also after `done`: what follows the training failed"),
    Rule("0", "done", None, None, "done", "trained to the end, whatever was asked meanwhile"),
    Rule("0", "other", None, None, "word", "what ended last in `run` is not what trains"),
    Rule("0", "training", None, None, "not done", "the process that trained was killed"),
    Rule("0", "none", True, None, "not done", "a handler let it end"),
    Rule("0", "none", False, True, "not done", "a process that watched for notices was killed"),
    Rule("0", "none", False, False, "done", "a program that saves nothing, or left its training by itself"),
)
"""The first rule that fits decides.
docs/explanation/runtime.md shows the same table; test_exit_verdict.py compares them."""

INTERRUPTED_EXIT = "CLOUDGPU_INTERRUPTED_EXIT"
"""The program's variable which says what it ends with instead of 75, for platforms that want, for example, 143."""

TRAINING = "training"
"""The word of a training that has begun and has not ended."""

_BY_NUMBER = {code.number: code for code in CODES}
_BY_WORD = {code.word: code for code in CODES}
_INTERRUPTED = _BY_WORD["interrupted"]
_NOT_DONE = "its training ended before it was done: was it killed, or out of memory?"
_OUTCOME_BYTES = 4 << 20  # a longer file is not the Checkpointer's


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """The outcome that a process reported in its outcome file."""

    word: str
    reason: str = ""
    left: bool = False
    """The Checkpointer has ended a process: no further command of `run` may begin."""
    pids: frozenset[int] = frozenset()
    """The processes that reported."""

    @property
    def exit_code(self) -> int | None:
        """The exit code that says the same."""
        code = _BY_WORD.get(self.word)
        return None if code is None else code.number


@dataclass(frozen=True, slots=True)
class Ending:
    """The fields of Result that are not figures."""

    outcome: Outcome
    exit_code: int | None
    reason: str
    final: bool = False
    """As in Code."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An exit with the verdict about it; `code` is None for failures that CODES does not have."""

    exit: Exit
    verdict: Verdict
    code: Code | None
    reason: str

    @property
    def _cause(self) -> Cause | None:
        return self.exit.cause if self.verdict == "failed" else None

    @property
    def final(self) -> bool:
        return (self.code is not None and self.code.final) or (self._cause is not None and self._cause.final)

    def ending(self) -> Ending:
        how = self.exit.describe()
        more = self.reason or (self.code.says if self.code else self._cause.says if self._cause else "")
        outcome: Outcome = self.code.outcome if self.code else "failed"
        return Ending(outcome, self.exit.code, f"{how}: {more}" if more else how, self.final)


def judge(
    exits: Sequence[Exit],
    order: Order | None,
    *,
    asked: bool,
    listening: bool,
    reported: Mapping[int | None, ReportedOutcome] | None = None,
    interrupted_exit: int | None = None,
) -> Ending:
    """Decide how the node ended.

    exits      in the order of time
    order      the order to end, if there is one
    asked      the program was asked to end, by a notice that it listened to or by a signal
    listening  the program watched for notices when it ended
    reported   the outcome of each rank that reported one
    """
    reported = reported or {}
    # Often only one rank saves: the others are done with it.
    silent = ReportedOutcome("done") if reported and all(one.word == "done" for one in reported.values()) else None
    asked, listening = asked and order is not None, listening and not reported
    judged = [
        _judge(end, reported.get(end.rank, silent), interrupted_exit, asked=asked, listening=listening) for end in exits
    ]
    # An exit code other than 0 says more than a process that ended with 0 too early.
    bad = min((one for one in judged if one.verdict != "done"), key=lambda one: one.exit.code == 0, default=None)
    if judged and bad is None:
        return Ending("succeeded", 0, "")
    final = next((one for one in judged if one.final), None)
    if final is not None and (order is None or order.outcome == "preempted"):
        return final.ending()  # new machines would not help
    if order is not None:
        return Ending(order.outcome, bad.exit.code if bad is not None else None, order.reason)
    if bad is None:
        return Ending("error", None, "the program's processes do not end, though killed")
    return bad.ending()


def failed_setup(exits: Sequence[Exit]) -> Ending:
    """Return how a node ends whose setup has failed."""
    hows = [f"{end.describe()}: {end.cause.says}" if end.cause else end.describe() for end in exits]
    final = any(end.cause is not None and end.cause.final for end in exits)
    return Ending("failed", None, f"setup failed: {', '.join(hows)}", final)


def _judge(
    end: Exit, reported: ReportedOutcome | None, interrupted_exit: int | None, *, asked: bool, listening: bool
) -> _Judged:
    code = _INTERRUPTED if end.code == interrupted_exit else _BY_NUMBER.get(end.code)
    wrote = _BY_WORD.get(reported.word) if reported is not None else None
    rule = find_rule(end.code, code, reported, asked=asked, listening=listening and end.rank is not None)
    if rule.verdict == "word":
        code = wrote
    reason = reported.reason if reported is not None and wrote is not None and wrote is code else ""
    if rule.verdict == "not done":
        reason = _NOT_DONE
    return _Judged(end, rule.verdict, code if rule.verdict in ("code", "word") else None, reason)


def find_rule(
    number: int, code: Code | None, reported: ReportedOutcome | None, *, asked: bool, listening: bool
) -> Rule:
    """Return the first of RULES that fits a process; `code` is the meaning of its exit code, if it has one."""
    kind = "0" if number == 0 else "in the table" if code is not None else "other"
    word = reported.word if reported is not None else ""
    known = word if word in ("done", TRAINING) else "other" if word in _BY_WORD else "none"
    facts = (kind, known, asked, listening)
    for rule in RULES:
        wanted = (rule.code, rule.word, rule.asked, rule.listening)
        if all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True)):
            return rule
    raise AssertionError(f"no rule for {facts}")


def read_outcome(path: Path) -> ReportedOutcome | None:
    """Return the most severe outcome in an outcome file; None if there is none, or none that can be read."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_OUTCOME_BYTES))
        trainings = [one for one in value.get("trainings") or () if isinstance(one, dict)]
        return ReportedOutcome(
            str(value["outcome"]),
            str(value.get("reason") or ""),
            left=any(one.get("left") is True for one in trainings),
            pids=frozenset(pid for one in trainings if isinstance(pid := one.get("pid"), int)),
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None  # then the exit code decides
