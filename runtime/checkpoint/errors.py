"""How checkpointing says that it cannot go on, and the exit codes by which a program tells its launcher."""

from __future__ import annotations

import logging
from collections.abc import Sequence

EXIT_DONE = 0
"""The training has reached its end, and that is in a committed checkpoint."""
EXIT_USER = 70
"""An error of the program's own, which running it again does not heal. (EX_SOFTWARE)"""
EXIT_SAVED = 75
"""Interrupted; everything done so far is in a committed checkpoint: run me again. (EX_TEMPFAIL)"""
EXIT_OLDER = 76
"""Interrupted; the last save failed, an older checkpoint stands: run me again, some steps will be redone."""
EXIT_NONE = 77
"""Interrupted; there is no checkpoint at all: running again begins at the start."""
EXIT_STORE = 74
"""The program reached its end, but its last checkpoint could not be written. (EX_IOERR)"""
EXIT_FENCED = 73
"""A newer attempt writes to the same place: this one must not go on. (EX_CANTCREAT)"""

_LISTED = 8
"""Damaged checkpoints that a message names."""


class CheckpointError(Exception):
    """Training cannot start or go on as asked; the message says why and what to do."""

    code: int | None = EXIT_USER
    """What the outcome file says of it; None: nothing, so that the launcher judges by its own rules."""


class PassingError(CheckpointError):
    """Nothing is wrong with the program, and running it again may help: a store or another rank was out of reach."""

    code: int | None = None


class OutOfReachError(PassingError):
    """The store could not be used, however often it was asked: the job is to run again, and no failure is counted."""

    code = EXIT_OLDER


class TakenOverError(CheckpointError):
    """A newer attempt has begun before this one."""

    code = EXIT_FENCED


class UnusableError(Exception):
    """This checkpoint cannot be restored; `damaged`: for good, so that later runs need not look at it again."""

    def __init__(self, reason: str, *, damaged: bool) -> None:
        super().__init__(reason)
        self.damaged = damaged


class AllDamagedError(CheckpointError):
    """There are checkpoints, and all are damaged: to begin anew is for a person to decide."""

    def __init__(self, place: str, reasons: Sequence[str]) -> None:
        super().__init__(
            f"{place}: every checkpoint is damaged, so training stops rather than begin anew:{list_damaged(reasons)}\n"
            "If the disk, memory or network that read them was at fault, run again when it is mended: they are "
            "verified once more. To begin anew, write checkpoint: {on_damage: restart} into the job file, pass "
            'Checkpointer(on_damage="restart"), or give another folder'
        )


def list_damaged(reasons: Sequence[str]) -> str:
    """Return the first of these lines, each "<checkpoint>: <reason>", indented below a message."""
    return "".join(f"\n  {reason}" for reason in reasons[:_LISTED])


class FencedError(Exception):
    """A newer attempt has taken over the place of our checkpoints."""


class _UnlessConfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to stderr as long as the program has not set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def logger() -> logging.Logger:
    """The logger `cloudgpu.checkpoint`: what was saved and restored is worth a line in any program's log."""
    log = logging.getLogger("cloudgpu.checkpoint")
    if not log.handlers:
        handler = _UnlessConfigured()
        handler.setFormatter(logging.Formatter("cloudgpu: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    return log
