"""Timing commands against one another in the same run: machines are noisy, ratios are not."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the report. `measured` and `budget` are in `unit`: mostly a ratio to something of the same run."""

    what: str
    measured: float
    budget: float | None
    unit: str
    how: str

    @property
    def kept(self) -> bool:
        return self.budget is None or self.measured <= self.budget


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def processor_seconds(command: Sequence[str], env: Mapping[str, str] | None = None, folder: str | None = None) -> float:
    """Run a command; return the time that it had of the processors, as user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def least(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the least value of each call, taken in turns."""
    for call in calls.values():
        call()  # warm: byte code and page cache
    found = [{name: call() for name, call in calls.items()} for _ in range(rounds)]
    return {name: min(values[name] for values in found) for name in calls}
