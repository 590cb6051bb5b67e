"""Report how a training ended: by the exit code of its process, and by a record in the file CLOUDGPU_OUTCOME.

The file is needed where a launcher hides exit codes: torchrun replaces each by 1, and a shell script returns the exit
code of its last command. All processes below one launcher share the file. It holds a record for each training and rank,
and a copy of the most severe record at the top level.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from ...storage import durable
from .errors import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_NOTHING_SAVED,
    EXIT_SAVED,
    EXIT_STALE,
    EXIT_STORE,
    EXIT_USER,
    CheckpointError,
    logger,
)

TRAINING = "training"
"""Outcome of a training that has begun. If it remains in the file, the process was killed."""
UNFINISHED = "unfinished"
"""Outcome of a training that its program left early: by `break`, `return` or `sys.exit()`."""
OUTCOMES = {
    EXIT_DONE: "done",
    EXIT_SAVED: "interrupted",
    EXIT_STALE: "stale",
    EXIT_NOTHING_SAVED: "nothing-saved",
    EXIT_STORE: "store",
    EXIT_USER: "user",
    EXIT_FENCED: "fenced",
}
SEVERITY = (OUTCOMES[EXIT_DONE], UNFINISHED, TRAINING, *list(OUTCOMES.values())[1:])
"""All outcomes, least severe first. The outcome of a program is the most severe one of its trainings and ranks."""
_REASON = 4000
"""Maximum length of a recorded reason, in characters."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish", "make"})
"""Names of processes that would start the job's next command after this one ends."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one training on one rank."""

    code: int
    """A key of OUTCOMES; independent of the exit code of the process."""
    step: int
    """Number of completed steps."""
    saved_step: int | None
    """Number of completed steps in the newest checkpoint known to be committed."""
    checkpoint: str | None
    """Name of that checkpoint."""
    reason: str
    """Explanation for people."""

    def fields(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": OUTCOMES[self.code], "reason": self.reason[:_REASON]}


class OutcomeRecord:
    """Record of one training on one rank in the file CLOUDGPU_OUTCOME; without that variable, nothing is written.

    training  folder of its checkpoints, which identifies the training: its next process replaces the record
    """

    def __init__(self, training: str, rank: int = 0, world: int = 1) -> None:
        self._path = os.environ.get("CLOUDGPU_OUTCOME")
        self._key: dict[str, str | int] = {"training": training, "rank": rank, "world": world}

    def announce(self) -> None:
        """Record that the training may begin, unless its record says that it was interrupted, failed or was killed."""
        self._write({"outcome": TRAINING}, over=(OUTCOMES[EXIT_DONE], UNFINISHED))

    def begin(self) -> None:
        """Record that the training has begun."""
        self._write({"outcome": TRAINING})

    def write(self, outcome: Outcome) -> None:
        """Record the outcome. If it is an error that the program handles, close() replaces the record at exit."""
        self._write(outcome.fields())

    def leave(self, outcome: Outcome) -> NoReturn:
        """End the program: log the reason, record the outcome, and raise SystemExit with its exit code.

        Shells above this process are stopped before they start the next command of the job's `run`; the agent kills
        them.
        """
        if self._write({**outcome.fields(), "left": True}):  # without this record the agent does not kill the shells
            _stop_shells()
        logger().log(logging.INFO if outcome.code == EXIT_SAVED else logging.ERROR, outcome.reason)
        raise SystemExit(interrupted_exit() if outcome.code == EXIT_SAVED else outcome.code)

    def close(self) -> None:
        """Record, at the normal exit of the process, that the program left its training early."""
        self._write({"outcome": UNFINISHED}, over=(TRAINING, OUTCOMES[EXIT_USER]))

    def _write(self, fields: dict[str, object], over: Sequence[str] = SEVERITY) -> bool:
        """Replace this record if its outcome is one of `over`; return whether it was written. An OSError is logged."""
        if not self._path:
            return False
        try:
            with _locked(self._path):
                records = _read_records(self._path)
                others = [one for one in records if self._is_other(one)]
                if any(one not in others and one["outcome"] not in over for one in records):
                    return False
                records = [*others, {**fields, **self._key, "pid": os.getpid()}]
                worst = max(records, key=lambda one: SEVERITY.index(one["outcome"]))
                top = {name: value for name, value in worst.items() if name not in (*self._key, "pid", "left")}
                durable.write(Path(self._path), json.dumps({**top, "trainings": records}).encode(), mode=0o600)
        except OSError as error:
            logger().warning(f"the outcome file cannot be written: {self._path}: {error.strerror}")
            return False
        if fields["outcome"] == TRAINING or (fields.get("code") == EXIT_USER and not fields.get("left")):
            _close_at_exit(self)
        else:
            _OPEN.pop(tuple(self._key.values()), None)
        return True

    def _is_other(self, record: dict[str, object]) -> bool:
        """Return whether a record is kept: not this one, nor those of a run of this training with another `world`."""
        mine = self._key
        if record["training"] != mine["training"]:
            return True
        return bool(record.get("world") == mine["world"] and record.get("rank") != mine["rank"])


_OPEN: dict[tuple[str | int, ...], OutcomeRecord] = {}
"""Records to close when this process exits: of trainings in progress, and of errors that may yet be handled."""


def _close_at_exit(record: OutcomeRecord) -> None:
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _OPEN:  # multiprocessing children do not run atexit functions
        util.Finalize(None, _close_all, exitpriority=0)
    _OPEN[tuple(record._key.values())] = record


def _close_all() -> None:
    """Close the open records, unless the program ends by an exception."""
    while _OPEN and getattr(sys, "last_value", None) is None:
        _OPEN.popitem()[1].close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_OPEN.clear)  # a forked child does not train


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of the outcome file. Raises OSError."""
    with Path(f"{path}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_records(path: str) -> Sequence[dict[str, Any]]:
    """Return the records in the file; [] if the file is missing or not an outcome file."""
    try:
        records = json.loads(Path(path).read_bytes())["trainings"]
        return [one for one in records if one["outcome"] in SEVERITY and isinstance(one["training"], str)]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _stop_shells() -> None:
    """Stop (SIGSTOP) the job's shells above this process, which the agent then kills; without an agent, do nothing."""
    machine = os.environ.get("CLOUDGPU_MACHINE")
    mark, process = f"CLOUDGPU_MACHINE={machine}".encode(), os.getppid()
    with suppress(OSError):  # a process has exited or belongs to another user, or there is no /proc
        while machine and mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            name, _, fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
            if name.partition("(")[2] in _SHELLS:
                os.kill(process, signal.SIGSTOP)
            process = int(fields.split()[1])


def interrupted_exit() -> int:
    """Return the exit code for an interruption: $CLOUDGPU_INTERRUPTED_EXIT, or EXIT_SAVED (75) if that is not set.

    Raises CheckpointError if the variable is not an exit code.
    """
    text = os.environ.get("CLOUDGPU_INTERRUPTED_EXIT") or str(EXIT_SAVED)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 256):
        raise CheckpointError(f"CLOUDGPU_INTERRUPTED_EXIT={text!r}: expected an exit code, 1 to 255")
    return int(text)
