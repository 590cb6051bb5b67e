"""`make bench`: run benchmarks and print a table; with --write, update docs/explanation/benchmarks.md.

python -m tests.bench [NAME ...] [--write]

NAME: startup, specs, latency, logs, queue, install, saving, restoring, infra, requests, jobs
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from .measure import Row

BENCHES = ("startup", "specs", "latency", "logs", "queue", "install", "saving", "restoring", "infra", "requests")
ON_REQUEST = ("jobs",)
"""Slow benchmarks, which run only when named."""
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "benchmarks.md"
START, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | budget | unit | how |", "|---|---|---|---|---|"]
    for row in rows:
        budget = "–" if row.budget is None else f"{row.budget:g}"
        mark = "" if row.kept else " **over**"
        lines.append(f"| {row.what} | {row.measured:.2f}{mark} | {budget} | {row.unit} | {row.how} |")
    return "\n".join(lines)


def write(text: str) -> None:
    page = PAGE.read_text()
    head, _, rest = page.partition(START)
    _, _, tail = rest.partition(END)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    PAGE.write_text(f"{head}{START}\n\n{datetime.now(UTC):%Y-%m-%d}, {machine}:\n\n{text}\n\n{END}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; none: all of them")
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/benchmarks.md")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.names or BENCHES:
        if name not in BENCHES + ON_REQUEST:
            parser.error(f"there is no bench {name!r}; there are: {', '.join(BENCHES + ON_REQUEST)}")
        print(f"{name} …", file=sys.stderr)
        rows += importlib.import_module(f".{name}", __package__).rows()
    print(table(rows))
    if options.write:
        write(table(rows))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
