"""Notices that ask a program to save, or to save and stop: the agent's notice file, SIGTERM, SIGUSR1.

Signal handlers only set a flag. The flag is handled between two steps, where the state is consistent and all ranks can
agree.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], None]
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_HANDLING: set[Interruption] = set()
"""Instances whose signal handlers are installed."""
_FORKING = threading.local()
_DEFAULTS = (None, signal.SIG_DFL, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Notice:
    """Request that the program save, and perhaps stop."""

    reason: str
    stop: bool = True
    """True: save and exit; False: save now and continue training."""
    left: float | None = None
    """Seconds until the deadline; None if there is none or it has passed."""
    id: str = ""


class Interruption:
    """Receiver of notices, polled once per step."""

    def __init__(self) -> None:
        self._path = os.environ.get("CLOUDGPU_NOTICE")
        self._listening = os.environ.get("CLOUDGPU_LISTENING")
        self._signal: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        """The handlers to restore."""
        self._handlers: dict[signal.Signals, _Handler] = {}
        self._handled: set[str] = set()

    def listen(self) -> None:
        """Create the file $CLOUDGPU_LISTENING: the agent then relies on the notice file, and does not send SIGTERM."""
        if self._listening:
            with suppress(OSError):  # the agent then sends SIGTERM, which is handled as well
                Path(self._listening).touch()

    def stop_listening(self) -> None:
        if self._listening:
            with suppress(OSError):
                Path(self._listening).unlink()

    def poll(self) -> Notice | None:
        """Return the current notice, or None. A notice to save and continue is returned only once."""
        if self._signal:
            return Notice(self._signal)
        if not self._path or not os.path.exists(self._path):  # noqa: PTH110 - at every step: avoids a Path
            return None
        notice = _read(self._path)
        if notice is None or notice.stop:
            return notice
        if notice.id in self._handled:
            return None
        self._handled.add(notice.id)
        return notice

    def handle_signals(self) -> None:
        """Install handlers that set the flag and then call the program's own handlers; a no-op outside the main thread.

        Only the main thread can install handlers. A training loop in another thread relies on the notice file.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.getsignal(number)
                self._handlers[number] = self._handler(self._previous[number])
                signal.signal(number, self._handlers[number])
            _HANDLING.add(self)

    def restore_signals(self) -> None:
        """Restore the handlers, except where the program has installed others since handle_signals().

        Outside the main thread, the handlers stay. If the program leaves its loop by an exception, the garbage
        collector calls this, possibly in another thread and after a newer object has installed handlers.
        """
        for number, ours in self._handlers.items():
            if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is ours:
                signal.signal(number, _settable(self._previous[number]))
        self._previous, self._handlers = {}, {}
        _HANDLING.discard(self)

    def forget_signals(self) -> None:
        """Restore the handlers in a child process that was forked during the loop, so that SIGTERM ends the child."""
        for number, previous in self._previous.items():
            signal.signal(number, _settable(previous))
        self._previous, self._handlers = {}, {}

    def _handler(self, previous: object) -> _Handler:  # from signal.getsignal()
        def handle(number: int, frame: FrameType | None) -> None:
            if self._handlers.get(signal.Signals(number)) is handle:
                self._signal = signal.Signals(number).name
            elif previous in _DEFAULTS and not _HANDLING:  # reinstalled by other code after the loop
                signal.signal(number, _settable(previous))
                os.kill(os.getpid(), number)
            if callable(previous):
                previous(number, frame)

        return handle


def _before_fork() -> None:
    """Block the signals until the child has restored its handlers."""
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _after_fork_in_child() -> None:
    for interruption in _HANDLING:
        interruption.forget_signals()
    _HANDLING.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _settable(handler: object) -> Any:
    """Return a handler that signal.signal() accepts: SIG_DFL for None, which means a handler installed by C code."""
    return signal.SIG_DFL if handler is None else handler


def _read(path: str) -> Notice | None:
    """Return the notice in a file; None if the file is missing. If it cannot be parsed, return a notice to stop."""
    try:
        fields = json.loads(Path(path).read_bytes())
        reason, deadline = f"notice: {fields['reason']}", float(fields.get("deadline") or 0)
        stop, number = fields.get("action", "stop") != "save", str(fields.get("id", ""))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Notice("notice")
    left = deadline - time.time()
    return Notice(reason, stop, left if math.isfinite(left) and left > 0 else None, number)
