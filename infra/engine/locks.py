"""Who holds a stack's lock, and whether that is a dead engine of ours, whose lock may be broken.

A backend's lock is a file with host and process id and without any expiry; an engine that was killed leaves it behind.
Every engine that may take one is written down before it runs (Engines), so that only a lock of ours is ever broken: the
same host name and process id alone may as well be a colleague's, in a container or on a computer called the same.
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

# pkg/backend/diy/lock.go of Pulumi's: "%v: created by %v@%v (pid %v) at %v"
_HELD = re.compile(
    r"^\s*(?P<place>\S+): created by (?P<user>.*)@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<since>\S+)", re.M
)
_COUNT = re.compile(r"the stack is currently locked by (\d+) lock")

Verdict = Literal["dead", "alive", "foreign"]
"""Of a lock: left by an engine of ours that is dead; held by one of ours that runs; somebody else's."""


@dataclass(frozen=True, slots=True)
class Lock:
    """As the engine tells of it."""

    place: str
    user: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (process {self.pid}), since {self.since}"


def locks_in(text: str) -> list[Lock] | None:
    """The locks that an error of the engine names; None: not all of them can be read."""
    counted = _COUNT.search(text)
    found = [
        Lock(one["place"], one["user"], one["host"], int(one["pid"]), one["since"]) for one in _HELD.finditer(text)
    ]
    return found if counted and int(counted[1]) == len(found) else None


class Engines:
    """This computer's engines that may hold the lock of one stack: a file for each, until it has ended by itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def started(self, pid: int) -> None:
        """Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        values = {"host": socket.gethostname(), "created": _created(pid)}
        (self._folder / str(pid)).write_text(json.dumps(values), encoding="utf-8")

    def ended(self, pid: int) -> None:
        """By itself, so its lock is gone; or its lock was broken."""
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


def verdict_of(locks: Sequence[Lock], engines: Engines) -> Verdict:
    """Of all locks of a stack: they are broken together, so only if every one of them is dead."""
    verdicts = {engines.judge(lock) for lock in locks}
    return "foreign" if "foreign" in verdicts or not verdicts else "alive" if "alive" in verdicts else "dead"


def _created(pid: int) -> float | None:
    """When the process began, epoch seconds; None: there is none, or a zombie only."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
