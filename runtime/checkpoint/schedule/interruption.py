"""How a program learns that it should save, or save and stop: the notice file of the agent, SIGTERM, SIGUSR1.

Signal handlers only set a flag: it is obeyed between two steps, where the state is whole and all ranks can agree.
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
"""Those whose loop runs."""
_FORKING = threading.local()
_DEFAULTS = (None, signal.SIG_DFL, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Notice:
    """Somebody's word that the program is to save, and perhaps to stop."""

    reason: str
    stop: bool = True
    """Save and end; else save now, and train on."""
    left: float | None = None
    """Seconds until the deadline; None if there is none, or it is past: then every moment is a gift."""
    id: str = ""


class Interruption:
    """Asked once per step."""

    def __init__(self) -> None:
        self._path = os.environ.get("CLOUDGPU_NOTICE")
        self._listening = os.environ.get("CLOUDGPU_LISTENING")
        self._signal: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        """The handlers that were there before ours."""
        self._ours: dict[signal.Signals, _Handler] = {}
        self._obeyed: set[str] = set()

    def listen(self) -> None:
        """Tell the agent that the notice file is watched, so that it need not send SIGTERM."""
        if self._listening:
            with suppress(OSError):  # the agent then sends SIGTERM, which is obeyed as well
                Path(self._listening).touch()

    def stop_listening(self) -> None:
        if self._listening:
            with suppress(OSError):
                Path(self._listening).unlink()

    def look(self) -> Notice | None:
        """What is asked of the program; of notices to save and train on, each is told once."""
        if self._signal:
            return Notice(self._signal)
        if not self._path or not os.path.exists(self._path):  # noqa: PTH110 - asked at every step: no Path is made
            return None
        notice = _read(self._path)
        if notice is None or notice.stop:
            return notice
        if notice.id in self._obeyed:
            return None
        self._obeyed.add(notice.id)
        return notice

    def handle_signals(self) -> None:
        """From now on the signals set the flag, and reach the program's own handlers too.

        Only the main thread may set handlers: a training loop in another one relies on the notice file alone.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.getsignal(number)
                self._ours[number] = self._handler(self._previous[number])
                signal.signal(number, self._ours[number])
            _HANDLING.add(self)

    def put_back_signals(self) -> None:
        """All is as it was before handle_signals(), but for handlers that were set since: those stay.

        A loop that was left by an exception ends when the garbage collector finds it: in any thread, after others.
        """
        for number, ours in self._ours.items():
            if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is ours:
                signal.signal(number, _settable(self._previous[number]))
        self._previous, self._ours = {}, {}
        _HANDLING.discard(self)

    def forget_signals(self) -> None:
        """In a child that was forked in the midst of the loop: it is not what trains. A SIGTERM is to end it: whoever
        started it may send one, and wait for its end."""
        for number, previous in self._previous.items():
            signal.signal(number, _settable(previous))
        self._previous, self._ours = {}, {}

    def _handler(self, previous: object) -> _Handler:  # as signal has it
        def handle(number: int, frame: FrameType | None) -> None:
            if self._ours.get(signal.Signals(number)) is handle:
                self._signal = signal.Signals(number).name
            elif previous in _DEFAULTS and not _HANDLING:  # our loop is over, and so is whoever's put us back
                signal.signal(number, _settable(previous))
                os.kill(os.getpid(), number)
            if callable(previous):
                previous(number, frame)

        return handle


def _before_fork() -> None:
    """A signal to a child that does not yet know that it is one has to wait until it does."""
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
    """None: not set from Python; it cannot be put back, and ending on the signal is what a program does."""
    return signal.SIG_DFL if handler is None else handler


def _read(path: str) -> Notice | None:
    """The notice file; one that cannot be understood is a notice all the same: it asks to stop. None: taken back."""
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
