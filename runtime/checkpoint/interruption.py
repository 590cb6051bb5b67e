"""How a program learns that it should save and stop: the notice file of the agent, SIGTERM, SIGUSR1.

Signal handlers only set a flag: it is obeyed between two steps, where the state is whole and all ranks can agree.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interruption:
    """Asked once per step."""

    def __init__(self) -> None:
        self._notice = os.environ.get("CLOUDGPU_NOTICE")
        self._listening = os.environ.get("CLOUDGPU_LISTENING")
        self._signal: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        """The handlers that were there before ours."""

    def listen(self) -> None:
        """Tell the agent that the notice file is watched, so that it need not send SIGTERM."""
        if self._listening:
            with suppress(OSError):  # the agent then sends SIGTERM, which is obeyed as well
                Path(self._listening).touch()

    def stop_listening(self) -> None:
        if self._listening:
            with suppress(OSError):
                Path(self._listening).unlink()

    def reason(self) -> str | None:
        """Why to stop, or None."""
        if self._signal:
            return self._signal
        if not self._notice or not os.path.exists(self._notice):  # noqa: PTH110 - asked at every step: no Path is made
            return None
        try:
            notice = json.loads(Path(self._notice).read_bytes())
            return f"notice: {notice['reason']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "notice"

    def handle_signals(self) -> None:
        """From now on the signals set the flag, and reach the program's own handlers too.

        Only the main thread may set handlers: a training loop in another one relies on the notice file alone.
        """
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
            for number, handler in self._previous.items():
                signal.signal(number, self._handler(handler))

    def put_back_signals(self) -> None:
        """All is as it was before handle_signals()."""
        for number, handler in self._previous.items():
            # None: not set from Python; it cannot be put back, and ending on the signal is what a program does.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _handler(self, previous: Any) -> Callable[[int, FrameType | None], None]:  # noqa: ANN401 - as signal has it
        def handle(number: int, frame: FrameType | None) -> None:
            self._signal = signal.Signals(number).name
            if callable(previous):
                previous(number, frame)

        return handle
