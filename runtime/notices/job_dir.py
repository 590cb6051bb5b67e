"""Read orders from the job dir: stop.json for all nodes of the attempt, notice.json for this node."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.attempt_signal import signal_key
from ...protocol.jobdir import (
    JobDir,
    JobDirError,
    MissingError,
    Notice,
    Signal,
    Stop,
    StopReason,
    attempt_key,
    node_key,
)
from ...protocol.pace import Pace
from ...protocol.records import MOST_BYTES
from .orders import Order, Orders
from .scheduled_notices import NoticeSchedule, ProviderNotice

_NOTICE = "notice.json"
_POLL_LOCAL_S = 0.25
_POLL_S = 2.5
"""Interval in seconds between conditional GETs of signal.json; most replies have no content."""
_ORDERS_S = 60.0
"""Maximum interval in seconds between reads of stop.json and notice.json, because older supervisors write no signal."""
_SIGNAL_BYTES = 4 << 10
"""Maximum size of signal.json, in bytes."""
_REASONS: dict[StopReason, str] = {
    "cancel": "cancelled",
    "duration": "limits.duration is reached",
    "cost": "limits.cost is reached",
    "gpu_idle": "limits.gpu_idle is reached",
    "peer": "another node of this attempt has ended",
}


@dataclass(frozen=True, slots=True)
class NodeDir:
    """Location of this node in the job dir."""

    job_dir: JobDir
    attempt: int
    node: str


class Watcher:
    """Thread that polls stop.json and notice.json. Store errors are ignored: the heartbeat detects a lost job dir.

    In an object store, only signal.json is polled; stop.json and notice.json are read when it has changed, or once a
    minute.
    """

    def __init__(
        self,
        job_dir: JobDir,
        attempt: int,
        node: str,
        orders: Orders,
        say: Callable[[str], None],
        *,
        pace: Pace | None = None,
    ) -> None:
        """Start the thread. `pace`: becomes quick while a command watches the attempt, according to signal.json."""
        self._job_dir, self._orders, self._say = job_dir, orders, say
        self._pace = pace or Pace(free=True)
        self._docket = NoticeSchedule(orders, say)
        self._interval = _POLL_LOCAL_S if job_dir.folder is not None else _POLL_S
        self._signal_key, self._etag = signal_key(attempt), ""
        self._orders_due = 0.0
        self._readers: dict[str, Callable[[bytes], None]] = {
            attempt_key(attempt, "stop.json"): self._stop_wanted,
            node_key(attempt, node, _NOTICE): self._notice_given,
        }
        self._seen: dict[str, bytes] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            now = time.monotonic()
            if self._job_dir.folder is not None or self._is_signalled() or now >= self._orders_due:
                answers = [self._look(key, read) for key, read in self._readers.items()]
                self._orders_due = now + (_ORDERS_S if all(answers) else 0.0)
            self._docket.advance(time.monotonic())

    def _is_signalled(self) -> bool:
        """Return whether signal.json has changed since the last call."""
        try:
            found = self._job_dir.get_if_changed(self._signal_key, self._etag, _SIGNAL_BYTES)
        except JobDirError:  # usually it does not exist
            return False
        if found is None:
            return False
        data, self._etag = found
        with contextlib.suppress(JobDirError, TypeError, ValueError):  # even if invalid, it has changed
            self._pace.watched(float(Signal.from_bytes(data).watch_s))
        return True

    def _look(self, key: str, read: Callable[[bytes], None]) -> bool:
        """Pass a record to `read` if it exists and has changed; return whether the store could be read."""
        try:
            data = self._job_dir.get(key, MOST_BYTES)
        except MissingError:
            return True
        except JobDirError:
            return False
        if data == self._seen.get(key):
            return True
        self._seen[key] = data
        try:
            read(data)
        except JobDirError as error:
            self._say(f"{key} is ignored: {error}")
        return True

    def _stop_wanted(self, data: bytes) -> None:
        order = stop_order(data)
        self._orders.add(order)
        self._say(f"{order.reason}; {max(0.0, order.deadline - time.monotonic()):.0f} s left")

    def _notice_given(self, data: bytes) -> None:
        self._docket.update(_NOTICE, [simulated_notice(data)], time.monotonic())


def stop_order(data: bytes) -> Order:
    """Parse stop.json into an order. Raises JobDirError."""
    stop = Stop.from_bytes(data)
    return Order("stopped", stop.reason, _REASONS[stop.reason], _from_epoch(stop.deadline, stop.seconds))


def simulated_notice(data: bytes) -> ProviderNotice:
    """Parse notice.json. The id is a hash of the content, so changed content is a new notice. Raises JobDirError."""
    notice = Notice.from_bytes(data)
    starts = _from_epoch(notice.deadline, notice.seconds)
    return ProviderNotice("simulated", notice.kind, hashlib.sha256(data).hexdigest(), starts, notice.source)


def _from_epoch(deadline: float, seconds: float | None) -> float:
    """Convert a deadline to the monotonic clock once, so that later changes of the wall clock have no effect.

    deadline  in epoch seconds, by the clock of the machine that wrote it
    seconds   time from the writing to the deadline; used instead if the clocks differ, so that more than this seems to
              be left or the deadline seems to have passed
    """
    left = deadline - time.time()
    if seconds is not None and not 0.0 <= left <= seconds:
        left = seconds
    return time.monotonic() + left
