"""Idle time of this node's GPUs, from the utilisation that nvidia-smi reports. Standard library only.

A GPU whose utilisation cannot be read counts as neither busy nor idle, and the idle time restarts from zero.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

VISIBLE = "CUDA_VISIBLE_DEVICES"
IDLE_PERCENT = 1
"""Utilisation in per cent up to which a GPU counts as idle: the driver rounds up, and a desktop may use the GPU."""
_INTERVAL_S = 10.0
_TIMEOUT_S = 30.0
_QUERY = ("nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits")
_LINE = re.compile(r"(GPU-\S+), *(.+)")
_SAID_AFTER = 2  # failed readings in a row: one may time out, or be killed when the program ends


class UnreadableError(Exception):
    """The utilisation of a GPU cannot be read; the message says why."""


class IdleWatch:
    """Context manager that polls the GPUs' utilisation from a separate thread.

    `sample` returns the utilisation in per cent of every GPU of the node, or raises UnreadableError. `report` is called
    after each reading with the seconds for which all GPUs have been idle (None: unknown).
    """

    def __init__(
        self,
        limit_s: float,
        sample: Callable[[], Sequence[int]],
        *,
        report: Callable[[float | None], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = min(_INTERVAL_S, limit_s / 10)
        self._sample, self._report, self._say, self._clock = sample, report, say, clock
        self._idle_since: float | None = None
        self._failures = 0
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="gpu-idle", daemon=True).start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        self._stopping.set()

    def sample_once(self) -> None:
        """Take one reading and report the idle time."""
        try:
            busiest = max(self._sample())
        except UnreadableError as error:
            self._unreadable(error)
            return
        now, self._failures = self._clock(), 0
        if busiest > IDLE_PERCENT:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._report(0.0 if self._idle_since is None else now - self._idle_since)

    def _unreadable(self, error: UnreadableError) -> None:
        self._idle_since = None
        self._failures += 1
        if self._failures == _SAID_AFTER and not self._stopping.is_set():
            self._say(f"GPU utilisation cannot be read, so limits.gpu_idle has no effect: {error}")
        self._report(None)

    def _run(self) -> None:
        self.sample_once()
        while not self._stopping.wait(self._interval):
            self.sample_once()


def read_utilisation(visible: str | None) -> list[int]:
    """Return the utilisation in per cent of each GPU that CUDA_VISIBLE_DEVICES selects. Raises UnreadableError."""
    try:
        # The exit code is ignored: the agent's main thread reaps every child (program.py), and may get it first.
        done = subprocess.run(
            _QUERY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise UnreadableError(f"{_QUERY[0]}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise UnreadableError(f"{_QUERY[0]} has not answered in {_TIMEOUT_S:.0f} s") from error
    return parse(done.stdout.decode(errors="replace"), visible)


def parse(text: str, visible: str | None) -> list[int]:
    """Return the utilisation of each visible GPU in per cent, from nvidia-smi's output. Raises UnreadableError.

    `visible`: UUID prefixes, or indexes in the driver's order, separated by commas; None: all GPUs.
    """
    utilisation: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise UnreadableError(f"{_QUERY[0]} says: {line[:200]}")
        utilisation[match[1]] = match[2]
    chosen = (
        list(utilisation)
        if visible is None
        else [_find(name.strip(), list(utilisation)) for name in visible.split(",")]
    )
    if not chosen:
        raise UnreadableError(f"{_QUERY[0]} shows no GPU")
    return [_percent(uuid, utilisation[uuid]) for uuid in chosen]


def _find(name: str, uuids: Sequence[str]) -> str:
    if name.isdecimal() and int(name) < len(uuids):
        return uuids[int(name)]
    found = [uuid for uuid in uuids if name and uuid.startswith(name)]
    if len(found) != 1:
        raise UnreadableError(f"{_QUERY[0]} shows no GPU {name}" if name else f"{VISIBLE} is empty")
    return found[0]


def _percent(uuid: str, text: str) -> int:
    if not text.isdecimal():  # "[N/A]" for a GPU in MIG mode, "[GPU is lost]" ...
        raise UnreadableError(f"the utilisation of {uuid} is {text}")
    return int(text)
