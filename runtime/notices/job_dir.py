"""What the job dir wants of this node: stop.json for all nodes of the attempt, notice.json for this one."""

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
from .scheduled_notices import Docket, ProviderNotice

_NOTICE = "notice.json"
_POLL_LOCAL_S = 0.25
_POLL_S = 2.5
"""Seconds between two conditional GETs of signal.json; most are answered without content."""
_ORDERS_S = 60.0
"""Seconds between two reads of stop.json and notice.json without a signal: older supervisors send none."""
_SIGNAL_BYTES = 4 << 10
"""Bytes of a signal.json that is read."""
_REASONS: dict[StopReason, str] = {
    "cancel": "cancelled",
    "duration": "limits.duration is reached",
    "cost": "limits.cost is reached",
    "gpu_idle": "limits.gpu_idle is reached",
    "peer": "another node of this attempt has ended",
}


@dataclass(frozen=True, slots=True)
class NodeDir:
    """This node's place in the job dir."""

    job_dir: JobDir
    attempt: int
    node: str


class Watcher:
    """Reads stop.json and notice.json in a thread of its own. The heartbeat judges whether the job dir is lost.

    In an object store only signal.json is polled, and the others are read when it has changed, or once a minute.
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
        """`pace`: set to quick while a command watches."""
        self._job_dir, self._orders, self._say = job_dir, orders, say
        self._pace = pace or Pace(free=True)
        self._docket = Docket(orders, say)
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
        except JobDirError:  # most often there is none
            return False
        if found is None:
            return False
        data, self._etag = found
        with contextlib.suppress(JobDirError, TypeError, ValueError):  # whatever it says, it has changed
            self._pace.watched(float(Signal.from_bytes(data).watch_s))
        return True

    def _look(self, key: str, read: Callable[[bytes], None]) -> bool:
        """Read a record if there is a new one; return whether the store has answered."""
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
    """Raises JobDirError if that is no Stop."""
    stop = Stop.from_bytes(data)
    return Order("stopped", stop.reason, _REASONS[stop.reason], _from_epoch(stop.deadline, stop.seconds))


def simulated_notice(data: bytes) -> ProviderNotice:
    """Raises JobDirError if that is no Notice. Each content is a notice of its own: a deadline may be tightened."""
    notice = Notice.from_bytes(data)
    starts = _from_epoch(notice.deadline, notice.seconds)
    return ProviderNotice("simulated", notice.kind, hashlib.sha256(data).hexdigest(), starts, notice.source)


def _from_epoch(deadline: float, seconds: float | None) -> float:
    """Once, on sight: later jumps of the wall clock change nothing.

    What was written to leave `seconds`, and is seen at once, leaves neither more nor nothing: then the writer's clock
    is not ours, or one of them was set meanwhile.
    """
    left = deadline - time.time()
    if seconds is not None and not 0.0 <= left <= seconds:
        left = seconds
    return time.monotonic() + left
