"""Record a node's timeline (jobdir.Timeline), for its heartbeats and its result. Thread-safe."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from ...protocol.jobdir import Heartbeat, Span, Timeline
from ...protocol.logs.writer import SteadyClock


class History:
    """Timeline of the node from its claim to its end."""

    def __init__(self, earlier: Heartbeat | None = None) -> None:
        """Begin a timeline, or continue that of `earlier`, the last heartbeat before this machine was restarted.

        The heartbeat's time is taken as the end of the program that was running.
        """
        self._now = SteadyClock()
        self._lock = threading.Lock()
        self._times = Timeline(claimed=self._now())
        self._spans: list[Span] = []
        if earlier is not None and earlier.timeline is not None:
            self._times = Timeline(**earlier.timeline)
            self._spans = [Span(**span) for span in self._times.spans]
            if self._spans and self._spans[-1].ended is None:
                last = dataclasses.replace(self._spans[-1], ended=earlier.time, reason="the machine was restarted")
                self._spans[-1] = last

    def setup_begins(self) -> None:
        self._times = dataclasses.replace(self._times, setup=self._times.setup or self._now())

    def is_ready(self) -> None:
        """Record the end of the setup, or that there was none."""
        self._times = dataclasses.replace(self._times, ready=self._times.ready or self._now())

    def begin(self, generation: int) -> None:
        """Record the start of a generation of the program."""
        with self._lock:
            self._spans.append(Span(generation, self._now()))

    @property
    def generation(self) -> int:
        """Number of the newest generation; 0: none has begun."""
        with self._lock:
            return self._spans[-1].generation if self._spans else 0

    @property
    def seconds(self) -> float:
        """Seconds since the node was claimed."""
        return max(0.0, self._now() - self._times.claimed)

    def record_progress(self, progress: dict[str, Any] | None, generation: int) -> None:
        """Record a generation's progress; a no-op if the generation is not the newest."""
        with self._lock:
            if progress is None or not self._spans or self._spans[-1].generation != generation:
                return
            first = self._spans[-1].first_step
            if first is None and int(progress.get("step") or 0) > int(progress.get("restored_step") or 0):
                first = self._now()
            self._spans[-1] = dataclasses.replace(self._spans[-1], progress=progress, first_step=first)

    def end(self, reason: str) -> None:
        """Record the end of the newest generation."""
        with self._lock:
            self._spans[-1] = dataclasses.replace(self._spans[-1], ended=self._now(), reason=reason)

    def finish(self) -> None:
        """Record the node's end."""
        self._times = dataclasses.replace(self._times, ended=self._now())

    @property
    def progress_by_generation(self) -> list[dict[str, Any] | None]:
        """Last progress of each generation, oldest first."""
        with self._lock:
            return [span.progress for span in self._spans]

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            spans = [dataclasses.asdict(span) for span in self._spans]
            return dataclasses.asdict(dataclasses.replace(self._times, spans=spans))
