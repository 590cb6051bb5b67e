"""Decide how a node ended, from exit codes, reported outcomes and orders. Pure functions, except read_outcome()."""

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
    """Meaning of a program's exit code, and of the corresponding word in the outcome file."""

    number: int
    word: str
    outcome: Outcome
    """Outcome of the node, if there was no order to end."""
    says: str
    """Explanation for the user; "" if none is needed."""
    final: bool = False
    """True if a retry cannot succeed, so that none is made even if the job's `retry` allows it."""


CODES = (
    Code(0, "done", "succeeded", ""),
    Code(70, "user", "failed", "an error of its own that running it again does not heal", final=True),
    Code(73, "fenced", "error", "a newer attempt has taken over its checkpoints", final=True),
    Code(74, "store", "failed", "its last checkpoint could not be written"),
    Code(75, "interrupted", "again", "it saved and asks to be run again"),
    Code(76, "stale", "again", "it could not save, but an older checkpoint exists; it asks to be run again"),
    Code(77, "nothing-saved", "again", "it could not save, and there is no checkpoint; it asks to be run again"),
)
"""Exit codes with a meaning.
docs/explanation/runtime.md shows the same table; tests/unit/test_exit_verdict.py compares them."""

Verdict = Literal["code", "word", "failed", "not done", "done"]
"""Verdict on a process. code: the meaning of its exit code in CODES; word: the meaning of its reported word in CODES;
failed: another failure; not done: it exited with 0 before its training was done; done: it succeeded."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of RULES. A condition that is None matches anything."""

    code: Literal["0", "in the table", "other"] | None
    word: Literal["done", "other", "training", "none"] | None
    """The reported word. other: a word of CODES except `done`; none: no word, an unknown word, or `unfinished`."""
    asked: bool | None
    """True if there is an order to end and the program was asked by the notice file or a signal."""
    listening: bool | None
    """True if the file CLOUDGPU_LISTENING still exists and no process of the node has reported anything."""
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
"""Decision table; the first matching rule decides.
docs/explanation/runtime.md shows it too; test_exit_verdict.py compares them."""

INTERRUPTED_EXIT = "CLOUDGPU_INTERRUPTED_EXIT"
"""Environment variable with the exit code that the program uses in place of 75, for platforms that expect e.g. 143."""

TRAINING = "training"
"""Word that is reported for a training that has begun and not ended."""

_BY_NUMBER = {code.number: code for code in CODES}
_BY_WORD = {code.word: code for code in CODES}
_INTERRUPTED = _BY_WORD["interrupted"]
_NOT_DONE = "its training ended before it was done: was it killed, or out of memory?"
_OUTCOME_BYTES = 4 << 20  # a longer file was not written by the Checkpointer


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """The outcome that a rank's processes reported in its outcome file."""

    word: str
    reason: str = ""
    left: bool = False
    """True if the Checkpointer has ended a process, so that no further command of `run` may begin."""
    pids: frozenset[int] = frozenset()
    """PIDs of the processes that reported."""

    @property
    def exit_code(self) -> int | None:
        """The exit code with the same meaning; None if the word is not in CODES."""
        code = _BY_WORD.get(self.word)
        return None if code is None else code.number


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome of a node with its exit code and reason, as in Result."""

    outcome: Outcome
    exit_code: int | None
    reason: str
    final: bool = False
    """True if a retry cannot succeed; see Code.final."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An exit with its verdict; `code` is None for failures that are not in CODES."""

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

    exits             in chronological order
    order             the order to end, if there is one
    asked             the program was asked to end, by a notice that it polled for or by a signal
    listening         the program polled for notices when it ended
    reported          the outcome of each rank that reported one
    interrupted_exit  exit code that the program uses in place of 75
    """
    reported = reported or {}
    # Often only one rank saves and reports: if all that report are done, the others count as done.
    silent = ReportedOutcome("done") if reported and all(one.word == "done" for one in reported.values()) else None
    asked, listening = asked and order is not None, listening and not reported
    judged = [
        _judge(end, reported.get(end.rank, silent), interrupted_exit, asked=asked, listening=listening) for end in exits
    ]
    # A nonzero exit code is more informative than a premature exit with 0.
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
    """Return the ending of a node whose setup has failed."""
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
    """Return the first of RULES that matches a process; `code` is the meaning of its exit code, if it has one."""
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
    """Return the most severe outcome in an outcome file; None if it is missing or invalid."""
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
