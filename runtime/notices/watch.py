"""Watches one cloud's metadata server: a thread per question, and one for what falls due between two answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from . import aws, azure, gcp
from .acknowledge import Acknowledger, NodeDir
from .docket import Docket, ProviderNotice
from .metadata import Look, MetadataError
from .orders import Orders
from .policy import policy_of

CLOUDS = ("aws", "gcp", "azure")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0  # between two tries: the shortest notices come half a minute ahead
_TICK_S = 1.0


class CloudWatcher:
    """Asks until stopped. A server that is missing, hangs or answers nonsense costs one line of the log, no more."""

    def __init__(self, looks: Sequence[Look], docket: Docket, say: Callable[[str], None]) -> None:
        self._docket, self._say = docket, say
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._stopping = threading.Event()
        for look in looks:
            threading.Thread(target=self._ask, args=(look,), name=look.name, daemon=True).start()
        if looks:
            threading.Thread(target=self._keep_time, name="notices", daemon=True).start()

    def stop(self) -> None:
        """No more questions; threads that wait for an answer end with it."""
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
        """Once for each trouble: all questions meet the same one, again and again."""
        with self._lock:
            new = trouble not in self._said
            self._said.add(trouble)
        if new:
            self._say(f"notices: {trouble}; it is asked again")

    def _keep_time(self) -> None:
        while not self._stopping.wait(_TICK_S):
            self._docket.advance(time.monotonic())


class CloudNotices:
    """Everything about the notices of one cloud, for the agent."""

    def __init__(
        self,
        cloud: str,
        own: NodeDir,
        orders: Orders,
        say: Callable[[str], None],
        *,
        environ: Mapping[str, str],
        capacity_block_end: float | None = None,
    ) -> None:
        """Begins to watch; "none" is no cloud."""
        self._acknowledger: Acknowledger | None = None
        looks: list[Look] = []
        try:
            if cloud == "aws":
                looks = aws.looks(environ, say, capacity_block_end)
            elif cloud == "gcp":
                looks = gcp.looks(environ, say)
            elif cloud == "azure":
                events = azure.scheduled_events(environ, say)
                self._acknowledger = Acknowledger(own, lambda: events.machine, events.acknowledge, say)
                looks = [events]
            elif cloud != "none":
                say(f"notices are not watched: {cloud!r} is none of {', '.join(CLOUDS)}")
        except MetadataError as error:
            say(f"notices of {cloud} are not watched: {error}")
        self._watcher = CloudWatcher(looks, Docket(orders, say, self._on_stop), say)

    def stop(self) -> None:
        """Watch no more."""
        self._watcher.stop()

    def finish(self, limit_s: float) -> None:
        """After the node's result: what the provider may now be told is told, if it takes no longer than that."""
        if self._acknowledger is not None:
            self._acknowledger.finish(limit_s)

    def _on_stop(self, notice: ProviderNotice, starts: float) -> None:
        if self._acknowledger is not None and policy_of(notice.cloud, notice.kind).acknowledged:
            self._acknowledger.begin(notice, starts)
