"""Watch a metadata server: one thread per poll, and one that issues due orders between replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from .metadata import Look, MetadataError
from .scheduled_notices import NoticeSchedule

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0  # maximum backoff: the shortest notices come 30 s before their event
_TICK_S = 1.0


class CloudWatcher:
    """Threads that poll until stopped. A server that is missing, hangs or sends invalid replies is logged once."""

    def __init__(self, looks: Sequence[Look], docket: NoticeSchedule, say: Callable[[str], None]) -> None:
        self._docket, self._say = docket, say
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._stopping = threading.Event()
        for look in looks:
            threading.Thread(target=self._ask, args=(look,), name=look.name, daemon=True).start()
        if looks:
            threading.Thread(target=self._keep_time, name="notices", daemon=True).start()

    def stop(self) -> None:
        """Stop polling; threads that wait for a reply end when it arrives."""
        self._stopping.set()

    def _ask(self, look: Look) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                notices = look.look()
            except MetadataError as error:
                self._complain(str(error))
                failures, pause_s = failures + 1, min(_FIRST_PAUSE_S * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S)
            else:
                failures, pause_s = 0, look.pause_s
                if not self._stopping.is_set():
                    self._docket.update(look.name, notices, time.monotonic())
            self._stopping.wait(pause_s)

    def _complain(self, trouble: str) -> None:
        """Log an error, but only once, because every poll raises it again."""
        with self._lock:
            new = trouble not in self._said
            self._said.add(trouble)
        if new:
            self._say(f"notices: {trouble}; it is asked again")

    def _keep_time(self) -> None:
        while not self._stopping.wait(_TICK_S):
            self._docket.advance(time.monotonic())
