"""From how its processes ended, and what they had been asked, to how a node ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .jobdir import Outcome
from .notices import Order
from .program import Exit


@dataclass(frozen=True, slots=True)
class Ending:
    """The fields of Result that are not figures."""

    outcome: Outcome
    exit_code: int | None
    reason: str


def judge(exits: Sequence[Exit], order: Order | None, *, signalled: bool, listening: bool) -> Ending:
    """How the node ended. `exits` are in the order of time; `order` is what it had been asked, if anything.

    A program that was asked by a signal alone may end with 0 though its work is not done; one that listens to notices
    says so with 75.
    """
    failed = next((end for end in exits if end.code != 0), None)
    if exits and failed is None and (order is None or listening or not signalled):
        return Ending("succeeded", 0, "")
    if order is not None:
        code = failed.code if failed is not None else 0 if exits else None
        return Ending(order.outcome, code, order.reason)
    if failed is None:
        return Ending("error", None, "the program's processes do not end, though killed")
    return Ending("failed", failed.code, failed.describe())
