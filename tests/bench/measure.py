"""Timing of commands against each other in the same run, as ratios are less noisy than times."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of the report. `measured` and `budget` are in `unit`, mostly a ratio to a reference in the same run."""

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
    """Run a command and return its user plus system processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def least(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the minimum of each call's values over a number of rounds, called in turns."""
    for call in calls.values():
        call()  # warm: byte code and page cache
    found = [{name: call() for name, call in calls.items()} for _ in range(rounds)]
    return {name: min(values[name] for values in found) for name in calls}
