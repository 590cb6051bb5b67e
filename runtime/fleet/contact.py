"""A member's contact with its fleet: beats and looks, from a thread of its own: a store that hangs is noticed."""

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
"""Seconds between two looks, whatever the fleet's settings say."""
FENCED = 2 / 3
"""Of `silent_s`: whoever could not beat for so long stops what it runs, for others may soon take its place."""


class Contact:
    """Beats until it is stopped. What it has seen last is `view`, which no waiting for an answer delays."""

    def __init__(self, fleet: Fleet, machine: str, say: Callable[[str], None]) -> None:
        self._fleet, self._machine, self._say = fleet, machine, say
        self._pause_s = _NEAR_S if fleet.is_near else _FAR_S
        self.holds = ""
        """As in Beat."""
        self.view: View | None = None
        """None: none yet."""
        self.looks = 0
        """How many there were."""
        self._beaten: float | None = None
        self._lapsed = False
        self._wakeup = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contact", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Nothing was written for so long that this machine's node may be another's by now."""
        return self._lapsed or self._is_late(boottime())

    def forgive(self) -> None:
        """What it ran has been stopped."""
        self._lapsed = False

    def hurry(self) -> None:
        """Look at once."""
        self._wakeup.set()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    def _is_late(self, now: float) -> bool:
        silent_s = self.view.settings.silent_s if self.view else 0.0
        return self._beaten is not None and self.view is not None and now - self._beaten > silent_s * FENCED

    def _pause(self) -> float:
        """Return the seconds until the next look, within what the machine's node and its fleet can bear."""
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
                self.looks += 1
                said = ""
            except Exception as error:  # noqa: BLE001 - without this thread the machine takes no job, and never leaves
                reason = str(error) if isinstance(error, JobDirError) else f"{type(error).__name__}: {error}"
                if reason != said:
                    self._say(reason)
                said = reason
            self._wakeup.wait(self._pause())
            self._wakeup.clear()


def boottime() -> float:
    """Seconds that go on while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
