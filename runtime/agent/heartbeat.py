"""The node's heartbeat with the program's progress, and the check whether the job dir is lost."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ...protocol.jobdir import JOB_KEY, Heartbeat, JobDir, JobDirError, Progress, attempt_key
from ...protocol.pace import BEAT_S, Pace
from ...protocol.records import fits
from .timeline import History

Phase = Literal["setup", "waiting", "running", "stopping"]
INTERVAL_S = 1.0
_FAR_INTERVAL_S = 3.0  # in an object store, where each heartbeat costs money: 0.14 USD per day and node in S3
_LOOK_S = 15.0  # in the steady state, poll interval for job.json and the next attempt
_PROGRESS_BYTES = 64 << 10  # a longer file was not written by the Checkpointer


class HeartbeatThread:
    """Thread that writes the node's heartbeat until stopped.

    `on_lost` is called once, with the reason, if the job dir is lost: job.json is missing in two consecutive checks
    although requests succeed, or no request has succeeded for `retry_timeout_s()` seconds. `on_superseded` is called
    once if a newer attempt has begun: the supervisor has replaced this machine, for example after a freeze.
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
        retry_timeout_s: Callable[[], float],
        pace: Pace,
        sequence: int = 0,
    ) -> None:
        """Start the thread. `sequence`: number of the last heartbeat that an earlier run of the node has written."""
        self._sequence = sequence
        self._pace = pace
        self._interval_s = INTERVAL_S if job_dir.folder is not None else _FAR_INTERVAL_S
        self._job_dir, self._key, self._progress, self._history = job_dir, key, progress, history
        self._on_lost, self._retry_timeout_s = on_lost, retry_timeout_s
        self._on_superseded, self._next_attempt = on_superseded, attempt_key(attempt + 1)
        self._phase: Phase = "setup"
        self._gpu_idle_s: float | None = None
        self._secrets = ("", "")
        self._changed = threading.Event()
        self._looked = self._beat_due = -math.inf
        self._stopping = False
        pace.on_quick(self._changed.set)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def set_phase(self, phase: Phase) -> None:
        """Set the phase, and write a heartbeat at once."""
        self._phase = phase
        if phase == "running":  # also when the program restarts
            self._pace.settle()
        else:
            self._pace.stay_quick()

    def set_gpu_idle(self, seconds: float | None) -> None:
        """Set the idle time of the GPUs, in seconds, that the next heartbeat reports."""
        self._gpu_idle_s = seconds

    def request_secrets(self, key: str, proof: str) -> None:
        """Publish a public key and its proof, at once and in every heartbeat; "": the secrets have come."""
        self._secrets = (key, proof)
        self._pace.stay_quick()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    def _run(self) -> None:
        missing, last_worked, lost, superseded, why = 0, time.monotonic(), False, False, ""
        while not self._stopping:
            progress = self._see_progress()
            if self._is_look_due(failed=bool(why)):
                try:
                    self._looked = time.monotonic()
                    missing = 0 if self._job_dir.exists(JOB_KEY) else missing + 1
                    why = (
                        "" if missing == 0 else f"{self._job_dir.url}: {JOB_KEY} is gone: the job dir has been deleted"
                    )
                    if missing == 0:
                        self._beat_if_due(progress)
                        last_worked = time.monotonic()
                    if not superseded and self._job_dir.exists(self._next_attempt):
                        superseded = True
                        self._on_superseded()
                except JobDirError as error:
                    why = str(error)
            if why and not lost and (missing >= 2 or time.monotonic() - last_worked > self._retry_timeout_s()):
                lost = True
                self._on_lost(why)
            self._changed.wait(self._interval_s)
            self._changed.clear()

    def _see_progress(self) -> dict[str, Any] | None:
        generation = self._history.generation
        progress = read_progress(self._progress)
        self._history.record_progress(progress, generation)
        return progress

    def _is_look_due(self, *, failed: bool) -> bool:
        """Return whether to send requests now; in the steady state they are sent less often."""
        now = time.monotonic()
        return failed or self._pace.is_quick or now >= min(self._looked + _LOOK_S, self._beat_due)

    def _beat_if_due(self, progress: dict[str, object] | None) -> None:
        is_quick, now = self._pace.is_quick, time.monotonic()
        if not is_quick and now < self._beat_due:
            return
        self._beat_due = -math.inf  # due until it is written
        self._sequence += 1
        timeline, next_s = self._history.to_json(), self._interval_s if is_quick else BEAT_S
        key, proof = self._secrets
        beat = Heartbeat(
            sequence=self._sequence,
            time=time.time(),
            phase=self._phase,
            progress=progress,
            gpu_idle_s=self._gpu_idle_s,
            timeline=timeline,
            secrets_key=key,
            secrets_proof=proof,
            next_s=next_s,
        )
        self._job_dir.put(self._key, beat.to_bytes())
        self._beat_due = now + BEAT_S


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the valid fields of the progress file that the program writes; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_PROGRESS_BYTES))
    except (OSError, ValueError, RecursionError):  # missing or malformed: progress is optional
        return None
    if not isinstance(value, dict):
        return None
    return {name: figure for name, figure in value.items() if fits(Progress, name, figure)}
