"""From how its processes ended, and what they had been asked, to how a node ended. Pure, but for read_outcome()."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .jobdir import Outcome
from .notices import Order
from .program import Exit


@dataclass(frozen=True, slots=True)
class Code:
    """What an exit code of a program says, or the word for it in the outcome file."""

    number: int
    word: str
    outcome: Outcome
    """Of the node, if nobody had asked the program to end."""
    says: str
    """For people; "" where the number says it all."""
    final: bool = False
    """Running it again is of no use, whatever `retry` allows."""


CODES = (
    Code(0, "done", "succeeded", ""),
    Code(70, "user", "failed", "an error of its own that running it again does not heal", final=True),
    Code(73, "fenced", "error", "a newer attempt has taken over its checkpoints", final=True),
    Code(74, "store", "failed", "its last checkpoint could not be written"),
    Code(75, "interrupted", "again", "it saved and asks to be run again"),
    Code(76, "stale", "again", "it could not save, but an older checkpoint stands; it asks to be run again"),
    Code(77, "nothing-saved", "again", "it could not save, and there is no checkpoint; it asks to be run again"),
)
"""docs/runtime.md shows the same table; tests/unit/test_ending.py compares them."""

INTERRUPTED_EXIT = "CLOUDGPU_INTERRUPTED_EXIT"
"""The program's variable which says what it ends with instead of 75, for platforms that want, for example, 143."""

_BY_NUMBER = {code.number: code for code in CODES}
_BY_WORD = {code.word: code for code in CODES}
_INTERRUPTED = _BY_WORD["interrupted"]
_OUTCOME_BYTES = 64 << 10  # a longer file is not the Checkpointer's


@dataclass(frozen=True, slots=True)
class Said:
    """What a process has left in its outcome file before it ended."""

    word: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """The fields of Result that are not figures."""

    outcome: Outcome
    exit_code: int | None
    reason: str
    final: bool = False
    """As in Code."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    """An exit, and what it is taken for; no code: a failure like any other."""

    exit: Exit
    code: Code | None
    reason: str

    @property
    def succeeded(self) -> bool:
        return self.code is not None and self.code.outcome == "succeeded"

    @property
    def final(self) -> bool:
        return self.code is not None and self.code.final

    def ending(self) -> Ending:
        how = self.exit.describe()
        more = self.reason or (self.code.says if self.code else "")
        outcome: Outcome = self.code.outcome if self.code else "failed"
        return Ending(outcome, self.exit.code, f"{how}: {more}" if more else how, self.final)


def judge(
    exits: Sequence[Exit],
    order: Order | None,
    *,
    signalled: bool,
    listening: bool,
    said: Mapping[int | None, Said] | None = None,
    interrupted_exit: int | None = None,
) -> Ending:
    """How the node ended. `exits` are in the order of time; `order` is what it had been asked, if anything.

    `said` is by rank. A program that was asked by a signal alone may end with 0 though its work is not done; one that
    listens to notices says so with 75, and one that has written its outcome means it.
    """
    said = said or {}
    meanings = [_meaning(end, said, interrupted_exit) for end in exits]
    failed = next((meaning for meaning in meanings if not meaning.succeeded), None)
    told_done = bool(said) and all(one.word == "done" for one in said.values())
    if exits and failed is None and (order is None or listening or told_done or not signalled):
        return Ending("succeeded", 0, "")
    final = next((meaning for meaning in meanings if meaning.final), None)
    if final is not None and (order is None or order.outcome == "preempted"):
        return final.ending()  # new machines would not help
    if order is not None:
        code = failed.exit.code if failed is not None else 0 if exits else None
        return Ending(order.outcome, code, order.reason)
    if failed is None:
        return Ending("error", None, "the program's processes do not end, though killed")
    return failed.ending()


def _meaning(end: Exit, said: Mapping[int | None, Said], interrupted_exit: int | None) -> _Meaning:
    """The exit code's, where it has one; else what the process wrote.

    A launcher of the user's own between us and the process that wrote it turns every code into 1.
    """
    code = _INTERRUPTED if end.code == interrupted_exit else _BY_NUMBER.get(end.code)
    told = said.get(end.rank)
    wrote = None if told is None else _BY_WORD.get(told.word)
    if told is None or wrote is None:
        return _Meaning(end, code, "")
    if code is None and wrote.number != 0:
        code = wrote  # "done" followed by a failure is a failure: of what came after the training
    return _Meaning(end, code, told.reason if code is wrote else "")


def read_outcome(path: Path) -> Said | None:
    """What a process has left in its outcome file, if it has left something that can be read."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_OUTCOME_BYTES))
        return Said(str(value["outcome"]), str(value.get("reason") or ""))
    except (
        OSError,
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # it wrote nothing, or rubbish: then the code counts
        return None
