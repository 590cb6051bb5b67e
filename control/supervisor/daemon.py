"""Process of the supervisor: one per state directory, woken through a FIFO, ends when no job is active.

No job is missed: a submitter checks the lock after storing a job, and the supervisor checks for active jobs after
releasing the lock.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from .. import paths
from ..errors import StoreError
from ..secrets.channel import listening
from ..store.store import Store
from .supervisor import Supervisor
from .supervisor_lock import WAKE_BYTES, is_current_lock, take_lock, wake, wake_pipe, woken_jobs
from .worker_pool import WorkerPool

log = logging.getLogger("cloudgpu.supervisor")

CLOSE_S = 10.0
"""Seconds that running steps get to end after a stop signal; then they are abandoned, as by SIGKILL."""

_STORE_PAUSE_S = (0.5, 30.0)
_LONGEST_WAIT_S = 5.0
_GONE = "the state directory is gone: ending"


def run(*, idle_exit_s: float | None = None) -> bool:
    """Supervise until a stop signal (SIGINT, SIGTERM), or until no job has been active for `idle_exit_s`.

    Returns False if another process is the supervisor already. Raises StoreError if the store cannot be opened.
    """
    paths.state_dir()
    _share_heaps()
    with _stop_signals() as stop, wake_pipe() as pipe:
        while True:
            lock = take_lock(by_command=idle_exit_s is not None)
            if lock is None:
                return False
            with lock:
                try:
                    store = Store.open()
                except StoreError:
                    if is_current_lock(lock):
                        raise
                    log.warning(_GONE)
                    return True
                again = _Loop(store, stop, pipe, lock, idle_exit_s).run()
                if not again:
                    return True
            # The lock is free now. A job stored earlier, while its submitter saw the lock held, must be found here.
            if not store.has_active():
                return True


def _share_heaps() -> None:
    """Make glibc use one heap for all threads; otherwise each thread's heap keeps the memory it has freed."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_M_ARENA_MAX = -8
"""M_ARENA_MAX of mallopt(3)."""


class _Stop:
    """Flag set by a stop signal."""

    def __init__(self) -> None:
        self.wanted = False


class _SelfPipe:
    """Self-pipe with which any thread of this process ends the loop's wait."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        with suppress(BlockingIOError):  # full: a wake-up is pending already
            os.write(self._write, b".")


class _Loop:
    """Loop of ticks while this process holds the lock."""

    def __init__(self, store: Store, stop: _Stop, pipe: int, lock: IO[str], idle_exit_s: float | None) -> None:
        self._store = store
        self._stop = stop
        self._pipe = pipe
        self._lock = lock
        self._idle_exit_s = idle_exit_s
        self._bell = _SelfPipe()  # never closed: an abandoned step may still ring it
        self._supervisor = Supervisor(store)
        self._pool = WorkerPool(self._supervisor, self._bell.ring)

    def run(self) -> bool:
        """Tick until the end; return True if idle, False after a stop signal or if the state directory is gone."""
        try:
            with listening(self._supervisor.vault, wake):
                return self._run()
        finally:
            self._pool.close(CLOSE_S, release=is_current_lock(self._lock))

    def _run(self) -> bool:
        idle_since: float | None = None
        failures = 0
        woken: set[str] | None = None
        while not self._stop.wanted:
            if not is_current_lock(self._lock):
                log.warning(_GONE)
                return False
            try:
                tick = self._pool.tick(woken=woken)
                failures = 0
            except StoreError as error:
                failures += 1
                log.warning("%s", error)
                woken = self._wait(min(_STORE_PAUSE_S[0] * 2.0**failures, _STORE_PAUSE_S[1]), steps=False)
                continue
            idle_since = None if tick.active else (idle_since or time.monotonic())
            if idle_since is not None and self._idle_exit_s is not None:
                left = idle_since + self._idle_exit_s - time.monotonic()
                if left <= 0:
                    return True
                woken = self._wait(min(left, _LONGEST_WAIT_S))
            else:
                woken = self._wait(min(tick.wait_s, _LONGEST_WAIT_S))
        return False

    def _wait(self, seconds: float, *, steps: bool = True) -> set[str] | None:
        """Wait for up to `seconds`; return the ids of jobs that commands have changed. None: no command sent a wake-up.

        With `steps`, the end of a step also ends the wait.
        """
        ready, _, _ = select.select([self._pipe, *([self._bell.fileno()] if steps else [])], [], [], seconds)
        woken: set[str] | None = None
        for descriptor in ready:
            with suppress(BlockingIOError):
                data = os.read(descriptor, WAKE_BYTES)
                woken = woken_jobs(data) if descriptor == self._pipe else woken
        return woken


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Yield a flag that SIGINT and SIGTERM set."""
    stop = _Stop()

    def on_signal(_number: int, _frame: object) -> None:
        stop.wanted = True
        wake()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
