"""Locks of stacks: their holders, and whether a lock was left by a killed engine of cloudgpu and may be broken.

A backend's lock is a file with host and process id and without an expiry, so a killed engine leaves it behind. Every
engine of cloudgpu that may take a lock is registered (EngineRegistry), and only locks of registered engines are broken.
Host name and process id alone would not do: they could match another user's container or computer of the same name.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

# Source: pkg/backend/diy/lock.go of Pulumi: "%v: created by %v@%v (pid %v) at %v"
_HELD = re.compile(
    r"^\s*(?P<place>\S+): created by (?P<user>.*)@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<since>\S+)", re.M
)
_COUNT = re.compile(r"the stack is currently locked by (\d+) lock")

Verdict = Literal["dead", "alive", "foreign"]
"""State of a lock: `dead` or `alive`, if a registered engine holds it and that has ended or still runs; otherwise
`foreign`."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock of a stack, parsed from the engine's error."""

    place: str
    user: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (process {self.pid}), since {self.since}"


def locks_in(text: str) -> list[Lock] | None:
    """Return the locks in an engine's error; None: not all of them can be parsed."""
    counted = _COUNT.search(text)
    found = [
        Lock(one["place"], one["user"], one["host"], int(one["pid"]), one["since"]) for one in _HELD.finditer(text)
    ]
    return found if counted and int(counted[1]) == len(found) else None


class EngineRegistry:
    """Registry of this computer's engines that may hold a stack's lock: one file each, removed at normal exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def started(self, pid: int) -> None:
        """Register a process. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        values = {"host": socket.gethostname(), "created": _created(pid)}
        (self._folder / str(pid)).write_text(json.dumps(values), encoding="utf-8")

    def ended(self, pid: int) -> None:
        """Unregister a process, after its normal exit or after its lock was broken."""
        with contextlib.suppress(OSError):
            (self._folder / str(pid)).unlink()

    def judge(self, lock: Lock) -> Verdict:
        try:
            known = json.loads((self._folder / str(lock.pid)).read_text(encoding="utf-8"))
            host, created = str(known["host"]), known["created"]
        except (OSError, ValueError, TypeError, KeyError):
            return "foreign"
        if not host == lock.host == socket.gethostname():
            return "foreign"
        now = _created(lock.pid)
        return "alive" if now is not None and now == created else "dead"


def verdict_of(locks: Sequence[Lock], engines: EngineRegistry) -> Verdict:
    """Return one verdict for all locks of a stack. They are broken together, so `dead` requires that all are dead."""
    verdicts = {engines.judge(lock) for lock in locks}
    return "foreign" if "foreign" in verdicts or not verdicts else "alive" if "alive" in verdicts else "dead"


def _created(pid: int) -> float | None:
    """Return the start time of a process in epoch seconds; None: it does not exist, or is a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
