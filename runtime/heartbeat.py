"""The node's sign of life, with the program's progress; and the judge of whether the job dir still works."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from .jobdir import JOB_KEY, Heartbeat, JobDir, JobDirError, Progress, attempt_key
from .records import fits
from .timeline import History

Phase = Literal["setup", "waiting", "running", "stopping"]
INTERVAL_S = 1.0
_FAR_INTERVAL_S = 3.0  # in an object store, where each beat costs money: 0.14 USD a day and node in S3
_PROGRESS_BYTES = 64 << 10  # a longer file is not the Checkpointer's


class Heart:
    """Beats from a thread of its own until stopped. `on_lost` is called once, with the reason, if the job dir is lost.

    Lost means: job.json is gone although the job dir answers (twice in a row), or no beat could be written for
    `patience_s`. `on_superseded` is called once, when a newer attempt of the job has begun: this machine is one that
    nobody counts on any more, such as one that was frozen for a while.
    """

    def __init__(
        self,
        job_dir: JobDir,
        key: str,
        progress: Path,
        history: History,
        *,
        attempt: int,
        on_lost: Callable[[str], None],
        on_superseded: Callable[[], None],
        patience_s: float,
        sequence: int = 0,
    ) -> None:
        """`sequence`: of the last beat there is, where the node was started before."""
        self._sequence = sequence
        self._interval_s = INTERVAL_S if job_dir.folder is not None else _FAR_INTERVAL_S
        self._job_dir, self._key, self._progress, self._history = job_dir, key, progress, history
        self._on_lost, self._patience_s = on_lost, patience_s
        self._on_superseded, self._next_attempt = on_superseded, attempt_key(attempt + 1)
        self._phase: Phase = "setup"
        self._gpu_idle_s: float | None = None
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def set_phase(self, phase: Phase) -> None:
        """Tell the phase, at once."""
        if phase != self._phase:
            self._phase = phase
            self._changed.set()

    def set_gpu_idle(self, seconds: float | None) -> None:
        """Tell for how long the GPUs have done nothing, with the next beat."""
        self._gpu_idle_s = seconds

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    def _run(self) -> None:
        missing, last_written, lost, superseded = 0, time.monotonic(), False, False
        while not self._stopping:
            self._sequence += 1
            try:
                missing = 0 if self._job_dir.exists(JOB_KEY) else missing + 1
                if missing == 0:
                    self._beat()
                    last_written = time.monotonic()
                if not superseded and self._job_dir.exists(self._next_attempt):
                    superseded = True
                    self._on_superseded()
            except JobDirError as error:
                why = str(error)
            else:
                why = f"{self._job_dir.url}: {JOB_KEY} is gone: the job dir has been deleted"
            if not lost and (missing >= 2 or time.monotonic() - last_written > self._patience_s):
                lost = True
                self._on_lost(why)
            self._changed.wait(self._interval_s)
            self._changed.clear()

    def _beat(self) -> None:
        generation = self._history.generation
        progress = read_progress(self._progress)
        self._history.see(progress, generation)
        timeline = self._history.to_json()
        beat = Heartbeat(self._sequence, time.time(), self._phase, progress, self._gpu_idle_s, timeline)
        self._job_dir.put(self._key, beat.to_bytes())


def read_progress(path: Path) -> dict[str, Any] | None:
    """What the program says of itself, if it says something that can be read: figures of Progress, and nothing else."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_PROGRESS_BYTES))
    except (OSError, ValueError, RecursionError):  # it says nothing, or writes rubbish: either is its own business
        return None
    if not isinstance(value, dict):
        return None
    return {name: figure for name, figure in value.items() if fits(Progress, name, figure)}
