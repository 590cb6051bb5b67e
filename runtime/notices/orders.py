"""Orders for a node to save or stop, with their deadlines, and the notice file that passes them to the program."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...protocol.jobdir import Outcome
from ...storage import durable

Action = Literal["stop", "save"]


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True)
class Order:
    """An order to save or stop the program. Times are in time.monotonic()."""

    outcome: Outcome
    """Outcome of the node if the order interrupts its program."""
    word: str
    """Reason as a fixed word, which programs read as `reason` in the file named by CLOUDGPU_NOTICE."""
    reason: str
    """Reason in words for the user."""
    deadline: float
    """For a stop: time after which nothing can be written. For a save: the program saves more often until then."""
    vanishes: bool = False
    """True if the machine counts as gone at the deadline, so that nothing is written after it (simulated notices)."""
    returns: bool = False
    """True if the machine is restarted afterwards and the node resumes there, so that no result is written."""
    action: Action = "stop"
    """stop: save and end. save: save and continue training; if a stop follows, it is a separate order."""
    id: str = field(default_factory=_new_id)
    """Unique id; a program obeys each id once."""
    seen: float = field(default_factory=time.monotonic)

    def kill_at(self, write_s: float) -> float:
        """Return the time at which to kill a program that has not ended, so that its staged checkpoint can be written.

        `write_s`: seconds that the writer needs. The program has at least half of the time, because a new checkpoint
        that may be too late is worth more than an older one.
        """
        return max(self.deadline - write_s, self.seen + (self.deadline - self.seen) / 2)


class Orders:
    """All orders so far. Thread-safe; `wake` is called for each new one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._stops: list[Order] = []
        self._newest_save: Order | None = None

    def add(self, order: Order) -> None:
        with self._lock:
            if order.action == "save":
                self._newest_save = order
            else:
                self._stops.append(order)
        self._wake()

    @property
    def next_to_expire(self) -> Order | None:
        """The stop with the earliest deadline; None if there is no stop."""
        with self._lock:
            return min(self._stops, key=lambda order: order.deadline, default=None)

    @property
    def deciding(self) -> Order | None:
        """The stop that determines the node's outcome: the first one by the user, else the first of the others.

        Stops after which the node resumes on this machine come last. None if there is no stop.
        """
        with self._lock:
            return min(self._stops, key=lambda order: (order.outcome != "stopped", order.returns), default=None)

    @property
    def newest_save(self) -> Order | None:
        """The newest order to save and continue training; None once there is a stop."""
        with self._lock:
            return None if self._stops else self._newest_save


def write_notice(path: Path, order: Order) -> None:
    """Write an order to the file named by CLOUDGPU_NOTICE, atomically. Raises OSError."""
    deadline = time.time() + order.deadline - time.monotonic()
    notice = {"reason": order.word, "deadline": deadline, "action": order.action, "id": order.id}
    durable.write(path, json.dumps(notice).encode())
