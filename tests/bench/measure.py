"""Timing commands against one another in the same run: machines are noisy, ratios are not."""

from __future__ import annotations

import statistics
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


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=True)


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each call, taken in turns so that a slow moment hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # warm: byte code and page cache
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: statistics.median(values) for name, values in times.items()}
