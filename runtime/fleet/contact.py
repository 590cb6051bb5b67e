"""A member's connection to its fleet dir. A separate thread sends heartbeats and polls, so that a hang is detected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...protocol.fleet.folder import Fleet
from ...protocol.fleet.records import Beat, member_key
from ...protocol.fleet.view import View
from ...storage.errors import JobDirError

_NEAR_S, _FAR_S = 0.3, 10.0
_SHORTEST_S, _LONGEST_S = 0.1, 300.0
"""Minimum and maximum poll interval in seconds, which limit the fleet's setting."""
FENCED = 2 / 3
"""A member stops its node after this fraction of `silent_s` without a successful heartbeat: after all of `silent_s`,
another machine may replace it."""


class Contact:
    """Thread that writes heartbeats and polls the fleet dir until stopped. Its methods never block."""

    def __init__(self, fleet: Fleet, machine: str, say: Callable[[str], None]) -> None:
        self._fleet, self._machine, self._say = fleet, machine, say
        self._pause_s = _NEAR_S if fleet.is_local else _FAR_S
        self.holds = ""
        """Order and node that the machine runs, to be written in each heartbeat (Beat.holds)."""
        self.view: View | None = None
        """The last view of the fleet; None: none yet."""
        self.polls = 0
        """Number of successful polls."""
        self._beaten: float | None = None
        self._lapsed = False
        self._wakeup = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contact", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """True if no heartbeat succeeded in some period of FENCED * `silent_s`: the node may have been replaced."""
        return self._lapsed or self._is_late(boottime())

    def clear_lapse(self) -> None:
        """Forget past periods without heartbeats (see is_lost). Call it only when no node runs."""
        self._lapsed = False

    def poll_now(self) -> None:
        """Poll at once."""
        self._wakeup.set()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    def _is_late(self, now: float) -> bool:
        silent_s = self.view.settings.silent_s if self.view else 0.0
        return self._beaten is not None and self.view is not None and now - self._beaten > silent_s * FENCED

    def _pause(self) -> float:
        """Return the seconds until the next poll: the fleet's setting, within fixed bounds, or the default."""
        wanted = self.view.settings.look_s if self.view else None
        return self._pause_s if wanted is None else min(max(wanted, _SHORTEST_S), _LONGEST_S)

    def _run(self) -> None:
        said = ""
        while not self._stopping:
            try:
                now = boottime()
                self._fleet.mark(member_key(self._machine), Beat(time.time(), self.holds))
                self._lapsed = self._lapsed or self._is_late(now)
                self._beaten = now
                self.view = self._fleet.view()
                self.polls += 1
                said = ""
            except Exception as error:  # noqa: BLE001 - if this thread died, the machine would idle forever
                reason = str(error) if isinstance(error, JobDirError) else f"{type(error).__name__}: {error}"
                if reason != said:
                    self._say(reason)
                said = reason
            self._wakeup.wait(self._pause())
            self._wakeup.clear()


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds, which includes time suspended; time.monotonic() if there is no such clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
