"""Errors of checkpointing, and the exit codes by which a program reports its outcome to its launcher."""

from __future__ import annotations

import logging
from collections.abc import Sequence

EXIT_DONE = 0
"""The training is finished, and a committed checkpoint holds its end."""
EXIT_USER = 70
"""An error in the program that would occur again in another run. (EX_SOFTWARE)"""
EXIT_SAVED = 75
"""Interrupted, with all steps in a committed checkpoint: run it again. (EX_TEMPFAIL)"""
EXIT_STALE = 76
"""Interrupted, and the last save failed: run it again; it resumes from an older checkpoint and redoes some steps."""
EXIT_NOTHING_SAVED = 77
"""Interrupted without any checkpoint: run it again, from the beginning."""
EXIT_STORE = 74
"""The training is finished, but its last checkpoint could not be written. (EX_IOERR)"""
EXIT_FENCED = 73
"""A newer attempt writes to the same folder: this one must stop. (EX_CANTCREAT)"""

_LISTED = 8
"""Maximum number of damaged checkpoints listed in a message."""


class CheckpointError(Exception):
    """Training cannot start or continue; the message says why and what to do."""

    code: int | None = EXIT_USER
    """Exit code to record in the outcome file; None: record nothing, so that the launcher applies its own rules."""


class TransientError(CheckpointError):
    """A transient error, such as an unreachable store or rank: running the program again may help."""

    code: int | None = None


class StoreUnavailableError(TransientError):
    """The store stayed unavailable through all retries: the job is to run again, and no failure is counted."""

    code = EXIT_STALE


class TakenOverError(CheckpointError):
    """A newer attempt had begun before this one."""

    code = EXIT_FENCED


class UnusableError(Exception):
    """A checkpoint cannot be restored. `damaged`: permanently, so that later runs can skip it."""

    def __init__(self, reason: str, *, damaged: bool) -> None:
        super().__init__(reason)
        self.damaged = damaged


class AllDamagedError(CheckpointError):
    """There are checkpoints, but all are damaged; the user must decide whether to start over."""

    def __init__(self, place: str, reasons: Sequence[str]) -> None:
        super().__init__(
            f"{place}: every checkpoint is damaged, so training stops instead of starting over:"
            f"{list_damaged(reasons)}\n"
            "If the disk, memory or network that read them was at fault, run again once that is repaired: they "
            "are verified again. To start over, write checkpoint: {on_damage: restart} into the job file, pass "
            'Checkpointer(on_damage="restart"), or give another folder'
        )


def list_damaged(reasons: Sequence[str]) -> str:
    """Return the first _LISTED of these lines, each "<checkpoint>: <reason>", indented below a message."""
    return "".join(f"\n  {reason}" for reason in reasons[:_LISTED])


class FencedError(Exception):
    """A newer attempt has taken over the checkpoint folder."""


class _UnlessConfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that prints to stderr until the program configures logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def logger() -> logging.Logger:
    """Return the logger `cloudgpu.checkpoint`; it prints INFO to stderr unless the program configures logging."""
    log = logging.getLogger("cloudgpu.checkpoint")
    if not log.handlers:
        handler = _UnlessConfigured()
        handler.setFormatter(logging.Formatter("cloudgpu: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    return log
