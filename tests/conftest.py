"""Hooks and fixtures for all tests: environment, collection order, durations and locks."""

from __future__ import annotations

import csv
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.turns import shared_lock

# Usually not set by users: the first hides missing flushes, the second makes every process compile its imports.
for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
# Tests run several jobs at once on a machine that may have few cores. Supervisors inherit this.
os.environ["CLOUDGPU_LOCAL_SLOTS"] = "64"
# The configuration of the person who runs the tests is not read.
os.environ["CLOUDGPU_CONFIG"] = os.devnull + "/no-configuration"
# GNU readline, which pytest imports, sets these for child processes, although there is no terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
# A shell's background processes inherit an ignored SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LOCKS = pytest.StashKey[Path]()
"""Folder of the locks shared by pytest-xdist's workers."""

DURATIONS = Path(__file__).parent / "durations.csv"
"""Durations of the test files in a full run, in seconds, recorded by --write-durations."""

NO_PULUMI = "NOT CHECKED: `pulumi` is not on PATH (make test-engines)"


def pytest_report_header() -> str:
    """Report the Pulumi engine that the tests use."""
    found = shutil.which("pulumi")
    return f"pulumi: {found}" if found else "pulumi: NOT ON PATH: stacks are tested with a double of its engine only"


@pytest.fixture(params=["double", pytest.param("pulumi", marks=pytest.mark.engine)])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Run a test of stacks with a double of Pulumi's engine (tests/standins/pulumi/double), and with Pulumi itself."""
    is_there = shutil.which("pulumi") is not None
    if request.param == "pulumi" and not is_there:
        pytest.skip(NO_PULUMI)
    if request.param == "double" and is_there and not LONG and request.node.get_closest_marker("on_engine") is not None:
        pytest.skip("runs with Pulumi's own engine (make test-engines), and with its double with CLOUDGPU_LONG=1")
    return str(request.param)


@pytest.fixture(autouse=True)
def _fresh_orders() -> Generator[None]:
    """Clear the cache of fleet orders after each test, as the next test's stores have the same URLs."""
    yield
    if (grouping := sys.modules.get("cloudgpu.provisioners.stacks.job_groups")) is not None:
        grouping.orders.cache_clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report prominently which tests were not run with Pulumi's own engine."""
    skipped = [one for one in terminalreporter.getreports("skipped") if NO_PULUMI in str(one.longrepr)]
    if skipped:
        terminalreporter.section("Pulumi's own engine", red=True, bold=True)
        text = f"{NO_PULUMI}: {len(skipped)} tests of stacks ran with a double of its engine, and not with Pulumi's own"
        terminalreporter.line(text, red=True, bold=True)
    reasons = [
        str(one.longrepr[2]) for one in terminalreporter.getreports("skipped") if isinstance(one.longrepr, tuple)
    ]
    for reason in sorted({one.partition(": ")[2] for one in reasons if "NOT CHECKED: a real" in one}):
        terminalreporter.line(reason, red=True, bold=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the folder of the locks to each of pytest-xdist's workers."""
    if LOCKS not in node.config.stash:
        node.config.stash[LOCKS] = Path(tempfile.mkdtemp(prefix="cloudgpu-tests-"))
    node.workerinput["locks"] = str(node.config.stash[LOCKS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(LOCKS, None):
        shutil.rmtree(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations",
        action="store_true",
        help=f"record in {DURATIONS.name} how many seconds each file took: files that run at once are ordered by it",
    )


def read_durations() -> dict[str, float]:
    """Return the recorded seconds of each test file, by its path from the root."""
    with DURATIONS.open(newline="") as file:
        return {row["file"]: float(row["seconds"]) for row in csv.DictReader(file)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m engine`, import only files that mention it, as each worker would import everything."""
    if config.option.markexpr != "engine" or not collection_path.name.startswith("test_"):
        return None
    return "engine" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection(session: pytest.Session) -> None:
    """Disable garbage collection during imports, which create no garbage."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude all imported objects from later garbage collections, including those in forks."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, start with the slowest files, so that the run does not end with one of them.

    The expected duration of a file without a record is the timeout of its first test.
    """
    if not hasattr(config, "workerinput"):
        return
    expected = read_durations()
    for item in items:
        file = item.location[0]
        if file not in expected:
            marker = item.get_closest_marker("timeout")
            expected[file] = marker.args[0] if marker else 0.0
    items.sort(key=lambda item: -expected[item.location[0]])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record the durations of the files whose tests ran; other rows are kept."""
    config = session.config
    if hasattr(config, "workerinput") or not config.option.write_durations:
        return
    taken: dict[str, float] = defaultdict(float)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    for reports in terminal.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                taken[report.location[0]] += report.duration
    rows = {file: seconds for file, seconds in (read_durations() | taken).items() if (config.rootpath / file).exists()}
    with DURATIONS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "seconds"])
        writer.writerows([name, f"{seconds:.0f}"] for name, seconds in sorted(rows.items()))


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # outside of pytest-timeout's hook, so that waiting for the lock does not count
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run tests marked `alone` while no other test runs."""
    folder = getattr(item.config, "workerinput", {}).get("locks")
    if folder is None:
        return (yield)
    with shared_lock(Path(folder), alone=item.get_closest_marker("alone") is not None):
        return (yield)
