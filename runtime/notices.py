"""Why a node is to end, and by when: stop.json, notice.json, signals, lifetime, a failed peer, a lost job dir."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .jobdir import JobDir, JobDirError, MissingError, Notice, Outcome, Stop, attempt_key, node_key


@dataclass(frozen=True, slots=True)
class Order:
    """Somebody's word that the program is to end. The deadline is on the monotonic clock, which nobody sets."""

    outcome: Outcome
    """What the node's result will be if the program is interrupted by it."""
    word: str
    """For programs: the `reason` in the file named by CLOUDGPU_NOTICE."""
    reason: str
    """For people."""
    deadline: float
    vanishes: bool = False
    """The machine is gone at the deadline: then no result is written, as on a real machine."""


class Orders:
    """All orders so far. Thread-safe; `wake` is called for each new one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._orders: list[Order] = []

    def add(self, order: Order) -> None:
        with self._lock:
            self._orders.append(order)
        self._wake()

    @property
    def next_to_expire(self) -> Order | None:
        """The one with the earliest deadline."""
        with self._lock:
            return min(self._orders, key=lambda order: order.deadline, default=None)

    @property
    def deciding(self) -> Order | None:
        """The one that says how the node's end is called: the user's stop above all, else the first that came."""
        with self._lock:
            return next((order for order in self._orders if order.outcome == "stopped"), next(iter(self._orders), None))


class Watcher:
    """Polls stop.json and notice.json in a thread of its own, and sees to it that the job dir is still there."""

    def __init__(self, job_dir: JobDir, attempt: int, node: str, orders: Orders, say: Callable[[str], None]) -> None:
        self._job_dir, self._orders, self._say = job_dir, orders, say
        self._interval = 0.25 if job_dir.url.startswith("file:") else 2.0
        self._readers: dict[str, Callable[[bytes], Order]] = {
            attempt_key(attempt, "stop.json"): _stop_order,
            node_key(attempt, node, "notice.json"): _notice_order,
        }
        self._seen: dict[str, bytes] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            for key, read in self._readers.items():
                self._look(key, read)

    def _look(self, key: str, read: Callable[[bytes], Order]) -> None:
        try:
            data = self._job_dir.get(key)
        except MissingError:
            return
        except JobDirError:  # whether it is lost for good is judged by the heartbeat
            return
        if data == self._seen.get(key):
            return
        self._seen[key] = data
        try:
            order = read(data)
        except JobDirError as error:
            self._say(f"{key} is ignored: {error}")
        else:
            self._orders.add(order)
            self._say(f"{order.reason}; {max(0.0, order.deadline - time.monotonic()):.0f} s left")


def write_notice(path: Path, order: Order) -> None:
    """Tell the program, by the file named by CLOUDGPU_NOTICE; it sees the old or the new one. Raises OSError."""
    deadline = time.time() + order.deadline - time.monotonic()
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({"reason": order.word, "deadline": deadline}))
    partial.replace(path)


def _from_epoch(deadline: float, seconds: float | None) -> float:
    """Once, on sight: later jumps of the wall clock change nothing.

    What was written to leave `seconds`, and is seen at once, leaves neither more nor nothing: then the writer's clock
    is not ours, or one of them was set meanwhile.
    """
    if not math.isfinite(deadline) or not math.isfinite(seconds or 0.0):
        raise ValueError(f"{deadline} is no time")
    left = deadline - time.time()
    if seconds is not None and not 0.0 <= left <= seconds:
        left = seconds
    return time.monotonic() + left


_STOP_REASONS = {
    "cancel": "cancelled",
    "duration": "limits.duration is reached",
    "cost": "limits.cost is reached",
    "gpu_idle": "limits.gpu_idle is reached",
    "peer": "another node of this attempt has ended",
}


def _stop_order(data: bytes) -> Order:
    stop = Stop.from_bytes(data)
    try:
        reason = _STOP_REASONS.get(stop.reason, stop.reason)
        return Order("stopped", stop.reason, reason, _from_epoch(stop.deadline, stop.seconds))
    except (TypeError, ValueError, AttributeError) as error:
        raise JobDirError(f"not a Stop: {error}") from error


def _notice_order(data: bytes) -> Order:
    notice = Notice.from_bytes(data)
    try:
        reason = f"notice from {notice.source}: {notice.kind}"
        return Order("preempted", notice.kind, reason, _from_epoch(notice.deadline, notice.seconds), vanishes=True)
    except (TypeError, ValueError) as error:
        raise JobDirError(f"not a Notice: {error}") from error
