"""Comparison of the automatic checkpoint interval with the best fixed one, for the tables of
docs/explanation/goodput.md.

Run `python -m tests.bench.interval`. A deterministic simulation (..standins.interruptions), which takes some minutes of
CPU time for each prior.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby

from cloudgpu.runtime.checkpoint.schedule.interval import PRIORS, UNKNOWN_PRIOR
from cloudgpu.tests.standins.interruptions import GRID, HOUR, World, compare, enough_trainings, with_lag


def cell(world: World, market: str, *, in_job: bool) -> str:
    """Return `learnt (cold)`: useful time in per cent of that with the best fixed interval."""
    found = compare(world, market, enough_trainings(world, 4000, least=10), in_job=in_job)
    return f"{found.learnt:.1%} ({found.cold:.1%})"


def lines(worlds: Sequence[World], market: str, *, in_job: bool) -> list[str]:
    """Return the rows of a Markdown table: a row per mean time and restart time, a column per cost of a save."""
    rows = []
    for (mean, restart), row in groupby(sorted(worlds, key=_row), key=_row):
        name = f"{mean / HOUR:g} h" if mean >= HOUR else f"{mean / 60:g} min"
        cells = [cell(world, market, in_job=in_job) for world in row]
        rows.append(f"| {name} | {restart:g} s | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def _row(world: World) -> tuple[float, float]:
    return world.mean, world.restart


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.interval")
    parser.add_argument("--prior", choices=[*PRIORS, UNKNOWN_PRIOR.name], default="spot")
    parser.add_argument("--lag", action="store_true", help="a save takes three times its cost to be written")
    parser.add_argument("--alone", action="store_true", help="outside of a job: only checkpoints hold what was met")
    options = parser.parse_args()
    worlds = [with_lag(world) for world in GRID] if options.lag else GRID
    lines(worlds, options.prior, in_job=not options.alone)


if __name__ == "__main__":
    main()
