"""What a node has been asked to do, by whom and by when; and how the program is told."""

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
    """Somebody's word about the program. Times are on the monotonic clock, which nobody sets."""

    outcome: Outcome
    """What the node's result will be if the program is interrupted by it."""
    word: str
    """For programs: the `reason` in the file named by CLOUDGPU_NOTICE."""
    reason: str
    """For people."""
    deadline: float
    """Of a stop: nothing can be written any more. Of a save: until then checkpoints should be closer together."""
    vanishes: bool = False
    """The machine is gone at the deadline: then no result is written, as on a real machine."""
    returns: bool = False
    """The machine is started again afterwards, and the node goes on there: then no result is written either."""
    action: Action = "stop"
    """stop: save and end. save: save and train on; a stop is an order of its own, if one is to follow."""
    id: str = field(default_factory=_new_id)
    """A program obeys each id once."""
    seen: float = field(default_factory=time.monotonic)

    def kill_at(self, write_s: float) -> float:
        """When a program that comes to no step boundary is killed, so that what it has staged is still written.

        `write_s` is what the writer needs for that. At least half the time is left to the program: a late checkpoint
        of now is worth more than the certain one of before.
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
        """The stop with the earliest deadline."""
        with self._lock:
            return min(self._stops, key=lambda order: order.deadline, default=None)

    @property
    def deciding(self) -> Order | None:
        """The stop that says how the node's end is called: the user's above all, else the first that came.

        One after which the node goes on here says it only as long as there is no other.
        """
        with self._lock:
            return min(self._stops, key=lambda order: (order.outcome != "stopped", order.returns), default=None)

    @property
    def newest_save(self) -> Order | None:
        """The last word to save and train on; it says nothing once there is a stop."""
        with self._lock:
            return None if self._stops else self._newest_save


def write_notice(path: Path, order: Order) -> None:
    """Tell the program, by the file named by CLOUDGPU_NOTICE; it sees the old or the new one. Raises OSError."""
    deadline = time.time() + order.deadline - time.monotonic()
    notice = {"reason": order.word, "deadline": deadline, "action": order.action, "id": order.id}
    durable.write(path, json.dumps(notice).encode())
